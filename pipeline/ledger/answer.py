"""One paid-for answer of a model, and when it may be used again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from pipeline.records import canonical_json

CUT = "length"
TOO_LONG = "prompt_too_long"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered to one request."""

    text: str
    """Raw text, with the stop marker where the server keeps it."""
    finish_reason: str
    """`stop`, `length`, or `prompt_too_long` for a prompt that the model cannot take."""
    reasoning: str | None
    """Thinking that the server already split off; null where the text is raw."""
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    """Token limit that it was asked with."""
    seed: int
    tool_calls: list[dict[str, Any]] | None = None
    """Calls that the server already parsed; null where the text is raw."""
    token_ids: list[int] | None = None
    """The sampled tokens, where they were asked for."""

    def to_record(self, key: bytes, settings: int) -> bytes:
        """The record of the ledger: key, number of the key fields, and what is not absent of the answer."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        present = {name: value for name, value in fields.items() if value is not None}
        return encode({"key": key.hex(), "settings": settings, "answer": present})

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Answer":
        """The answer of a line."""
        return cls(**{"reasoning": None, **record["answer"]})


def encode(record: Mapping[str, Any]) -> bytes:
    """JSON of a record with sorted keys. Half of a surrogate pair, which is no UTF-8, is kept as Python's own bytes."""
    try:
        return orjson.dumps(record, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return canonical_json(record).encode(errors="surrogatepass")


def decode(body: bytes) -> dict[str, Any]:
    """The inverse of `encode`."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = json.loads(body.decode(errors="surrogatepass"))
    assert isinstance(value, dict)
    return value


class Stored(NamedTuple):
    """What the index knows of an answer without reading its text. A tuple: a million are made when a run resumes."""

    max_tokens: int
    finish_reason: str
    num_output_tokens: int
    segment: int
    offset: int
    length: int

    def fits(self, max_tokens: int) -> bool:
        """Whether this is what a request with that limit would have given.

        Finished within it; cut by the same one; or a prompt that was too long beside a limit that was no larger.
        """
        if self.finish_reason == CUT:
            return self.max_tokens == max_tokens
        if self.finish_reason == TOO_LONG:
            return self.max_tokens <= max_tokens
        return self.num_output_tokens <= max_tokens


def choose(stored: Sequence[Stored], limits: tuple[int, ...]) -> tuple[Stored | None, int]:
    """The answer to use under growing token limits, or None with the limit to ask with.

    A limit after the first is tried only where the answer under the one before was cut.
    """
    found: Stored | None = None
    for limit in limits:
        found = next((one for one in sorted(stored, key=lambda s: s.max_tokens) if one.fits(limit)), None)
        if found is None or found.finish_reason != CUT:
            return found, limit
    return found, limits[-1]
