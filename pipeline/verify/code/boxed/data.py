"""Values on their way out of an untrusted process, as JSON that `pipeline.verify.code.values` reads outside."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # each import counts: they are half of a box's time
    from typing import Any

    Outcome = dict[str, Any]

KINDS: tuple[tuple[str, Any], ...] = (("l", list), ("t", tuple), ("s", set), ("s", frozenset))
"""Marks of the collections that are sent as lists."""


class Refused(BaseException):
    """Why a test cannot go on: a status of the driver, and what was found."""


def encode(value: Any) -> Any:  # noqa: ANN401 - any value
    """A value as JSON, by what its base type holds: methods of a subclass are not asked. Raises Refused for others."""
    kind = type(value)
    if value is None or kind is bool or (kind is int and -(2**512) < value < 2**512):
        return value
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, int):
        return ["i", hex(int.__index__(value))]
    if issubclass(kind, float):
        return ["f", float.__repr__(value)]
    if issubclass(kind, bytes):
        return ["b", bytes.hex(value)]
    if issubclass(kind, dict):
        return ["d", [[encode(key), encode(part)] for key, part in dict.items(value)]]
    for mark, base in KINDS:
        if issubclass(kind, base):
            return [mark, [encode(part) for part in base.__iter__(value)]]
    raise Refused("bad_type", kind.__name__)


def decode(data: Any) -> Any:  # noqa: ANN401 - any value
    """The value that was encoded."""
    if not isinstance(data, list):
        return data
    mark, content = data
    if mark == "d":
        return {decode(key): decode(value) for key, value in content}
    if isinstance(content, str):
        return float(content) if mark == "f" else int(content, 16) if mark == "i" else bytes.fromhex(content)
    return {"l": list, "t": tuple, "s": set}[mark](decode(part) for part in content)


def describe(error: BaseException) -> Outcome:
    """What an exception says, without its traceback."""
    if isinstance(error, MemoryError):
        return {"status": "memory_limit"}
    if type(error) is Refused:
        return dict(zip(("status", "error"), error.args, strict=True))
    try:
        text = f"{type(error).__name__}: {error}"[:200]
    except BaseException:  # noqa: BLE001 - an exception of the program may raise when printed
        text = type(error).__name__
    return {"status": "syntax_error" if isinstance(error, SyntaxError) else "raised", "error": text}
