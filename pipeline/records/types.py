"""`Task`, `Sample`, `Verdict`, `Trace`, `Rejected`: frozen dataclasses, each beside its Arrow schema.

Nested and free-form values (messages, tools, turns, evidence, references) are canonical JSON strings. Absent
values are null, never a sentinel. Timings, addresses and attempt numbers never enter a record.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

Split = Literal["train", "heldout"]
Outcome = Literal[
    "complete",
    "cut_in_thinking",
    "cut_in_answer",
    "no_answer",
    "no_thinking",
    "malformed_call",
    "prompt_too_long",
]
VerdictName = Literal["pass", "fail", "unknown", "not_checked"]


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to solve. `task_id` hashes what the model sees and what decides right or wrong."""

    task_id: str
    prompt_id: str
    source: str
    source_id: str
    source_revision: str | None
    license: str
    domain: str
    messages: str
    """JSON list of {role, content}; the last message is the user's."""
    tools: str | None
    """JSON list of tool schemas."""
    verifier: str
    """Name of the verifier that judges an answer (`math`, `code`, `instruction`)."""
    reference: str | None
    """JSON object read by the verifier alone: {"answer", "policy"}, {"tests", ...} or {"constraints"}."""
    split: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One attempt of a teacher at a task."""

    sample_id: str
    task_id: str
    index: int
    teacher: str
    turns: str
    """JSON list, one object per model turn: {text, finish_reason, token_ids?}; `text` is the raw output."""
    messages: str
    """JSON list of the assistant's messages, parsed from `turns` by our own code."""
    outcome: str
    num_prompt_tokens: int
    num_output_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of a sample. A timeout or a broken box is `unknown`, never 0."""

    sample_id: str
    verifier: str
    verifier_version: str
    verdict: str
    score: float | None
    reason: str
    """Short code such as `equal`, `wrong_answer`, `no_answer`, `timeout`."""
    evidence: str
    """JSON object: extracted answer, failing test, and the like."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A conversation to train on: the join of task, sample and verdict."""

    trace_id: str
    task_id: str
    prompt_id: str
    source: str
    source_id: str
    license: str
    domain: str
    split: str
    messages: str
    """JSON list: the task's messages followed by the assistant's."""
    tools: str | None
    teacher: str | None
    verdict: str
    score: float | None
    pass_rate: float | None
    """Passes among the judged samples of the task, where known."""
    num_samples: int | None
    """Judged samples behind `pass_rate`."""
    num_output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that a stage did not keep, and why."""

    id: str
    stage: str
    reason: str
    evidence: str
    """JSON object."""


Record: TypeAlias = Task | Sample | Verdict | Trace | Rejected

Report: TypeAlias = dict[str, int | float | str | bool]
"""Flat numbers of one stage run, written to `reports/<recipe>/<stage>.json` (DVC metrics)."""

_TEXT, _COUNT, _SEED, _REAL = pa.string(), pa.int32(), pa.int64(), pa.float64()


def _schema(*fields: tuple[str, pa.DataType, bool]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in fields])


RECORD_TYPES: dict[type, tuple[str, pa.Schema]] = {
    Task: (
        "tasks",
        _schema(
            ("task_id", _TEXT, False),
            ("prompt_id", _TEXT, False),
            ("source", _TEXT, False),
            ("source_id", _TEXT, False),
            ("source_revision", _TEXT, True),
            ("license", _TEXT, False),
            ("domain", _TEXT, False),
            ("messages", _TEXT, False),
            ("tools", _TEXT, True),
            ("verifier", _TEXT, False),
            ("reference", _TEXT, True),
            ("split", _TEXT, False),
        ),
    ),
    Sample: (
        "samples",
        _schema(
            ("sample_id", _TEXT, False),
            ("task_id", _TEXT, False),
            ("index", _COUNT, False),
            ("teacher", _TEXT, False),
            ("turns", _TEXT, False),
            ("messages", _TEXT, False),
            ("outcome", _TEXT, False),
            ("num_prompt_tokens", _COUNT, False),
            ("num_output_tokens", _COUNT, False),
            ("seed", _SEED, False),
        ),
    ),
    Verdict: (
        "verdicts",
        _schema(
            ("sample_id", _TEXT, False),
            ("verifier", _TEXT, False),
            ("verifier_version", _TEXT, False),
            ("verdict", _TEXT, False),
            ("score", _REAL, True),
            ("reason", _TEXT, False),
            ("evidence", _TEXT, False),
        ),
    ),
    Trace: (
        "traces",
        _schema(
            ("trace_id", _TEXT, False),
            ("task_id", _TEXT, False),
            ("prompt_id", _TEXT, False),
            ("source", _TEXT, False),
            ("source_id", _TEXT, False),
            ("license", _TEXT, False),
            ("domain", _TEXT, False),
            ("split", _TEXT, False),
            ("messages", _TEXT, False),
            ("tools", _TEXT, True),
            ("teacher", _TEXT, True),
            ("verdict", _TEXT, False),
            ("score", _REAL, True),
            ("pass_rate", _REAL, True),
            ("num_samples", _COUNT, True),
            ("num_output_tokens", _COUNT, True),
        ),
    ),
    Rejected: (
        "rejected",
        _schema(
            ("id", _TEXT, False),
            ("stage", _TEXT, False),
            ("reason", _TEXT, False),
            ("evidence", _TEXT, False),
        ),
    ),
}


def schema_of(record_type: type) -> pa.Schema:
    """The Arrow schema that shards of this record type are written with."""
    return RECORD_TYPES[record_type][1]


def table_name(record_type: type) -> str:
    """The folder name of a table of this record type inside a stage's output: `tasks`, `samples`, ..."""
    return RECORD_TYPES[record_type][0]
