"""Wanted samples and their ledger keys: equal keys mean interchangeable samples."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.engine.settings import EndpointEngine, Teacher
from pipeline.errors import UserError
from pipeline.records import Task, canonical_json
from pipeline.work import fingerprint

MODEL_FILES = ("*.safetensors", "*.bin", "config.json", "generation_config.json", "tokenizer*", "chat_template*")
NO_KEY = {"sampling": {"max_tokens"}, "engine": {"type", "model"}}
"""Settings that are no part of a key: the token limit, for which see `Stored.fits`, and where a model runs and lies."""


@dataclass(frozen=True, slots=True)
class Request:
    """One wanted sample: which task, which attempt, and the ledger key of everything that decides it."""

    task: Task
    index: int
    key: bytes
    """16 bytes."""

    @property
    def seed(self) -> int:
        """The request's own seed, so that no two samples and no two servers draw alike (vllm-project/vllm#11953)."""
        return int.from_bytes(hashlib.blake2b(self.key, digest_size=4, person=b"seed").digest(), "big") & 0x7FFFFFFF


def model_folder(teacher: Teacher, given: Path | None) -> Path | None:
    """The folder that a teacher is served from, None for running servers. Raises UserError if it holds no model."""
    if isinstance(teacher.engine, EndpointEngine):
        return None
    folder = Path(teacher.engine.model) if teacher.engine.model else given
    if folder is None:
        raise UserError(f"teacher {teacher.name}: its engine serves a model folder; give it with --in teacher=PATH")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: is no Hugging Face model folder (no config.json); it is to serve {teacher.name}")
    return folder


def key_fields(teacher: Teacher, model: Path | None, cache: Path, seed: int) -> dict[str, Any]:
    """Everything but the task and the index that decides a sample, as JSON values.

    `model_identity` is a hash over the contents of weights, config, tokenizer and template, or the declared revision
    of a running server. `cache` is the file of known content hashes.
    """
    if model is None:
        assert isinstance(teacher.engine, EndpointEngine)
        identity = f"{teacher.engine.model}@{teacher.engine.model_revision}"
    else:
        files = {file for pattern in MODEL_FILES for file in model.glob(pattern)}
        identity = fingerprint(model, cache, only=files)
    return {
        "model_identity": identity,
        "engine": teacher.engine.model_dump(mode="json", exclude=NO_KEY["engine"]),
        "sampling": teacher.sampling.model_dump(mode="json", exclude=NO_KEY["sampling"]),
        "template_kwargs": teacher.template_kwargs,
        "seed": seed,
    }


def make_requests(tasks: Iterable[Task], fields: Mapping[str, Any], indices: Iterable[int]) -> Iterator[Request]:
    """One request a task and index, in task order. The key hashes fields, canonical messages and tools, and index."""
    base = hashlib.blake2b(canonical_json(fields).encode(), digest_size=32).digest()
    numbers = [(index, index.to_bytes(4, "big")) for index in indices]
    for task in tasks:
        state = hashlib.blake2b(base, digest_size=16)
        for text in (task.messages, task.tools):
            # The length in front keeps messages and tools apart; no tools are not the same as none given.
            body = b"" if text is None else text.encode(errors="surrogatepass")
            state.update(b"%d:" % (-1 if text is None else len(body)) + body)
        for index, number in numbers:
            own = state.copy()
            own.update(number)
            yield Request(task, index, own.digest())


def shared_body(teacher: Teacher) -> dict[str, Any]:
    """The chat-completion fields that all requests of a teacher have."""
    template = {"chat_template_kwargs": teacher.template_kwargs} if teacher.template_kwargs else {}
    return {"n": 1, **teacher.sampling.model_dump(mode="json"), **template}


def body_of(request: Request, shared: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """The chat-completion fields of a request."""
    body = {**shared, "messages": json.loads(request.task.messages), "seed": request.seed, "max_tokens": max_tokens}
    if request.task.tools is not None:
        # Without a server-side tool parser vLLM answers 400 unless tool_choice is "none"; calls stay in the raw text.
        body |= {"tools": json.loads(request.task.tools), "tool_choice": "none"}
    return body


def changed_fields(old: Any, new: Any, name: str = "") -> list[str]:  # noqa: ANN401 - JSON values
    """What differs between two sets of key fields, as `sampling.temperature 0.8 -> 0.7`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = []
        for key in sorted({*old, *new}):
            found += changed_fields(old.get(key), new.get(key), f"{name}.{key}" if name else key)
        return found
    return [] if old == new else [f"{name} {canonical_json(old)} -> {canonical_json(new)}"]
