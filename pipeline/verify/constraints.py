"""What an answer's form can be asked to be; each constraint says what it found and whether that will do.

Every check reads the text once or a fixed number of times, without a backtracking pattern.
"""

import json
import re
from typing import Annotated, Literal, NoReturn, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Found: TypeAlias = tuple[bool, int | str]
"""Whether a constraint holds, and what was found: a count, or a short text."""
Text: TypeAlias = Annotated[str, Field(pattern=r"\S", max_length=500)]
Relation: TypeAlias = Literal["exactly", "at_least", "at_most"]

_ABBREVIATIONS = frozenset(
    ("mr", "mrs", "ms", "dr", "prof", "st", "vs", "etc", "e.g", "i.e", "a.m", "p.m", "u.s", "jr")
)
_OPENING, _CLOSING = "\"'([*_«\u201c\u2018", "\"')]*_»\u201d\u2019"
_BULLETS = ("- ", "* ", "+ ", "• ")
_COMMAS = ",\uff0c\u3001\u060c"
"""The comma and its full-width, ideographic and Arabic forms."""


class _Constraint(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class MaxWords(_Constraint):
    """At most n words; a dash or a bullet is no word."""

    type: Literal["max_words"]
    n: int = Field(ge=1)

    def check(self, text: str) -> Found:
        """Count words."""
        count = count_words(text)
        return count <= self.n, count


class MinWords(_Constraint):
    """At least n words."""

    type: Literal["min_words"]
    n: int = Field(ge=1)

    def check(self, text: str) -> Found:
        """Count words."""
        count = count_words(text)
        return count >= self.n, count


class Contains(_Constraint):
    """The text occurs, in any case of letters."""

    type: Literal["contains"]
    text: Text

    def check(self, text: str) -> Found:
        """Look for the text."""
        held = self.text.casefold() in text.casefold()
        return held, "there" if held else "absent"


class StartsWith(_Constraint):
    """The answer begins with the text, as whole words, in any case of letters."""

    type: Literal["starts_with"]
    text: Text

    def check(self, text: str) -> Found:
        """Compare the beginning."""
        folded, wanted = text.strip().casefold(), self.text.strip().casefold()
        held = folded.startswith(wanted) and not _inside_a_word(folded, len(wanted))
        return held, text.strip()[: len(self.text) + 20]


class EndsWith(_Constraint):
    """The answer ends with the text, as whole words, in any case of letters."""

    type: Literal["ends_with"]
    text: Text

    def check(self, text: str) -> Found:
        """Compare the end."""
        folded, wanted = text.strip().casefold(), self.text.strip().casefold()
        held = folded.endswith(wanted) and not _inside_a_word(folded, len(folded) - len(wanted))
        return held, text.strip()[-len(self.text) - 20 :]


class AllLowercase(_Constraint):
    """Letters, and none of them a capital."""

    type: Literal["all_lowercase"]

    def check(self, text: str) -> Found:
        """Look for capitals."""
        capitals = sum(char.isupper() or char.istitle() for char in text)
        return capitals == 0 and any(char.islower() for char in text), capitals


class NoCommas(_Constraint):
    """No comma of any script."""

    type: Literal["no_commas"]

    def check(self, text: str) -> Found:
        """Count commas."""
        count = sum(map(text.count, _COMMAS))
        return count == 0, count


class ForbiddenWords(_Constraint):
    """None of the words occurs as a whole word, in any case of letters."""

    type: Literal["forbidden_words"]
    words: list[Annotated[str, Field(pattern=r"^\w+$", max_length=100)]] = Field(min_length=1)

    def check(self, text: str) -> Found:
        """Look for the words."""
        used = {word.casefold() for word in self.words} & set(re.findall(r"\w+", text.casefold()))
        return not used, ", ".join(sorted(used))[:100]


class _Counted(_Constraint):
    n: int = Field(ge=1)
    relation: Relation = "exactly"

    def compare(self, count: int) -> Found:
        """Whether a count is the one asked for."""
        held = {"exactly": count == self.n, "at_least": count >= self.n, "at_most": count <= self.n}[self.relation]
        return held, count


class NumSentences(_Counted):
    """So many sentences."""

    type: Literal["num_sentences"]

    def check(self, text: str) -> Found:
        """Count sentences."""
        return self.compare(count_sentences(text))


class NumBullets(_Counted):
    """So many lines that begin with -, *, + or a dot; numbered lines are no bullets."""

    type: Literal["num_bullets"]

    def check(self, text: str) -> Found:
        """Count bullets."""
        return self.compare(sum(map(_is_bullet, text.splitlines())))


class NumParagraphs(_Counted):
    """So many blocks of text between blank lines."""

    type: Literal["num_paragraphs"]

    def check(self, text: str) -> Found:
        """Count paragraphs."""
        return self.compare(len(paragraphs(text)))


class JsonObject(_Constraint):
    """The answer is one JSON object, bare or in one code fence, with at least these keys."""

    type: Literal["json_object"]
    keys: list[str] = Field(default_factory=list)

    def check(self, text: str) -> Found:
        """Parse the answer."""
        try:
            value = json.loads(_without_fence(text), parse_constant=_refuse)
        except (ValueError, RecursionError):
            return False, "no JSON"
        if not isinstance(value, dict):
            return False, f"a JSON {type(value).__name__}"
        lacking = [key for key in self.keys if key not in value]
        return not lacking, f"lacks {', '.join(lacking)}"[:100] if lacking else "an object"


Constraint: TypeAlias = Annotated[
    MaxWords
    | MinWords
    | Contains
    | StartsWith
    | EndsWith
    | AllLowercase
    | NoCommas
    | ForbiddenWords
    | NumSentences
    | NumBullets
    | NumParagraphs
    | JsonObject,
    Field(discriminator="type"),
]
"""A constraint of any type, told apart by `type`."""


def count_words(text: str) -> int:
    """Runs without white space that hold a letter or digit."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def paragraphs(text: str) -> list[list[str]]:
    """Lines between blank lines."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if not line.strip():
            inside = False
        elif inside:
            found[-1].append(line)
        else:
            found.append([line])
            inside = True
    return found


def count_sentences(text: str) -> int:
    """Runs of words up to a `.`, `!` or `?` before white space; a blank line and a bullet end one as well.

    A decimal point, a common abbreviation, an initial and the number in front of a line end none.
    """
    count, words_since = 0, 0
    for lines in paragraphs(text):
        for line in lines:
            if _is_bullet(line):
                count, words_since = count + bool(words_since), 0
            for position, word in enumerate(line.split()):
                if position == 0 and word[:-1].isdecimal() and word[-1] in ".)":
                    continue  # the number of an item
                words_since += any(map(str.isalnum, word))
                if words_since and _ends_sentence(word):
                    count, words_since = count + 1, 0
        count, words_since = count + bool(words_since), 0
    return count


def _ends_sentence(word: str) -> bool:
    bare = word.rstrip(_CLOSING)
    if not bare.endswith((".", "!", "?", "…")):
        return False
    stem = bare.rstrip(".").lstrip(_OPENING)
    initial = len(stem) == 1 and stem.isupper() and stem != "I"
    return not (bare.endswith(".") and (initial or stem.casefold() in _ABBREVIATIONS))


def _is_bullet(line: str) -> bool:
    bare = line.strip()
    return bare.startswith(_BULLETS) and count_words(bare[2:]) > 0


def _inside_a_word(text: str, position: int) -> bool:
    return 0 < position < len(text) and text[position - 1].isalnum() and text[position].isalnum()


def _without_fence(text: str) -> str:
    lines = text.strip().splitlines()
    if len(lines) >= 2 and lines[0].strip() in ("```", "```json") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
