"""What a config says of a source, and a record as found there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from pydantic import Field, field_validator

from pipeline.config import StrictModel
from pipeline.records import Rejected, canonical_json, content_id


class Columns(StrictModel):
    """Where a file keeps each field."""

    prompt: str = "prompt"
    """The question as text."""
    messages: str = "messages"
    """The question as a conversation that ends with the user; wins over `prompt`."""
    tools: str = "tools"
    """Tool schemas offered to the model."""
    answer: str = "answer"
    """Expected answer (math)."""
    policy: str = "policy"
    """Conventions of the answer: percent, order, units, decimals, relative (math)."""
    function: str = "function"
    """Name of the function to write, or LiveCodeBench's metadata that holds it (code)."""
    tests: str = "tests"
    """Tests in any format that the README lists under `Code tasks` (code)."""
    private_tests: str = "private_tests"
    """More tests of the same kind, which LiveCodeBench keeps packed (code)."""
    setup: str = "setup"
    """Source that runs before the program: imports and helpers of its tests (code)."""
    comparator: str = "comparator"
    """How outputs are compared, by name or as an object with tolerances (code)."""
    constraints: str = "constraints"
    """List of {type, ...}, what the answer's form must be (instruction)."""
    id: str = "id"
    """The row's name in its source; its line or row number where there is none."""


class Source(StrictModel):
    """What every source states."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")
    """Name of the source in records and reports."""
    domain: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Group that quotas and reports go by, such as math or code."""
    license: str = Field(min_length=1)
    """SPDX name of the licence."""
    system: str | None = None
    """System prompt put before rows that bring none."""


class FileSource(Source):
    """A file in the sources folder."""

    path: str = Field(min_length=1)
    """File, relative to the sources folder."""
    revision: str | None = None
    """Version of the file's content, such as a commit."""
    rows: int | None = Field(None, ge=1)
    """Take the first so many rows only."""

    @field_validator("path")
    @classmethod
    def _path_stays_in_the_sources_folder(cls, path: str) -> str:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise ValueError("must be relative and stay in the sources folder; put or link the file there")
        return path


class TaskFile(FileSource):
    """A file of tasks."""

    type: Literal["jsonl", "parquet"]
    """How the file is written."""
    verifier: Literal["math", "code", "instruction"]
    """Who judges an answer."""
    columns: Columns = Columns()
    """Names of the fields in the file."""


class Jsonl(TaskFile):
    """One JSON object a line."""

    type: Literal["jsonl"]


class Parquet(TaskFile):
    """One Parquet file; nested fields may be JSON text."""

    type: Literal["parquet"]


class ReasoningGym(Source):
    """Tasks made by a reasoning-gym generator."""

    type: Literal["reasoning_gym"]
    generator: str
    """Name of the generator, such as chain_sum."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """The generator's own settings."""
    size: int = Field(ge=1)
    """Tasks to make."""
    seed: int = 0
    """Seed of the generator."""
    verifier: Literal["math", "code", "instruction"] = "math"
    """Who judges an answer."""
    license: str = Field("Apache-2.0", min_length=1)
    """SPDX name of the licence."""


class CollectedColumns(Columns):
    """Where a file of conversations keeps each field."""

    messages: str = "messages"
    """The conversation (format messages)."""
    completion: str = "completion"
    """The answer, as text or messages (format prompt_completion)."""
    conversations: str = "conversations"
    """The conversation as a list of {from, value} (format sharegpt)."""
    system: str = "system"
    """System prompt of the row, where it stands apart."""


class CollectedFile(FileSource):
    """A file of conversations that others made: a set to train on."""

    type: Literal["jsonl", "parquet"]
    format: Literal["messages", "prompt_completion", "sharegpt"]
    """How a row holds its conversation."""
    teacher: str | None = None
    """Who wrote the answers, where known."""
    verifier: Literal["math", "code", "instruction"] | None = None
    """Who judges the answers of rows that carry a reference; the others stay `not_checked`."""
    columns: CollectedColumns = CollectedColumns()
    """Names of the fields in the file."""


SourceT = TypeVar("SourceT", bound=Source, covariant=True)
AnySource: TypeAlias = Annotated[Jsonl | Parquet | ReasoningGym, Field(discriminator="type")]
"""A source of any type, told apart by `type`."""


@dataclass(frozen=True, slots=True)
class Found(Generic[SourceT]):
    """One record as it stands in a source: its fields, or why there are none."""

    source: SourceT
    where: str
    source_id: str
    revision: str | None
    fields: dict[str, Any]
    problem: str = ""
    excerpt: str = ""

    def rejected(self, stage: str, reason: str, **evidence: object) -> Rejected:
        """This record as a rejected row."""
        name = content_id("row", self.source.name, self.where)
        return Rejected(name, stage, reason, canonical_json({"where": self.where, **evidence}))
