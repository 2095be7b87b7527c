"""What a math task's reference holds: the answer, and the conventions under which an answer equals it."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from pipeline.config import StrictModel


class Policy(StrictModel):
    """Conventions that the strings alone do not decide. A task states its own as `policy` beside its `answer`."""

    percent: Literal["points", "fraction", "either"] = "points"
    """`points`: 35% and 35 are the same, from 1 on; `fraction`: 35% is 0.35 and not 35; `either`: both."""
    order: Literal["written", "any"] = "written"
    """`written`: bare lists such as `1, 2` keep their order, sets and what `or`, `and` or a plus-minus sign joins have
    none; `any`: bare lists have none either. Tuples, vectors and intervals always keep it."""
    units: Literal["optional", "required"] = "optional"
    """`optional`: a unit may be left out or added, but two that are stated have to agree, after conversion;
    `required`: an answer has to state a unit where the reference does."""
    decimals: int | None = Field(None, ge=0, le=30)
    """An answer may be off by half a unit in this decimal place; null: it has to be equal."""
    relative: float | None = Field(None, gt=0, lt=1)
    """An answer may be off by this part of the reference; null: it has to be equal."""


class Reference(StrictModel):
    """Reference of a math task: `{"answer": "35%", "policy": {"percent": "fraction"}}`."""

    answer: str = Field(pattern=r"\S")
    policy: Policy = Policy()


def read_reference(reference: Mapping[str, Any] | None) -> Reference | None:
    """The reference of a task, or None where it holds no answer, an invalid policy or a key that is not known."""
    if reference is None or not isinstance(reference.get("answer"), str):
        return None
    try:
        return Reference.model_validate(dict(reference))
    except ValidationError:
        return None
