"""Judge many answers in one process: same answers, same verdicts, in the order given."""

from collections.abc import Sequence
from typing import Protocol

from pipeline.errors import UserError
from pipeline.verify import code, instruction, math
from pipeline.verify.judgement import RETRY_REASONS, Item, Judgement, failed, unknown
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
            judged = _judge_all(VERIFIERS[name], [items[i] for i in indices], limits)
            found.update(zip(indices, judged, strict=True))
    return [found[index] for index in range(len(items))]


def _judge_all(verifier: Verifier, items: Sequence[Item], limits: Limits) -> list[Judgement]:
    """A verifier that fails on an answer costs this one alone its verdict."""
    try:
        return verifier.judge(items, limits)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - verifiers meet whatever a model wrote
        if len(items) == 1:
            return [unknown("verifier_error", error=type(error).__name__)]
        return [_judge_all(verifier, [item], limits)[0] for item in items]


def judge_items(items: Sequence[Item], limits: Limits) -> list[Judgement]:
    """One judgement an item, in order; whatever a busy machine left undecided is tried once more, one at a time."""
    judgements = judge_once(items, limits)
    for index, judgement in enumerate(judgements):
        if judgement.reason in RETRY_REASONS:
            judgements[index] = judge_once([items[index]], limits)[0]
    return judgements


def close_verifiers() -> None:
    """End the processes that verifiers keep between calls; the next call starts them again."""
    math.close()
