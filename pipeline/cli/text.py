"""Text of models, hubs and files on a terminal: control characters escaped, long text cut."""

import unicodedata

_KEPT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def escaped(text: str) -> str:
    """One line in which nothing can move the cursor, change colours or reorder text."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _KEPT.get(char) or (ascii(char)[1:-1] if unicodedata.category(char) in _INVISIBLE else char) for char in text
    )


def cut(text: str, width: int) -> str:
    """The escaped text, or its beginning and how much is left out."""
    if len(text) <= width:
        return escaped(text)
    return f"{escaped(text[:width])}... ({len(text) - width} more characters)"


def size(num_bytes: int) -> str:
    """Bytes for people: 812 B, 4.1 MB."""
    amount = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError
