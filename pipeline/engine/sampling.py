"""From tasks to samples: make requests, look each up in the ledger, ask a server for the missing ones, assemble."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.chat.parse import parse_turn, special_tokens
from pipeline.config import Machine
from pipeline.engine.ledger import Answer, Ledger
from pipeline.engine.server import VllmServer, read_counters
from pipeline.engine.settings import EndpointEngine, LocalEngine, Teacher
from pipeline.errors import UserError
from pipeline.progress import Progress, say
from pipeline.records import Sample, Task, canonical_json, content_id
from pipeline.work import fingerprint

MODEL_FILES = ("*.safetensors", "*.bin", "config.json", "generation_config.json", "tokenizer*", "chat_template*")
if TYPE_CHECKING:
    from pipeline.engine.client import Server as HttpServer

_BLOCK = 500  # requests assembled at a time: bounds the texts in memory


@dataclass(frozen=True, slots=True)
class Request:
    """One wanted sample: which task, which attempt, and the ledger key of everything that decides it."""

    task: Task
    index: int
    key: str
    seed: int


@dataclass(slots=True)
class SamplingCounts:
    """What a sampling run did; the `server_` counters are vLLM's own, read from /metrics.

    `server_requests` and `server_generated_tokens` must equal `requests_sent` and `received_tokens`.
    """

    requested: int = 0
    reused: int = 0
    requests_sent: int = 0
    received_tokens: int = 0
    output_tokens_per_s: float = 0.0
    server_requests: int = 0
    server_prompt_tokens: int = 0
    server_generated_tokens: int = 0


def model_identity(teacher: Teacher, model: Path | None, cache: Path) -> str:
    """What names the teacher's weights, tokenizer and template in a key: a content hash, or a declared revision."""
    if isinstance(teacher.engine, EndpointEngine):
        return f"{teacher.engine.model}@{teacher.engine.model_revision}"
    if model is None:
        raise UserError(f"teacher {teacher.name}: a local engine serves a model folder; give it with --in")
    files = {file for pattern in MODEL_FILES for file in model.glob(pattern)}
    return fingerprint(model, cache, only=files)


def make_requests(tasks: Iterable[Task], teacher: Teacher, identity: str, seed: int, samples: int) -> Iterator[Request]:
    """`samples` requests a task, in task order. Equal keys mean interchangeable samples.

    The key holds canonical messages and tools, template arguments, the model's identity, engine settings and sampling
    parameters except max_tokens, the recipe's seed and the index. Each request's own seed follows from it.
    """
    sampling = teacher.sampling.model_dump(mode="json", exclude={"max_tokens"})
    engine = teacher.engine.model_dump(mode="json")
    for task in tasks:
        for index in range(samples):
            key = content_id(
                {"messages": task.messages, "tools": task.tools, "template_kwargs": teacher.template_kwargs},
                {"model": identity, "engine": engine, "sampling": sampling, "seed": seed, "index": index},
            )
            yield Request(task, index, key, int(content_id("seed", key)[:8], 16) & 0x7FFFFFFF)


def usable(answer: Answer, max_tokens: int) -> bool:
    """Whether a stored answer is what this token limit would have given: finished within it, or cut by the same one."""
    if answer.finish_reason == "length":
        return answer.max_tokens == max_tokens
    return answer.num_output_tokens <= max_tokens


def sample_missing(
    requests: Sequence[Request], teacher: Teacher, model: Path | None, machine: Machine, ledger: Ledger, log: Path
) -> SamplingCounts:
    """Ask for every request that the ledger cannot serve; each answer is on disk before it is counted."""
    limit = teacher.sampling.max_tokens
    known = {key for key, answer in ledger.get([r.key for r in requests]) if usable(answer, limit)}
    # Equal requests (one prompt in two tasks) are asked once.
    missing = list({r.key: r for r in requests if r.key not in known}.values())
    counts = SamplingCounts(requested=len(requests), reused=sum(r.key in known for r in requests))
    if counts.reused:
        say(f"ledger: {counts.reused} of {len(requests)} samples are already there")
    if missing:
        with _serving(teacher, model, machine, log) as server:
            asyncio.run(_ask_missing(missing, teacher, machine, ledger, server, counts))
            if server is not None:
                for name, value in read_counters(server.url).items():
                    setattr(counts, name, value)
    return counts


def _serving(
    teacher: Teacher, model: Path | None, machine: Machine, log: Path
) -> AbstractContextManager[VllmServer | None]:
    if not isinstance(teacher.engine, LocalEngine):
        return contextlib.nullcontext()
    assert model is not None
    return VllmServer(model, teacher.name, teacher.engine, machine, log)


async def _ask_missing(
    missing: Sequence[Request],
    teacher: Teacher,
    machine: Machine,
    ledger: Ledger,
    server: VllmServer | None,
    counts: SamplingCounts,
) -> None:
    from pipeline.engine.client import Ask, ask_all

    servers, in_flight = _servers_of(teacher, machine, server)
    asks = [Ask(request.key, _body(request, teacher)) for request in missing]
    started = time.monotonic()
    with Progress(f"samples of {teacher.name}", counts.requested, "samples", done=counts.reused) as progress:
        async for batch in ask_all(asks, servers, in_flight, lambda: server is None or server.alive):
            # One sync for all that arrived together: a sync per answer would cap the rate of a fast server.
            await asyncio.to_thread(ledger.put, batch)
            counts.requests_sent += len(batch)
            counts.received_tokens += sum(answer.num_output_tokens for _, answer in batch)
            counts.output_tokens_per_s = round(counts.received_tokens / (time.monotonic() - started), 1)
            progress.advance(len(batch), f"{counts.output_tokens_per_s:.0f} output tokens/s")


def _servers_of(teacher: Teacher, machine: Machine, server: VllmServer | None) -> "tuple[list[HttpServer], int]":
    from pipeline.engine.client import Server as HttpServer

    if server is not None:
        return [HttpServer(server.url, teacher.name, None, vllm=True)], machine.serving.max_num_seqs
    assert isinstance(teacher.engine, EndpointEngine)
    endpoint = machine.endpoints.get(teacher.name)
    if endpoint is None:
        raise UserError(
            f"teacher {teacher.name} uses running servers, but the machine file names none: add "
            f"endpoints: {{{teacher.name}: {{urls: [http://HOST:PORT/v1]}}}}"
        )
    api_key = os.environ.get(endpoint.api_key_env) if endpoint.api_key_env else None
    if endpoint.api_key_env and not api_key:
        raise UserError(f"the environment variable {endpoint.api_key_env} is not set (key of teacher {teacher.name})")
    engine = teacher.engine
    servers = [HttpServer(url.rstrip("/"), engine.model, api_key, engine.vllm) for url in endpoint.urls]
    return servers, endpoint.max_in_flight


def _body(request: Request, teacher: Teacher) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": json.loads(request.task.messages), "seed": request.seed, "n": 1}
    body |= teacher.sampling.model_dump(mode="json")
    if request.task.tools is not None:
        # Without a server-side tool parser vLLM answers 400 unless tool_choice is "none"; calls stay in the raw text.
        body |= {"tools": json.loads(request.task.tools), "tool_choice": "none"}
    if teacher.template_kwargs:
        body["chat_template_kwargs"] = teacher.template_kwargs
    return body


def collect_samples(
    requests: Sequence[Request], teacher: Teacher, model: Path | None, ledger: Ledger
) -> Iterator[Sample]:
    """The samples of all requests in request order, parsed from the ledger's raw answers."""
    markers = special_tokens(model) if model is not None else ()
    for start in range(0, len(requests), _BLOCK):
        block = requests[start : start + _BLOCK]
        answers = dict(ledger.get([request.key for request in block]))
        for request in block:
            yield _sample_of(request, answers[request.key], teacher, markers)


def _sample_of(request: Request, answer: Answer, teacher: Teacher, markers: Sequence[str]) -> Sample:
    messages, outcome = parse_turn(
        answer.text,
        answer.finish_reason,
        reasoning=answer.reasoning,
        thinking=teacher.thinking,
        markers=markers,
    )
    turn = {"text": answer.text, "finish_reason": answer.finish_reason}
    if answer.reasoning is not None:
        turn["reasoning"] = answer.reasoning
    return Sample(
        sample_id=content_id("sample", request.task.task_id, request.key, answer.text),
        task_id=request.task.task_id,
        index=request.index,
        teacher=teacher.name,
        turns=canonical_json([turn]),
        messages=canonical_json(messages),
        outcome=outcome,
        num_prompt_tokens=answer.num_prompt_tokens,
        num_output_tokens=answer.num_output_tokens,
        seed=answer.seed,
    )
