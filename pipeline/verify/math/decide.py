"""Decide one pair of reference and answer: equal texts, then a choice letter, then the forms of both."""

import re

from pipeline.verify.math.comparators import Comparison, NeedsSymbols, Same, WrongUnit
from pipeline.verify.math.forms import read_form
from pipeline.verify.math.notation import plain
from pipeline.verify.math.policy import Policy

_LETTER = r"[(\[]?([A-Z])[)\]]?"
_CHOICE = re.compile(rf"{_LETTER}\.?")
_CHOICE_WITH_TEXT = re.compile(r"(?:\(([A-Z])\)\s*|([A-Z])[).:]\s*|(?![AI] )([A-Z])\s+(?=[A-Z][a-z]))(\S.*)")
_PICKED = re.compile(
    r"(?:[a-z]+ly\s+|therefore\s+)?(?:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)\s+(?:is\s+)?)?[(\[]?\s*([A-Za-z])\s*"
    r"(?:[)\]]?[.:]?|[)\].:]+\s*(\S.*)|,?\s+(?:because|since|as|is (?:correct|right))\b(.*))",
    re.IGNORECASE,
)
_OTHER_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Z](?:[).:]|$)|\b(?:or|and)\b")


_LONE_LETTER = re.compile(r"(?<![A-Za-z\\])[B-H](?![A-Za-z])")


class Unparsable(Exception):
    """A formula that cannot be read; `reference` says whose it is."""

    def __init__(self, reference: bool) -> None:
        super().__init__("unparsable_reference" if reference else "unparsable_answer")


def needs_symbols(kind: str, gold: tuple[str, ...], answer: tuple[str, ...]) -> bool:
    """The comparer of expressions for a process that must not compare them."""
    raise NeedsSymbols


def decide(gold: str, answer: str, policy: Policy, same: Same = needs_symbols) -> str:
    """`equal`, or why not: `wrong_answer`, `wrong_unit`, `unparsable_answer`, `unparsable_reference`.

    Raises NeedsSymbols, where `same` does.
    """
    wanted, got = plain(gold), plain(answer)
    if wanted and wanted == got:
        return "equal"
    choice = _choice(wanted, got)
    if choice is False:
        first, _, rest = answer.strip().partition("\n")
        choice = _choice(wanted, plain(first)) and not _LONE_LETTER.search(rest)
    if choice is not None:
        return "equal" if choice else "wrong_answer"
    reference = read_form(gold)
    if reference is None:
        return "unparsable_reference"
    form = read_form(answer)
    if form is None:
        return "unparsable_answer"
    try:
        return "equal" if Comparison(policy, same).equal(reference, form) else "wrong_answer"
    except WrongUnit:
        return "wrong_unit"
    except Unparsable as error:
        return str(error)


def _choice(gold: str, answer: str) -> bool | None:
    """Whether the letter of a multiple-choice reference was picked; None for a reference that is no choice."""
    only, with_text = _CHOICE.fullmatch(gold), _CHOICE_WITH_TEXT.fullmatch(gold)
    if not only and not with_text:
        return None
    letter = only[1] if only else next(group for group in with_text.groups()[:3] if group)  # type: ignore[union-attr]
    if with_text and plain(with_text[4]).casefold() == answer.casefold():
        return True
    picked = _PICKED.fullmatch(answer)
    if not picked:
        return False
    if _OTHER_LETTER.search(picked[2] or picked[3] or ""):
        return False
    return picked[1] == letter or (picked[1].upper() == letter and letter in "ABCDEF")
