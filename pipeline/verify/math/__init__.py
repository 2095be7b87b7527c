r"""Judge a mathematical answer: typed comparators, exact arithmetic, and math-verify in a killable process at the end.

Reference: {"answer": "12"}, with {"policy": {...}} for conventions of a task (`pipeline.verify.math.policy`). Only the
answer's region counts: the last `\boxed{}`, else what follows "The answer is", else, in a short text, the result of its
last equation or the text as a whole. A number somewhere in prose is no answer: math-verify alone takes "I have 4 apples
but cannot solve it" for 4.
"""

from collections.abc import Sequence
from typing import Any

from pipeline.verify.judgement import Item, Judgement, failed, passed, snippet, unknown
from pipeline.verify.limits import Limits, MathLimits
from pipeline.verify.math import equality
from pipeline.verify.math.comparators import NeedsSymbols
from pipeline.verify.math.decide import decide
from pipeline.verify.math.notation import plain
from pipeline.verify.math.policy import Policy, read_reference
from pipeline.verify.math.region import answer_region, bare_answer, braced

VERSION = "2"

_UNDECIDED = frozenset({*equality.LIMIT_OUTCOMES, "unparsable_reference"})


def judge(items: Sequence[Item], limits: Limits) -> list[Judgement]:
    """One judgement an item, in order. Processes are started only where exact numbers do not decide."""
    judgements: dict[int, Judgement] = {}
    pairs: dict[int, tuple[str, str, Policy]] = {}
    for index, item in enumerate(items):
        found = compare_plainly(item, limits.math)
        if isinstance(found, Judgement):
            judgements[index] = found
        else:
            pairs[index] = found
    compared = equality.compare_expressions(list(pairs.values()), limits.math) if pairs else []
    for (index, (_, answer, _)), outcome in zip(pairs.items(), compared, strict=True):
        judgements[index] = _judgement(outcome, answer, stated=answer_region(items[index].answer) is not None)
    return [judgements[index] for index in range(len(items))]


def close() -> None:
    """End the process that compares expressions."""
    equality.close()


def compare_plainly(item: Item, limits: MathLimits) -> Judgement | tuple[str, str, Policy]:
    """A judgement where texts and exact numbers decide, else (reference, answer, policy) for a process."""
    reference = read_reference(item.reference)
    if reference is None:
        return unknown("bad_reference")
    stated = answer_region(item.answer)
    region = stated or bare_answer(item.answer)
    if region is None:
        return failed("no_answer")
    if len(region) > limits.answer_chars:
        return failed("answer_too_long")
    gold = _boxed(reference.answer)
    try:
        outcome = decide(gold, region, reference.policy)
    except NeedsSymbols:
        return gold, region, reference.policy
    return _judgement(outcome, region, stated is not None)


def _boxed(gold: str) -> str:
    """What a reference has in a box, else all of it."""
    start = gold.rfind("\\boxed")
    return (braced(gold, start + len("\\boxed")) if start >= 0 else None) or gold


def _judgement(outcome: str, answer: str, stated: bool) -> Judgement:
    evidence: dict[str, Any] = {"answer": snippet(plain(answer))}
    if outcome == "equal":
        return passed(outcome, **evidence)
    if outcome in _UNDECIDED:
        return unknown(outcome, **evidence)
    return failed(outcome, **evidence) if stated else failed("no_answer")
