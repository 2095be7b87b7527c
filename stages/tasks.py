"""Turn local files and task generators into tasks, split into train and heldout.

in:   sources  a folder of JSONL and Parquet files, named in the config relative to it
out:  tasks/     one row a task, in the order of the sources
      rejected/  bad and repeated rows, with the place they come from

A row asks by `prompt` (text) or `messages` (a list of role and content), and is judged by `answer` (verifier math),
by `tests` in any format that the README lists (verifier code; our own names the `function` as well) or by
`constraints` on the answer's form (verifier instruction):

  {"prompt": "Write a function add(a, b).", "function": "add", "tests": [{"args": [1, 2], "expected": 3}]}
  {"prompt": "Describe the sea in at most 20 words.", "constraints": [{"type": "max_words", "n": 20}]}
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipeline.config import StageConfig
from pipeline.errors import UserError
from pipeline.records import Rejected, Report, Task, canonical_json, content_id, prompt_id_of
from pipeline.shards import iter_table, write_sifted
from pipeline.sources import AnySource, Columns, Found, ReasoningGym, TaskFile, iter_sources
from pipeline.sources.fields import CodeReference, InstructionReference, MathReference, explain, named_fields

INPUTS: Mapping[str, str] = {}
OPTIONAL_INPUTS: Mapping[str, str] = {"sources": "folder of the files that `sources.*.path` names"}

TaskFound = Found[TaskFile | ReasoningGym]


class Config(StageConfig):
    """Where tasks come from and how they are split."""

    sources: list[AnySource] = Field(min_length=1)
    """Sources in order; of equal tasks the first is kept."""
    heldout_fraction: float = Field(0.1, ge=0, lt=1)
    """Share of prompts kept out of training: those of the lowest hashes of prompt and seed. A prompt's split depends on
    nothing else, unless a small set would leave one of the splits empty."""

    @field_validator("sources")
    @classmethod
    def _names_of_sources_differ(cls, sources: list[AnySource]) -> list[AnySource]:
        repeated = [name for name, count in Counter(source.name for source in sources).items() if count > 1]
        if repeated:
            raise ValueError(f"two sources are named {repeated[0]}; names tell sources apart in records")
        return sources


class Message(BaseModel):
    """One message of a question."""

    model_config = ConfigDict(strict=True, extra="forbid")
    role: Literal["system", "user", "assistant", "tool"]
    content: str = Field(pattern=r"\S")


class Row(BaseModel):
    """Fields that every row has."""

    model_config = ConfigDict(strict=True)
    id: str | int | None = None
    messages: list[Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None

    @field_validator("messages")
    @classmethod
    def _user_has_the_last_word(cls, messages: list[Message]) -> list[Message]:
        if messages[-1].role != "user" or any(message.role == "system" for message in messages[1:]):
            raise ValueError("a question ends with the user, and only its first message may be the system's")
        return messages


class MathRow(MathReference, Row):
    """A row judged by its answer."""


class CodeRow(CodeReference, Row):
    """A row judged by tests."""


class InstructionRow(InstructionReference, Row):
    """A row judged by the form of the answer."""


ROW_TYPES: Mapping[str, type[MathRow | CodeRow | InstructionRow]] = {
    "math": MathRow,
    "code": CodeRow,
    "instruction": InstructionRow,
}


def make_task(found: TaskFound, seed: int, threshold: float) -> Task | Rejected:
    """Check one record and name it by content."""
    if found.problem:
        return found.rejected("tasks", found.problem, found=found.excerpt)
    source = found.source
    try:
        row = ROW_TYPES[source.verifier].model_validate(_known_fields(found))
        messages = [message.model_dump() for message in row.messages]
        if source.system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": source.system})
        tools = canonical_json(row.tools) if row.tools else None
        told, reference = canonical_json(messages), canonical_json(row.reference())
        (told + reference + (tools or "") + str(row.id)).encode()
    except ValidationError as error:
        reason, evidence = explain(error)
        return found.rejected("tasks", reason, **evidence)
    except (ValueError, TypeError) as error:  # NaN, dates, half of a surrogate pair
        return found.rejected("tasks", "bad_value", rule=str(error)[:200])
    prompt_id = prompt_id_of(messages)
    return Task(
        task_id=content_id("task", told, tools, source.verifier, reference),
        prompt_id=prompt_id,
        source=source.name,
        source_id=found.source_id if row.id is None else str(row.id),
        source_revision=found.revision,
        license=source.license,
        domain=source.domain,
        messages=told,
        tools=tools,
        verifier=source.verifier,
        reference=reference,
        split="heldout" if position_of(prompt_id, seed) < threshold else "train",
    )


def _known_fields(found: TaskFound) -> dict[str, Any]:
    """Fields under our names, with the prompt as messages."""
    columns = found.source.columns if isinstance(found.source, TaskFile) else Columns()
    fields = named_fields(found.fields, columns)
    prompt = fields.pop("prompt", None)
    if prompt is not None and "messages" not in fields:
        fields["messages"] = [{"role": "user", "content": prompt}]
    return fields


def position_of(prompt_id: str, seed: int) -> float:
    """Where a prompt stands in 0..1, by its hash: the same whatever else the sources hold."""
    return int(content_id("split", seed, prompt_id)[:16], 16) / 2**64


def threshold_for(positions: Sequence[float], fraction: float) -> float:
    """Prompts below it are held out. It is `fraction`, unless that leaves a split of a small set empty.

    With 20 prompts and a fraction of 0.2 no prompt at all is held out once in 87 sets (0.8 to the 20th).
    """
    below = sum(position < fraction for position in positions)
    if fraction == 0 or len(positions) < 2 or 0 < below < len(positions):
        return fraction
    wanted = min(max(1, round(fraction * len(positions))), len(positions) - 1)
    return sorted(positions)[wanted]


def make_tasks(records: Iterable[TaskFound], seed: int, threshold: float) -> Iterator[Task | Rejected]:
    """One task or rejected row a record; of equal tasks the first stays. Prompts below `threshold` are held out."""
    places: dict[str, str] = {}
    for found in records:
        task = make_task(found, seed, threshold)
        if isinstance(task, Task):
            if task.task_id in places:
                yield found.rejected("tasks", "duplicate", task_id=task.task_id, first=places[task.task_id])
                continue
            places[task.task_id] = f"{found.source.name} {found.where}"
        yield task


def first_rejected(output: Path) -> str:
    """Why and where the first record was rejected."""
    row = next(iter_table(output, Rejected))
    return f"{row.reason} {row.evidence:.300}"


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Write tasks and rejected rows. Raises UserError for a missing or empty source or too many rejected rows."""
    counts: Counter[str] = Counter()
    prompts: dict[str, set[str]] = {"train": set(), "heldout": set()}

    def counted(threshold: float) -> Iterator[Task | Rejected]:
        records = itertools.islice(iter_sources(config.sources, inputs.get("sources")), config.limit)
        for item in make_tasks(records, config.seed, threshold):
            if isinstance(item, Task):
                prompts[item.split].add(item.prompt_id)
                counts.update([item.split, f"tasks_{item.domain}", f"{item.split}_{item.domain}"])
            yield item

    sifted = write_sifted(output, Task, counted(config.heldout_fraction), config.max_rejected)
    positions = [position_of(prompt, config.seed) for prompt in prompts["train"] | prompts["heldout"]]
    threshold = threshold_for(positions, config.heldout_fraction)
    if threshold != config.heldout_fraction:
        counts.clear()
        prompts["train"].clear()
        prompts["heldout"].clear()
        sifted = write_sifted(output, Task, counted(threshold), config.max_rejected)
    if sifted.kept == 0:
        reasons = ", ".join(f"{name} {count}" for name, count in sifted.reasons.most_common())
        raise UserError(
            f"no task is left: all {sifted.read} records were rejected ({reasons}); the first: {first_rejected(output)}"
        )
    overlap = len(prompts["train"] & prompts["heldout"])
    assert overlap == 0, f"{overlap} prompts stand in both splits"
    report: Report = {"read": sifted.read, "tasks": sifted.kept, "train": counts["train"], "heldout": counts["heldout"]}
    domains = {f"{kind}_{s.domain}": 0 for kind in ("tasks", "heldout") for s in config.sources}
    by_domain = {name: counts[name] for name in domains}
    return {**report, **sifted.report(), **by_domain, "prompt_overlap": overlap}
