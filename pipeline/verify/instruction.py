"""Judge whether an answer has the form that was asked for; what it says is not judged.

Reference: {"constraints": [{"type": "max_words", "n": 20}, {"type": "no_commas"}, ...]}, the types of
`pipeline/verify/constraints.py`. The score is the fraction of constraints that hold; only all of them make it right.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pipeline.verify.constraints import Constraint, count_words
from pipeline.verify.judgement import Item, Judgement, failed, passed, snippet, unknown
from pipeline.verify.limits import Limits

VERSION = "1"


def judge(items: Sequence[Item], limits: Limits) -> list[Judgement]:
    """One judgement an item, in order."""
    return [judge_form(item) for item in items]


@cache
def _adapter() -> TypeAdapter[list[Constraint]]:
    return TypeAdapter(list[Constraint])


def judge_form(item: Item) -> Judgement:
    """Check every constraint of one answer."""
    try:
        constraints = _adapter().validate_python((item.reference or {}).get("constraints"))
    except ValidationError as error:
        first = error.errors()[0]
        return unknown("bad_reference", error=snippet(f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))
    if not constraints:
        return unknown("bad_reference", error="no constraints")
    text = item.answer.rpartition("</think>")[2]
    if "<think>" in text or count_words(text) == 0:
        return failed("no_answer")  # punctuation alone would meet many a constraint
    broken: list[dict[str, Any]] = []
    for constraint in constraints:
        held, found = constraint.check(text)
        if not held:
            broken.append({"type": constraint.type, "found": snippet(found) if isinstance(found, str) else found})
    met = len(constraints) - len(broken)
    if not broken:
        return passed("constraints_met", constraints=len(constraints))
    return failed("constraint_broken", met / len(constraints), met=met, constraints=len(constraints), broken=broken)
