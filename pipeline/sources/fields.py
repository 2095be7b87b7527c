"""Fields of a record under our names, and the references that decide right or wrong."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from pipeline.records import canonical_json
from pipeline.sources.types import Columns
from pipeline.verify.code.formats import entry_name, is_own, read_suite
from pipeline.verify.code.suite import BadReference
from pipeline.verify.constraints import Constraint
from pipeline.verify.math.policy import Policy

REASONS = {
    "missing": "missing_field",
    "too_short": "empty_field",
    "extra_forbidden": "unknown_field",
    "value_error": "bad_messages",
    "string_unicode": "bad_value",
    "greater_than_equal": "bad_value",
    "less_than_equal": "bad_value",
    "greater_than": "bad_value",
    "less_than": "bad_value",
    "union_tag_invalid": "unknown_constraint",
    "union_tag_not_found": "missing_field",
    "bad_tests": "bad_tests",
}
"""Pydantic's names of errors to ours; any other is `wrong_type`."""


class CodeTest(BaseModel):
    """One call of the function and its result."""

    model_config = ConfigDict(strict=True, extra="forbid")
    args: list[Any]
    expected: Any


class MathReference(BaseModel):
    """The answer that is expected, and the conventions under which another one equals it."""

    model_config = ConfigDict(strict=True)
    answer: Annotated[str, Field(pattern=r"\S")] | int | float
    policy: Policy | None = None

    def reference(self) -> dict[str, Any]:
        """The answer as text, and the conventions that the row states."""
        answer = self.answer if isinstance(self.answer, str) else canonical_json(self.answer)
        return {"answer": answer} | ({"policy": self.policy.model_dump(exclude_unset=True)} if self.policy else {})


class CodeReference(BaseModel):
    """The tests that have to pass, in any format that `pipeline.verify.code.formats` reads."""

    model_config = ConfigDict(strict=True)
    function: str | None = Field(None, pattern=r"^[A-Za-z_]\w*$")
    tests: Annotated[
        Annotated[Annotated[list[CodeTest], Field(min_length=1)], Tag("own")] | Annotated[Any, Tag("other")],
        Discriminator(lambda tests: "own" if tests == [] or is_own(tests) else "other"),
    ]
    private_tests: Any = None
    setup: str | None = None
    comparator: Any = None

    @field_validator("function", mode="before")
    @classmethod
    def _metadata_may_hold_the_name(cls, function: Any) -> Any:  # noqa: ANN401 - any JSON value
        named = isinstance(function, dict) or (isinstance(function, str) and function.lstrip().startswith("{"))
        return entry_name(function) if named else function

    @model_validator(mode="after")
    def _tests_can_be_run(self) -> Self:
        if is_own(self.reference()["tests"]) and self.function is None:
            raise PydanticCustomError("missing", "these tests call a function; name it")
        try:
            read_suite(self.reference())
        except BadReference as bad:
            raise PydanticCustomError("bad_tests", "{rule}", {"rule": str(bad)}) from None
        return self

    def reference(self) -> dict[str, Any]:
        """The tests as they were found, and what else decides, without what is absent."""
        given = {name: getattr(self, name) for name in CodeReference.model_fields}
        if is_own_parsed(self.tests):
            given["tests"] = [test.model_dump() for test in self.tests]
        return {name: value for name, value in given.items() if value is not None}


def is_own_parsed(tests: Any) -> bool:  # noqa: ANN401 - any JSON value
    """Whether tests were checked as ours."""
    return isinstance(tests, list) and all(isinstance(test, CodeTest) for test in tests)


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
    for name in ("messages", "conversations", "tools", "tests", "private_tests", "comparator", "constraints", "policy"):
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
