"""Fields of a record under our names, and the references that decide right or wrong."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.records import canonical_json
from pipeline.sources.types import Columns
from pipeline.verify.constraints import Constraint

REASONS = {
    "missing": "missing_field",
    "too_short": "empty_field",
    "extra_forbidden": "unknown_field",
    "value_error": "bad_messages",
    "string_unicode": "bad_value",
    "greater_than_equal": "bad_value",
    "union_tag_invalid": "unknown_constraint",
    "union_tag_not_found": "missing_field",
}
"""Pydantic's names of errors to ours; any other is `wrong_type`."""


class CodeTest(BaseModel):
    """One call of the function and its result."""

    model_config = ConfigDict(strict=True, extra="forbid")
    args: list[Any]
    expected: Any


class MathReference(BaseModel):
    """The answer that is expected."""

    model_config = ConfigDict(strict=True)
    answer: Annotated[str, Field(pattern=r"\S")] | int | float

    def reference(self) -> dict[str, Any]:
        """The answer as text."""
        return {"answer": self.answer if isinstance(self.answer, str) else canonical_json(self.answer)}


class CodeReference(BaseModel):
    """The tests that have to pass."""

    model_config = ConfigDict(strict=True)
    function: str = Field(pattern=r"^[A-Za-z_]\w*$")
    tests: list[CodeTest] = Field(min_length=1)

    def reference(self) -> dict[str, Any]:
        """The function's name and its tests."""
        return {"function": self.function, "tests": [test.model_dump() for test in self.tests]}


class InstructionReference(BaseModel):
    """What the answer's form must be."""

    model_config = ConfigDict(strict=True)
    constraints: list[Constraint] = Field(min_length=1)

    def reference(self) -> dict[str, Any]:
        """The constraints with what they leave to defaults."""
        return {"constraints": [constraint.model_dump() for constraint in self.constraints]}


REFERENCE_TYPES: Mapping[str, type[MathReference | CodeReference | InstructionReference]] = {
    "math": MathReference,
    "code": CodeReference,
    "instruction": InstructionReference,
}


def named_fields(fields: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    """Fields under our names; null is absent, and nested fields given as JSON text are parsed."""
    named = {ours: fields.get(theirs) for ours, theirs in columns.model_dump().items()}
    found = {name: value for name, value in named.items() if value is not None}
    for name in ("messages", "conversations", "tools", "tests", "constraints"):
        if isinstance(found.get(name), str):
            try:
                found[name] = json.loads(found[name])
            except (ValueError, RecursionError):
                continue  # stays text, which the row refuses as a wrong type
    if isinstance(found.get("messages"), list):
        found["messages"] = without_nulls(found["messages"])
    return found


def without_nulls(entries: list[Any]) -> list[Any]:
    """Objects without their null keys: a Parquet struct has every key, null where an entry lacks it."""
    return [
        {key: value for key, value in entry.items() if value is not None} if isinstance(entry, dict) else entry
        for entry in entries
    ]


def explain(error: ValidationError) -> tuple[str, dict[str, str]]:
    """(reason, evidence) of the first thing wrong with a row."""
    first = error.errors()[0]
    reason = REASONS.get(first["type"], "wrong_type")
    if first["type"] == "string_pattern_mismatch" and not str(first["input"]).strip():
        reason = "empty_field"
    field = ".".join(str(part) for part in first["loc"])
    return reason, {"field": field, "rule": first["msg"], "found": ascii(first["input"])[:200]}
