"""Values as the driver sends them: JSON for None, booleans, integers and text, [mark, content] for the rest."""

from typing import Any

Value = Any
"""None, bool, int, float, str, bytes, and lists, tuples, sets and dicts of them."""

MAX_KEYS = 20_000
"""Keys of a dict or elements of a set: integers of equal hashes can be chosen, which take squared time."""


def decode(data: object) -> Value:
    """The value that the driver encoded. Raises ValueError for anything that it cannot have written."""
    if data is None or isinstance(data, bool | int | str):
        return data
    if not isinstance(data, list) or len(data) != 2 or not isinstance(data[0], str):
        raise ValueError("no encoded value")
    mark, content = data
    if isinstance(content, str):
        if mark in ("f", "i", "b"):
            return float(content) if mark == "f" else int(content, 16) if mark == "i" else bytes.fromhex(content)
        raise ValueError("no encoded value")
    if not isinstance(content, list) or (mark in ("d", "s") and len(content) > MAX_KEYS):
        raise ValueError("no encoded value")
    try:
        if mark == "d":
            return {decode(key): decode(value) for key, value in content}
        return {"l": list, "t": tuple, "s": frozenset}[mark](decode(part) for part in content)
    except (TypeError, KeyError) as error:
        raise ValueError(f"no encoded value ({error})") from None


def show(data: Any) -> str:  # noqa: ANN401 - any JSON value
    """An encoded value as Python would print it, in the order it was sent in."""
    if not isinstance(data, list):
        return repr(data)
    mark, content = data
    if mark == "d":
        return "{" + ", ".join(f"{show(key)}: {show(value)}" for key, value in content) + "}"
    if isinstance(content, list):
        around = {"l": "[]", "t": "()", "s": "{}"}[mark]
        return around[0] + ", ".join(map(show, content)) + around[1]
    return f"0x{content}" if mark == "i" else repr(decode(data))
