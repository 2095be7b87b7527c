"""Whether two similar texts ask the same: numbers, symbols, polarity and case decide where word overlap cannot.

`Evaluate 3 + 4 * 5.` and `Evaluate 3 - 4 * 5.` have the same words, `at most 5` and `at least 5` nearly so: a text is a
copy of another only if their overlap is high and nothing that changes an answer differs.
"""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

POLARITY = frozenset(
    re.findall(
        r"\w+",
        """no not never none nor neither without cannot unless except least most more less fewer before after above
        below over under inside outside ascending descending increasing decreasing increase decrease rising falling
        greater smaller larger shorter longer higher lower older younger earlier later faster slower minimum maximum min
        max minimal maximal highest lowest largest smallest shortest longest oldest youngest first last earliest latest
        odd even true false include exclude including excluding inclusive exclusive positive negative clockwise
        anticlockwise counterclockwise left right north south east west always sometimes every any all only both either
        same different equal unequal valid invalid prime composite win lose buy sell import export required forbidden
        allowed optional knight knave""",
    )
)
"""Words whose exchange turns a question round."""
REWRITTEN_WORDS = 3
"""So many words in a row exchanged for as many others are another question, not an edit."""
CHANGED_WORDS = 5
"""So many words lost and as many gained, wherever they stand, are another question."""
TYPO_RATIO = 0.6
"""Similarity of letters from which a changed word is a misspelling of the same word."""

_TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+n['’]t\b|\w+|[^\w\s.,;:!?'\"`“”‘’„…]")  # noqa: RUF001 - quotes
_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*-\s")
_BEGINNING = re.compile(r"(?:^|[.!?:\n])[\s\-*\"'“]*")
_SHORT_WORD = re.compile(r"\b[^\W\d_]{1,4}\b")
_UNIT = re.compile(r"\d\s*([^\W\d_]{1,2})\b")
_MARKUP = re.compile(r"\*\*(?=\S)|(?<=\S)\*\*(?=\W|$)|\\boxed\{\}|</?think>")
"""Bold marks, and the markup of customary requests such as `put your final answer within \\boxed{}`."""


class Token(NamedTuple):
    """A word, number or symbol and where it stands in its text."""

    text: str
    start: int
    end: int


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return _WORD.findall(text.casefold())


def shingles_of(words: Sequence[str], size: int) -> set[str]:
    """Runs of `size` words; a shorter text is one shingle, so that short texts differ from each other."""
    if len(words) <= size:
        return {" ".join(words)}
    return {" ".join(words[start : start + size]) for start in range(len(words) - size + 1)}


def jaccard(left: set[str], right: set[str]) -> float:
    """Shared over all shingles; 1 for two empty sets."""
    return len(left & right) / len(left | right) if left or right else 1.0


def same_question(left: str, right: str) -> bool:
    """Whether two texts that share most of their words ask the same. Symmetric."""
    first, second = sorted((_without_markup(left), _without_markup(right)))
    if _agree(first, second):
        return True
    core = common_core(first, second)
    return core is not None and core != (first, second) and _agree(*core)


def _agree(left: str, right: str) -> bool:
    return same_facts(left, right) and same_case(left, right) and not is_rewritten(left, right)


def _without_markup(text: str) -> str:
    return _MARKUP.sub(" ", text) if "*" in text or "\\" in text or "<" in text else text


def tokens_of(text: str) -> list[Token]:
    """Words in lower case, numbers and symbols; sentence punctuation and quotes say nothing."""
    return [Token(match[0].casefold(), match.start(), match.end()) for match in _TOKEN.finditer(text)]


def common_core(left: str, right: str) -> tuple[str, str] | None:
    """Both texts without what only one of them has in front or behind, such as a customary request or a cut-off end.

    None where that part holds a number or a symbol: it asks for something of its own.
    """
    a, b = tokens_of(left), tokens_of(right)
    codes = opcodes([token.text for token in a], [token.text for token in b])
    start_a, end_a, start_b, end_b = 0, len(a), 0, len(b)
    if codes and codes[0][0] in ("insert", "delete") and codes[0][1] == codes[0][3] == 0:
        start_a, start_b = codes[0][2], codes[0][4]
    if codes and codes[-1][0] in ("insert", "delete") and (codes[-1][2], codes[-1][4]) == (len(a), len(b)):
        end_a, end_b = max(codes[-1][1], start_a), max(codes[-1][3], start_b)
    outside = a[:start_a] + a[end_a:] + b[:start_b] + b[end_b:]
    if any(not token.text[0].isalpha() for token in outside):
        return None
    return _span(left, a[start_a:end_a]), _span(right, b[start_b:end_b])


def _span(text: str, tokens: Sequence[Token]) -> str:
    return text[tokens[0].start : tokens[-1].end] if tokens else ""


def opcodes(a: Sequence[str], b: Sequence[str]) -> list[tuple[str, int, int, int, int]]:
    """What turns `a` into `b`, without the parts that stay; equal ends are cut off first, which keeps it quick."""
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[-1 - end] == b[-1 - end]:
        end += 1
    codes = SequenceMatcher(None, a[start : len(a) - end], b[start : len(b) - end], autojunk=False).get_opcodes()
    return [(tag, i1 + start, i2 + start, j1 + start, j2 + start) for tag, i1, i2, j1, j2 in codes if tag != "equal"]


def critical_tokens(text: str) -> list[str]:
    """Numbers, mathematical and code symbols, and polarity words in their order."""
    found = []
    for token, _, _ in tokens_of(text):
        if token in POLARITY or not (token[0].isalpha() or token[0] == "_"):
            found.append(token)
        elif token.endswith(("n't", "n’t")):  # noqa: RUF001 - the typographic apostrophe
            found.append("not")
    return found


def same_facts(left: str, right: str) -> bool:
    """Whether the critical tokens are equal, in order or sentence by sentence in any order."""
    return critical_tokens(left) == critical_tokens(right) or _facts_by_sentence(left) == _facts_by_sentence(right)


def _facts_by_sentence(text: str) -> Counter[tuple[str, ...]]:
    facts = Counter(tuple(critical_tokens(sentence)) for sentence in _SENTENCE_END.split(text))
    facts.pop((), None)
    return facts


def same_case(left: str, right: str) -> bool:
    """Whether short words carry the same case where it can mean something: `CO` and `Co`, `mW` and `MW`, `n` and `N`.

    A text in lower, upper or title case throughout says nothing by it.
    """
    if _has_one_case(left) or _has_one_case(right):
        return True
    return _cased_words(left) == _cased_words(right)


def _has_one_case(text: str) -> bool:
    return text.islower() or not any(word[0].islower() for word in _WORD.findall(text))


def _cased_words(text: str) -> Counter[str]:
    short = [word for word in _SHORT_WORD.findall(text) if not word[1:].islower() and word not in ("a", "A", "i", "I")]
    return Counter(short + _UNIT.findall(text))


def is_rewritten(left: str, right: str) -> bool:
    """Whether other words took the place of some: a run of them, many of them, or a name that became another name."""
    a, b = _words_with_names(left), _words_with_names(right)
    lower_a, lower_b = [word.casefold() for word in a], [word.casefold() for word in b]
    for tag, i1, i2, j1, j2 in opcodes(lower_a, lower_b):
        if tag == "replace" and min(i2 - i1, j2 - j1) >= REWRITTEN_WORDS:
            return True
        pairs = zip(a[i1:i2], b[j1:j2], strict=False)
        if tag == "replace" and i2 - i1 == j2 - j1 and any(_is_renamed(x, y) for x, y in pairs):
            return True
    lost, gained = Counter(lower_a), Counter(lower_b)
    return min((lost - gained).total(), (gained - lost).total()) >= CHANGED_WORDS


def _words_with_names(text: str) -> list[str]:
    """The words of a text, with a capital only where it is not that of a sentence's beginning."""
    beginnings = {match.end() for match in _BEGINNING.finditer(text)}
    found = _WORD.finditer(text)
    return [match[0].casefold() if match.start() in beginnings else match[0] for match in found]


def _is_renamed(left: str, right: str) -> bool:
    names = left[0].isupper() and right[0].isupper()
    return names and SequenceMatcher(None, left, right, autojunk=False).ratio() < TYPO_RATIO
