"""Choose which prompt groups and which responses stay.

Groups are taken best first, and one is dropped only for a better one that stays and that was compared with it word by
word. So no chain of likenesses removes texts that are unlike, and the result depends on content alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.curate.meaning import jaccard, same_question, shingles_of, words_of

MAX_COMPARED = 32
"""Kept groups that one group is compared with at most, those sharing most bands first."""
MAX_BUCKET = 256
"""Kept groups that a band remembers at most: a template shared by thousands would cost thousands of looks each."""


@dataclass(frozen=True, slots=True)
class Row:
    """What the choice knows of one trace."""

    trace_id: str
    prompt_id: str
    question: str
    """Text of the user's turns."""
    answer_id: str
    """Id of the normalised response."""
    bands: tuple[bytes, ...]
    passed: bool
    pass_rate: float | None
    length: int
    """Characters of the response."""

    def rank(self) -> tuple[Any, ...]:
        """Best first: verified, higher pass rate, longer, then by id."""
        return (not self.passed, -(self.pass_rate or 0.0), -self.length, self.trace_id, self.question)


@dataclass(frozen=True, slots=True)
class Dropped:
    """Why a row does not stay, and for which one that does."""

    reason: str
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """The surviving responses of one prompt, best first."""

    prompt_id: str
    rows: tuple[int, ...]
    best: Row

    def rank(self) -> tuple[Any, ...]:
        """Best first: verified, higher pass rate, longer question, then by id."""
        return (not self.best.passed, -(self.best.pass_rate or 0.0), -len(self.best.question), self.prompt_id)


def choose_rows(rows: Sequence[Row], threshold: float, shingle_words: int) -> dict[int, Dropped]:
    """Indices of the rows that go, each with its evidence."""
    dropped: dict[int, Dropped] = {}
    groups = [make_group(rows, members, dropped) for members in _by_prompt(rows).values()]
    for group, reason, evidence in similar_groups(groups, threshold, shingle_words):
        dropped.update({index: Dropped(reason, evidence) for index in group.rows})
    return dropped


def _by_prompt(rows: Sequence[Row]) -> Mapping[str, list[int]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.prompt_id].append(index)
    return groups


def make_group(rows: Sequence[Row], members: list[int], dropped: dict[int, Dropped]) -> Group:
    """The members of one prompt whose responses differ; repeats are added to `dropped`."""
    kept: dict[str, int] = {}
    for index in sorted(members, key=lambda i: rows[i].rank()):
        answer = rows[index].answer_id
        if answer in kept:
            dropped[index] = Dropped("same_response", {"kept": rows[kept[answer]].trace_id})
        else:
            kept[answer] = index
    best = next(iter(kept.values()))
    return Group(rows[best].prompt_id, tuple(kept.values()), rows[best])


def similar_groups(
    groups: Iterable[Group], threshold: float, shingle_words: int
) -> Iterable[tuple[Group, str, dict[str, Any]]]:
    """Groups that ask what a better one asks."""
    kept: list[Group] = []
    buckets: dict[bytes, list[int]] = defaultdict(list)
    for group in sorted(groups, key=Group.rank):
        shared = Counter(index for band in group.best.bands for index in buckets.get(band, ()))
        nearest = sorted(shared, key=lambda index: (-shared[index], index))[:MAX_COMPARED]
        found = _first_copy(group, [kept[index] for index in nearest], threshold, shingle_words)
        if found is not None:
            yield (group, *found)
            continue
        for band in group.best.bands:
            if len(buckets[band]) < MAX_BUCKET:
                buckets[band].append(len(kept))
        kept.append(group)


def _first_copy(
    group: Group, others: Sequence[Group], threshold: float, shingle_words: int
) -> tuple[str, dict[str, Any]] | None:
    words = words_of(group.best.question)
    shingles = shingles_of(words, shingle_words)
    for other in others:
        other_words = words_of(other.best.question)
        similarity = jaccard(shingles, shingles_of(other_words, shingle_words))
        if similarity >= threshold and same_question(group.best.question, other.best.question):
            reason = "same_prompt" if words == other_words else "similar_prompt"
            return reason, {"kept": other.prompt_id, "jaccard": round(similarity, 4), "trace": other.best.trace_id}
    return None
