"""What a verifier is given and what it says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

VerdictName = Literal["pass", "fail", "unknown"]

WALL_TIMEOUT = "wall_timeout"
RETRY_REASONS = frozenset({WALL_TIMEOUT})
"""Reasons of `unknown` that a busy machine can cause: such an item is tried once more alone."""

MACHINE_REASONS = RETRY_REASONS | {"box_failed", "crash", "verifier_error"}
"""Reasons of `unknown` that lie in the machine or in us, so that another run may decide."""

SNIPPET = 200
"""Characters of an answer or message kept as evidence."""


@dataclass(frozen=True, slots=True)
class Item:
    """One answer to judge."""

    key: str
    verifier: str
    answer: str
    """Final answer text: what the model said after its thinking."""
    outcome: str
    """`complete`, or how the sample ended instead; only complete ones can pass."""
    reference: Mapping[str, Any] | None
    """What decides right or wrong, in the verifier's own form."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict. `unknown` means that nothing was learnt about the answer: a timeout, a dead box, a bad reference."""

    verdict: VerdictName
    score: float | None
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)


def passed(reason: str, **evidence: object) -> Judgement:
    """The answer is right."""
    return Judgement("pass", 1.0, reason, evidence)


def failed(reason: str, score: float = 0.0, **evidence: object) -> Judgement:
    """The answer is wrong."""
    return Judgement("fail", score, reason, evidence)


def unknown(reason: str, **evidence: object) -> Judgement:
    """The verifier could not tell."""
    return Judgement("unknown", None, reason, evidence)


def snippet(text: str) -> str:
    """A text short enough for evidence, valid UTF-8 whatever the model wrote."""
    return text[:SNIPPET].encode(errors="replace").decode()
