"""Judge a mathematical answer: an exact comparison of numbers first, math-verify in a killable process for the rest.

Reference: {"answer": "12"}. Only the answer's region counts: the last `\\boxed{}`, else what follows "The answer is",
else, in a short text, the result of its last equation. A number somewhere in prose is no answer: math-verify alone
takes "I have 4 apples but cannot solve it" for 4.
"""

import re
from collections.abc import Sequence
from typing import Any

from pipeline.verify import equality
from pipeline.verify.judgement import WALL_TIMEOUT, Item, Judgement, failed, passed, snippet, unknown
from pipeline.verify.limits import Limits, MathLimits
from pipeline.verify.numbers import read_number, tidy

VERSION = "1"

SHORT_CHARS = 400
"""A text up to this length may end in a bare equation instead of "The answer is"."""

_STATED = re.compile(
    # "The answer is", also with what it answers in between: "The answer to the given problem is".
    r"\b(?:answer|result|solution)(?:\s[^.:=\n]{0,80}?)?\s(?:is|=|:)\s*:?\s*|\banswer\s*[:=]\s*|^####\s*",
    re.IGNORECASE | re.MULTILINE,
)
_RESULT = re.compile(r"=\s*([^=\n]+?)\s*$")
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")


def judge(items: Sequence[Item], limits: Limits) -> list[Judgement]:
    """One judgement an item, in order. Processes are started only where exact numbers do not decide."""
    judgements: dict[int, Judgement] = {}
    pairs: dict[int, tuple[str, str]] = {}
    for index, item in enumerate(items):
        found = compare_plainly(item, limits.math)
        if isinstance(found, Judgement):
            judgements[index] = found
        else:
            pairs[index] = found
    compared = equality.compare_expressions(list(pairs.values()), limits.math) if pairs else []
    for (index, (_, answer)), outcome in zip(pairs.items(), compared, strict=True):
        judgements[index] = _judgement(outcome, answer)
    return [judgements[index] for index in range(len(items))]


def compare_plainly(item: Item, limits: MathLimits) -> Judgement | tuple[str, str]:
    """A judgement where plain text and exact numbers decide, else the pair (reference, answer) of expressions."""
    gold = (item.reference or {}).get("answer")
    if not isinstance(gold, str) or not gold.strip():
        return unknown("bad_reference")
    region = answer_region(item.answer)
    if region is None:
        return failed("no_answer")
    if len(region) > limits.answer_chars:
        return failed("answer_too_long")
    if tidy(region) == tidy(gold):
        return passed("equal", answer=snippet(tidy(region)))
    wanted, got = read_number(gold), read_number(region)
    evidence: dict[str, Any] = {"answer": snippet(tidy(region))}
    if wanted and got:
        if wanted.value != got.value:
            return failed("wrong_answer", **evidence)
        if wanted.unit and got.unit and wanted.unit != got.unit:
            return failed("wrong_unit", **evidence)
        return passed("equal", **evidence)
    if prose_words(region) - prose_words(gold):
        return failed("wrong_answer" if got is None else "not_an_answer", **evidence)
    if not re.search(r"\d|\\|[=+^(\[{]", gold):  # a reference in words
        same = tidy(region).casefold().strip("() ") == tidy(gold).casefold().strip("() ")
        return passed("equal", **evidence) if same else failed("wrong_answer", **evidence)
    if equality.differs_in_form(gold, region):
        return failed("wrong_form", **evidence)
    return gold, region


def prose_words(text: str) -> set[str]:
    """Words of two letters or more that are no LaTeX commands, functions or units in a text wrapper."""
    bare = re.sub(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}|\\[a-zA-Z]+", " ", text)
    return set(_WORD.findall(bare)) - {"sin", "cos", "tan", "log", "ln", "exp", "pi", "sqrt", "frac", "dx", "dy", "dt"}


def _judgement(outcome: str, answer: str) -> Judgement:
    evidence: dict[str, Any] = {"answer": snippet(tidy(answer))}
    if outcome == "equal":
        return passed("equal", **evidence)
    if outcome in ("different", "unparsable_answer"):
        return failed("wrong_answer" if outcome == "different" else outcome, **evidence)
    return unknown(WALL_TIMEOUT if outcome == "wall" else outcome, **evidence)


def answer_region(text: str) -> str | None:
    """The part of a final text that states its answer, or None. What stands before `</think>` never counts."""
    text = text.rpartition("</think>")[2]
    if "<think>" in text:
        return None
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start >= 0:
        return _braced(text, start + len("\\boxed" if text.startswith("\\boxed", start) else "\\fbox"))
    stated = list(_STATED.finditer(text))
    if stated:
        line = text[stated[-1].end() :].split("\n", 1)[0]
        sentence = re.split(r"(?<=[^\s.])[.!?](?=\s|$|[*_\"'])", line, maxsplit=1)[0].strip("*_ ")
        return _right_side(sentence) or None
    if len(text) > SHORT_CHARS:
        return None
    last = text.strip().rsplit("\n", 1)[-1].rstrip(".! ")
    result = _RESULT.search(last)
    candidate = result[1] if result else last
    return candidate if read_number(candidate) else None


def _braced(text: str, start: int) -> str | None:
    """The content of the brace group at `start`; None if it never closes (the answer was cut) or does not open."""
    start += len(text[start:]) - len(text[start:].lstrip())
    if not text.startswith("{", start):
        return None
    depth = 0
    for index in range(start, len(text)):
        escaped = text[index - 1] == "\\"
        if text[index] == "{" and not escaped:
            depth += 1
        elif text[index] == "}" and not escaped:
            depth -= 1
            if depth == 0:
                return text[start + 1 : index].strip() or None
    return None


def _right_side(sentence: str) -> str:
    """`5 + 7 = 12` states 12, where its right side is a plain number."""
    right = sentence.rpartition("=")[2].strip()
    return right if read_number(right) else sentence
