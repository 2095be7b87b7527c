"""Judge many answers in one process: same answers, same verdicts, in the order given."""

from collections.abc import Sequence
from typing import Protocol

from pipeline.errors import UserError
from pipeline.verify import code, instruction, math
from pipeline.verify.judgement import RETRY_REASONS, Item, Judgement, failed
from pipeline.verify.limits import Limits


class Verifier(Protocol):
    """A module that judges answers of one kind."""

    VERSION: str
    """Raised by every change that can change a verdict."""

    def judge(self, items: Sequence[Item], limits: Limits) -> list[Judgement]:
        """One judgement an item, in order; every item is complete."""


VERIFIERS: dict[str, Verifier] = {"math": math, "code": code, "instruction": instruction}


def judge_once(items: Sequence[Item], limits: Limits) -> list[Judgement]:
    """One judgement an item, in order, without a second try.

    Raises UserError for an unknown verifier, and where this machine cannot build a box for untrusted code.
    """
    found: dict[int, Judgement] = {}
    waiting: dict[str, list[int]] = {name: [] for name in VERIFIERS}
    for index, item in enumerate(items):
        if item.verifier not in VERIFIERS:
            raise UserError(f"{item.key}: there is no verifier `{item.verifier}`; there are {', '.join(VERIFIERS)}")
        if item.outcome != "complete":
            found[index] = Judgement("fail", None, item.outcome)
        elif not item.answer.strip():
            found[index] = failed("no_answer")
        else:
            waiting[item.verifier].append(index)
    for name, indices in waiting.items():
        if indices:
            found.update(zip(indices, VERIFIERS[name].judge([items[i] for i in indices], limits), strict=True))
    return [found[index] for index in range(len(items))]


def judge_items(items: Sequence[Item], limits: Limits) -> list[Judgement]:
    """One judgement an item, in order; whatever a busy machine left undecided is tried once more, one at a time."""
    judgements = judge_once(items, limits)
    for index, judgement in enumerate(judgements):
        if judgement.reason in RETRY_REASONS:
            judgements[index] = judge_once([items[index]], limits)[0]
    return judgements
