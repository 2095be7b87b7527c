"""Find benchmark items in traces: verbatim anywhere, or edited, told by runs of words that are rare in the set.

A template shared by many rows tells nothing: runs of words that stand in many rows or many items are left out of an
item before its coverage is counted. Numbers and symbols are tokens, and one that differs makes another question, so
`Calculate 8 * 3.` is no leak of `Calculate 8 * 4.`
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from pipeline.curate.meaning import POLARITY, Token, tokens_of

HEAD = 3
"""Tokens by which a verbatim item is looked up; a shorter item is compared with whole prompts only."""
START_MARKS, END_MARKS = frozenset(".!?:;,\n\"'“‘(`*—–-"), frozenset(".!?:;,\n\"'”’)`*")  # noqa: RUF001 - quotes and dashes
"""Between one of these an item of few tokens stands as a sentence of its own."""
MIN_BLOCK = 2
"""Tokens in a row that count as found again; single ones are found in any text."""

UNBROKEN = 0.9
"""Share of found tokens between the first and the last from which a part of an item is a quotation."""

Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a benchmark."""

    item_id: str
    prompt_id: str
    tokens: tuple[str, ...]
    answer: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """When a row is a leak of an item."""

    gram: int
    coverage: float
    answer_coverage: float


@dataclass(frozen=True, slots=True)
class Match:
    """Where a row holds an item."""

    item_id: str
    kind: str
    coverage: float
    start: int
    end: int
    """Characters of the text that hold it."""


@dataclass(slots=True)
class Benchmark:
    """Items, indexed; picklable, so that it can be sent to workers."""

    items: list[Item]
    rules: Rules
    common: Collection[Gram] = frozenset()
    """Grams that tell nothing."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Items by prompt id."""
    _whole: dict[Gram, str] = field(default_factory=dict)
    _heads: dict[Gram, dict[int, dict[Gram, str]]] = field(default_factory=dict)
    _places: dict[Gram, list[tuple[int, int]]] = field(default_factory=dict)
    _telling: dict[int, frozenset[int]] = field(default_factory=dict)
    """Places of the tokens of each item that its neighbours do not share."""

    def __post_init__(self) -> None:
        for item in self.items:
            self.prompts.setdefault(item.prompt_id, item.item_id)
            self._whole.setdefault(item.tokens, item.item_id)
            if len(item.tokens) >= HEAD:
                by_length = self._heads.setdefault(item.tokens[:HEAD], {})
                by_length.setdefault(len(item.tokens), {}).setdefault(item.tokens, item.item_id)
        self.set_common(self.common)

    def grams(self) -> set[Gram]:
        """Every gram of every item."""
        return {gram for item in self.items for gram in grams_of(item.tokens, self.rules.gram)}

    def set_common(self, common: Collection[Gram]) -> None:
        """State which grams tell nothing, and find the tokens of each item that do."""
        self.common = common
        self._places = defaultdict(list)
        for number, item in enumerate(self.items):
            telling = set(range(len(item.tokens)))
            for start, gram in enumerate(grams_of(item.tokens, self.rules.gram)):
                if gram in common:
                    telling -= set(range(start, start + self.rules.gram))
                else:
                    self._places[gram].append((number, start))
            self._telling[number] = frozenset(telling)

    def checks(self) -> dict[str, list[str]]:
        """Ids of the items that are not looked for in every way: shorter ones cannot be."""
        found: dict[str, list[str]] = {"verbatim_only": [], "whole_prompt_only": [], "uncheckable": []}
        for number, item in enumerate(self.items):
            if not item.tokens:
                found["uncheckable"].append(item.item_id)
            elif len(item.tokens) < HEAD:
                found["whole_prompt_only"].append(item.item_id)
            elif not self._has_enough_of_its_own(number):
                found["verbatim_only"].append(item.item_id)
        return found

    def _has_enough_of_its_own(self, number: int) -> bool:
        telling = self._telling[number]
        words = count_words([self.items[number].tokens[place] for place in telling])
        return len(telling) >= self.rules.gram and 2 * words >= self.rules.gram

    def match(self, text: str, response: str = "", whole: bool = False) -> Match | None:
        """The item that a text holds, verbatim ones first, None if it holds none.

        `response` is where an item's answer is looked for; `whole` says that the text as a whole may be an item.
        """
        tokens = tokens_of(text)
        words = tuple(token.text for token in tokens)
        if whole and words and words in self._whole:
            return Match(self._whole[words], "verbatim", 1.0, 0, len(text))
        return self._verbatim(text, tokens, words) or self._edited(tokens, words, response)

    def _verbatim(self, text: str, tokens: Sequence[Token], words: Gram) -> Match | None:
        for start in range(len(words) - HEAD + 1):
            for length, items in self._heads.get(words[start : start + HEAD], {}).items():
                found = items.get(words[start : start + length])
                few = count_words(words[start : start + length]) < self.rules.gram
                if found and (not few or stands_alone(text, tokens, start, start + length)):
                    return Match(found, "verbatim", 1.0, tokens[start].start, tokens[start + length - 1].end)
        return None

    def _edited(self, tokens: Sequence[Token], words: Gram, response: str) -> Match | None:
        offsets: dict[int, Counter[int]] = defaultdict(Counter)
        for start, gram in enumerate(grams_of(words, self.rules.gram)):
            for number, place in self._places.get(gram, ()):
                offsets[number][start - place] += 1
        found = [
            match
            for number in sorted(offsets)
            if (match := self._compare(number, offsets[number], tokens, words, response))
        ]
        return max(found, key=lambda match: (match.coverage, match.item_id), default=None)

    def _compare(
        self, number: int, offsets: Counter[int], tokens: Sequence[Token], words: Gram, response: str
    ) -> Match | None:
        item, telling = self.items[number], self._telling[number]
        if not self._has_enough_of_its_own(number):
            return None
        offset = max(offsets, key=lambda o: (offsets[o], -o))
        slack = len(item.tokens) // 6 + 4
        begin, end = max(0, offset - slack), min(len(words), offset + len(item.tokens) + slack)
        pairs = aligned(item.tokens, words[begin:end])
        first, last = min(pairs), max(pairs)
        if not facts_agree(item.tokens, words[begin:end], pairs):
            return None
        coverage = len(telling & pairs.keys()) / len(telling)
        there = Counter(words[begin:end])
        facts = not Counter(item.tokens[place] for place in telling if is_fact(item.tokens, place)) - there
        unbroken = len(pairs) >= UNBROKEN * (last - first + 1)
        if coverage >= self.rules.coverage and facts:
            kind = "edited"
        elif coverage >= self.rules.answer_coverage and unbroken and holds(tokens_text(response), item.answer):
            kind = "answered"
        else:
            return None
        where = tokens[begin + pairs[first]].start, tokens[begin + pairs[last]].end
        return Match(item.item_id, kind, round(coverage, 4), *where)


def tokens_text(text: str) -> Gram:
    """The tokens of a text without their places."""
    return tuple(token.text for token in tokens_of(text))


def grams_of(tokens: Gram, size: int) -> Iterator[Gram]:
    """Every run of `size` tokens."""
    return (tokens[start : start + size] for start in range(len(tokens) - size + 1))


def shared_by_items(items: Iterable[Item], size: int, most: int) -> set[Gram]:
    """Grams in more than so many items; items of equal text count once."""
    distinct = {item.tokens for item in items}
    counts = Counter(gram for tokens in distinct for gram in set(grams_of(tokens, size)))
    return {gram for gram, count in counts.items() if count > most}


def holds(text: Gram, part: Gram) -> bool:
    """Whether a run of tokens, at least one, stands in a text."""
    return bool(part) and any(text[start : start + len(part)] == part for start in range(len(text) - len(part) + 1))


def stands_alone(text: str, tokens: Sequence[Token], start: int, end: int) -> bool:
    """Whether the tokens from `start` to `end` are a sentence or clause of their own."""
    before = text[tokens[start - 1].end : tokens[start].start] if start else "\n"
    after = text[tokens[end - 1].end : tokens[end].start] if end < len(tokens) else "\n"
    return any(c in START_MARKS for c in before) and any(c in END_MARKS for c in after)


def aligned(item: Gram, window: Gram) -> dict[int, int]:
    """Positions of an item's tokens to their places in a window."""
    blocks = SequenceMatcher(None, item, window, autojunk=False).get_matching_blocks()
    return {b.a + i: b.b + i for b in blocks if b.size >= MIN_BLOCK for i in range(b.size)}


def facts_agree(item: Gram, window: Gram, pairs: Mapping[int, int]) -> bool:
    """Whether numbers, symbols and names in code between the ends of what was found are the same, and no word that
    turns a question round was exchanged for another. A formula that is found in part counts to its end.
    """
    ours = whole_formulas(item, min(pairs), max(pairs))
    theirs = whole_formulas(window, pairs[min(pairs)], pairs[max(pairs)])
    if Counter(item[i] for i in ours if is_fact(item, i)) != Counter(window[i] for i in theirs if is_fact(window, i)):
        return False
    mine = Counter(item[i] for i in ours if item[i] in POLARITY)
    other = Counter(window[i] for i in theirs if window[i] in POLARITY)
    return not (mine - other and other - mine)


def whole_formulas(tokens: Gram, first: int, last: int) -> range:
    """Places from `first` to `last`, and on over the numbers and operators that one at an end belongs to.

    Brackets end it: `2)` in front of a text is the number of a list.
    """
    while first > 0 and is_symbol(tokens[first]) and is_symbol(tokens[first - 1]) and tokens[first - 1] not in "()":
        first -= 1
    while last + 1 < len(tokens) and is_symbol(tokens[last]) and is_symbol(tokens[last + 1]):
        last += 1
    return range(first, last + 1)


def is_fact(tokens: Sequence[str], place: int) -> bool:
    """Whether a token is a number, a symbol, or a name in code."""
    return is_symbol(tokens[place]) or "_" in tokens[place] or tokens[place + 1 : place + 2] == ("(",)


def is_symbol(token: str) -> bool:
    """Whether a token is a number or a symbol."""
    return not (token[0].isalpha() or token[0] == "_")


def count_words(tokens: Sequence[str]) -> int:
    """Tokens that are words."""
    return sum(not is_symbol(token) for token in tokens)
