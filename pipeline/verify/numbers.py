"""Read plain numbers exactly: integers, decimals, fractions, mixed numbers, powers of ten, with a unit behind.

read_number(r"\\$1,234.50") -> Number(Fraction(2469, 2), "")      read_number("3 1/2 cups") -> Number(7/2, "cups")
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 400
"""Digits of a part, and the largest power of ten: beyond them exact arithmetic gets slow."""

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_TEX_FRACTION = r"\\[dt]?frac\s*(?:\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d)\s*(\d))"
_UNIT = r"(?P<unit>\\?%|\\circ|°|[^\W\d_]+(?:[ /][^\W\d_]+){0,2}(?:\^?[23])?)?"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+])?\s*(?:
        (?P<whole>\d+)?\s*{_TEX_FRACTION}
        | (?P<mixed>\d+)\s+(?P<mixed_top>\d+)\s*/\s*(?P<mixed_bottom>\d+)
        | (?P<top>{_DECIMAL})\s*/\s*(?P<bottom>{_DECIMAL})
        | (?P<decimal>{_DECIMAL})(?:[eE](?P<exponent>[-+]?\d+)
            |\s*(?:\\times|\\cdot|\u00d7|\*)\s*10\s*(?:\^|\*\*)\s*\{{?(?P<power>[-+]?\d+)\}}?)?
    )(?P<gap>\s*){_UNIT}""",
    re.VERBOSE,
)
_WRAPPERS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|rm)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"\\[,;:! ]|~|\\(?:left|right|displaystyle|quad)(?![a-zA-Z])|\{,\}")
_ATTACHED = frozenset(
    {
        "mm",
        "cm",
        "dm",
        "km",
        "mg",
        "kg",
        "ml",
        "mL",
        "am",
        "pm",
        "min",
        "hr",
        "hrs",
        "ft",
        "in",
        "lb",
        "oz",
        "mph",
        "th",
        "st",
        "nd",
        "rd",
    }
)
_FUNCTIONS = frozenset({"pi", "ln", "log", "lg", "exp", "sin", "cos", "tan", "sqrt", "or", "and", "to", "mod"})


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number and the unit written behind it."""

    value: Fraction
    unit: str


def tidy(text: str) -> str:
    """An expression without math delimiters, spacing commands, text wrappers and emphasis marks."""
    text = text.replace("\u2212", "-").replace("**", "^" if "^" in text else "**").strip()
    text = _SPACES.sub(lambda m: "," if m[0] == "{,}" else " ", text)
    text = re.sub(r"\\[()\[\]]", " ", text).replace("\\$", "$").replace("$", " ")
    text = _WRAPPERS.sub(r" \1", text)
    text = re.sub(r"\s+", " ", text).strip()
    if re.fullmatch(r"([*_`<]+)(.*?)([*_`>]+)", text):
        text = text.strip("*_`<>")
    return text.strip().rstrip(".").strip()


def read_number(text: str) -> Number | None:
    """The number that a text is, or None when it is anything else (an expression, prose, several numbers)."""
    if len(text) > 2 * MAX_DIGITS:
        return None
    text = tidy(text).lstrip("€£").replace("^{\\circ}", "°").replace("^\\circ", "°")
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    try:
        value = _value(found)
    except (ValueError, ZeroDivisionError):
        return None
    unit = " ".join((found["unit"] or "").split()).lstrip("\\")
    if not _is_unit(unit, attached=not found["gap"]):
        return None
    return Number(-value if found["sign"] == "-" else value, unit)


def _is_unit(text: str, attached: bool) -> bool:
    """Whether letters behind a number are a unit and not variables: `5 m` and `5cm` are, `2x`, `2ab` and `2 pi` not."""
    if not text or not text[0].isalpha():
        return True
    if text in _FUNCTIONS or (len(text) == 1 and text not in "mgslhLVWJN"):
        return False
    return not attached or text.rstrip("^23") in _ATTACHED


def _value(found: re.Match[str]) -> Fraction:
    top, bottom = found[3] or found[5], found[4] or found[6]
    if top:
        return Fraction(int(found["whole"] or 0)) + Fraction(int(top), int(bottom))
    if found["mixed"]:
        return int(found["mixed"]) + Fraction(int(found["mixed_top"]), int(found["mixed_bottom"]))
    if found["top"]:
        return _decimal(found["top"]) / _decimal(found["bottom"])
    exponent = int(found["exponent"] or found["power"] or 0)
    if abs(exponent) > MAX_DIGITS:
        raise ValueError("too large for exact arithmetic")
    return _decimal(found["decimal"]) * Fraction(10) ** exponent


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").rstrip("."))
