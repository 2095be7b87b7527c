"""Bring existing SFT sets into traces, judged where a row carries a reference.

in:   sources  a folder of JSONL and Parquet files, named in the config relative to it
out:  traces/    one row a conversation, in the order of the sources
      rejected/  bad and repeated rows, with the place they come from

A row holds its conversation as `messages` ({role, content, reasoning_content, tool_calls}), as `prompt` and
`completion`, or as ShareGPT's `conversations` ({from, value}). A row with `answer`, or with `function` and `tests`, is
judged by its source's verifier; the others are `not_checked`. From here on collected rows take the road of our own:
filter, dedup, decontaminate.

    warmstart collect --config configs/demo/collect.yaml --in sources=sources/demo --out data/demo/collect \\
      --report reports/demo/collect.json
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError, field_validator

from pipeline.config import StageConfig, load_machine
from pipeline.records import (
    Rejected,
    Report,
    Sample,
    Task,
    Trace,
    Verdict,
    canonical_json,
    content_id,
    prompt_id_of,
)
from pipeline.shards import write_sifted
from pipeline.sources import CollectedFile, Found, iter_collected
from pipeline.sources.conversations import BadConversation, read_conversation
from pipeline.sources.fields import REFERENCE_TYPES, explain, named_fields
from pipeline.verdicts import Judge
from pipeline.verify import Limits

INPUTS: Mapping[str, str] = {"sources": "folder of the files that `sources.*.path` names"}


class Config(StageConfig):
    """Which sets to collect."""

    sources: list[CollectedFile]
    """Files in order; of equal conversations the first is kept. An empty list collects nothing."""
    limits: Limits = Limits()
    """What judging one answer may cost."""

    @field_validator("sources")
    @classmethod
    def _names_of_sources_differ(cls, sources: list[CollectedFile]) -> list[CollectedFile]:
        repeated = [name for name, count in Counter(source.name for source in sources).items() if count > 1]
        if repeated:
            raise ValueError(f"two sources are named {repeated[0]}; names tell sources apart in records")
        return sources


Answered = tuple[Task, Trace]
"""A conversation as the task that it answers and as a trace."""


def make_trace(found: Found[CollectedFile]) -> Answered | Rejected:
    """Check one row and name it by content."""
    if found.problem:
        return found.rejected("collect", found.problem, found=found.excerpt)
    source = found.source
    try:
        fields = named_fields(found.fields, source.columns)
        messages = read_conversation(fields, source.format)
        if source.system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": source.system})
        reference = read_reference(fields, source.verifier)
        tools = read_tools(fields.get("tools"))
        told = prompt_of(messages)
        texts = canonical_json(told), canonical_json(messages)
        (texts[1] + (tools or "") + (reference or "") + str(fields.get("id"))).encode()
    except BadConversation as bad:
        return found.rejected("collect", bad.reason, **bad.evidence)
    except ValidationError as error:
        reason, evidence = explain(error)
        return found.rejected("collect", reason, **evidence)
    except (ValueError, TypeError) as error:  # NaN, dates, half of a surrogate pair
        return found.rejected("collect", "bad_value", rule=str(error)[:200])
    task = Task(
        task_id=content_id("task", texts[0], tools, source.verifier, reference),
        prompt_id=prompt_id_of(told),
        source=source.name,
        source_id=str(fields.get("id", found.source_id)),
        source_revision=found.revision,
        license=source.license,
        domain=source.domain,
        messages=texts[0],
        tools=tools,
        verifier=source.verifier or "",
        reference=reference,
        split="train",
    )
    return task, trace_of(task, texts[1], source.teacher)


def read_reference(fields: Mapping[str, Any], verifier: str | None) -> str | None:
    """What decides right or wrong, None where the row carries nothing. Raises ValidationError for half of one."""
    if verifier is None:
        return None
    model = REFERENCE_TYPES[verifier]
    given = {name: fields[name] for name in model.model_fields if name in fields}
    return canonical_json(model.model_validate(given).reference()) if given else None


def read_tools(tools: Any) -> str | None:  # noqa: ANN401 - any JSON value
    """Tool schemas as JSON, None where there are none. Raises BadConversation for anything but a list of objects."""
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadConversation("wrong_type", field="tools", rule="a list of objects", found=ascii(tools)[:200])
    return canonical_json(tools)


def prompt_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is asked: everything up to the last word of the user."""
    last = max(index for index, message in enumerate(messages) if message["role"] == "user")
    return messages[: last + 1]


def trace_of(task: Task, messages: str, teacher: str | None) -> Trace:
    """The conversation as a trace that nobody has judged yet."""
    return Trace(
        trace_id=content_id("trace", task.task_id, messages),
        task_id=task.task_id,
        prompt_id=task.prompt_id,
        source=task.source,
        source_id=task.source_id,
        license=task.license,
        domain=task.domain,
        split=task.split,
        messages=messages,
        tools=task.tools,
        teacher=teacher,
        verdict="not_checked",
        score=None,
        pass_rate=None,
        num_samples=None,
        num_output_tokens=None,
    )


def make_traces(records: Iterable[Found[CollectedFile]]) -> Iterator[Answered | Rejected]:
    """One trace or rejected row a record; of equal conversations the first stays."""
    places: dict[str, str] = {}
    for found in records:
        made = make_trace(found)
        if isinstance(made, Rejected):
            yield made
            continue
        _, trace = made
        if trace.trace_id in places:
            first = places[trace.trace_id]
            yield found.rejected("collect", "duplicate", trace_id=trace.trace_id, first=first)
            continue
        places[trace.trace_id] = f"{found.source.name} {found.where}"
        yield made


def judge(config: Config, made: Iterable[Answered | Rejected]) -> dict[str, Verdict]:
    """Verdicts by trace id of the traces whose task has a reference."""
    tasks: dict[str, Task] = {}
    samples: list[Sample] = []
    for item in made:
        if isinstance(item, Rejected) or item[0].reference is None:
            continue
        task, trace = item
        tasks[task.task_id] = task
        samples.append(
            Sample(
                sample_id=trace.trace_id,
                task_id=task.task_id,
                index=0,
                teacher=trace.teacher or "",
                turns="[]",
                messages=trace.messages,
                outcome="complete",
                num_prompt_tokens=0,
                num_output_tokens=0,
                seed=0,
            )
        )
    with Judge(config.limits, load_machine()) as verifiers:
        found = verifiers.verdicts(lambda ids: tasks, samples, len(samples))
        return {verdict.sample_id: verdict for _, verdict in found}


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Judge what can be judged, then write every row. Raises UserError for a missing or empty source."""

    def made() -> Iterator[Answered | Rejected]:
        return make_traces(itertools.islice(iter_collected(config.sources, inputs["sources"]), config.limit))

    verdicts = judge(config, made())
    counts: Counter[str] = Counter()

    def judged() -> Iterator[Trace | Rejected]:
        for item in made():
            if isinstance(item, Rejected):
                yield item
                continue
            found = verdicts.get(item[1].trace_id)
            trace = item[1] if found is None else replace(item[1], verdict=found.verdict, score=found.score)
            counts.update([f"verdict_{trace.verdict}", f"traces_{trace.domain}"])
            yield trace

    sifted = write_sifted(output, Trace, judged(), config.max_rejected)
    return {"read": sifted.read, "traces": sifted.kept, **sifted.report(), **dict(sorted(counts.items()))}
