"""Read plain numbers exactly: integers, decimals, fractions, mixed numbers, repeating decimals, powers of ten.

read_number(r"\\$1,234.50") -> Number(Fraction(2469, 2), "\\usd")     read_number("3 1/2 cups") -> Number(7/2, "cups")
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from pipeline.verify.math.notation import plain

MAX_DIGITS = 400
"""Digits of a part, and the largest power of ten: beyond them exact arithmetic gets slow."""

_DIGITS = r"(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?:[ ]\d{3})+|\d+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
_SIGNED = rf"\s*[-+]?\s*{_DECIMAL}\s*"
_TEX_FRACTION = rf"\\frac\s*\{{({_SIGNED})\}}\s*\{{({_SIGNED})\}}"
_TEN = r"10\s*\^\s*\{?\s*(?P<%s>[-+]?\s*\d+)\s*\}?"
_UNIT = r"(?P<unit>\\?%|\\(?:degree|usd|eur|gbp)(?:\s*[CFK])?|[^\W\d_](?:[^\W\d_]|[\s/.]|\\cdot|\^\{?-?\d\}?){0,60})?"
_NUMBER = re.compile(
    rf"""(?P<sign>[-+])?\s*(?P<money>\\(?:usd|eur|gbp)\s*)?(?P<sign2>-)?(?:
        (?:(?P<whole>\d+)\s*)?{_TEX_FRACTION}
        | (?P<mixed>\d+)\s+(?P<mixed_top>\d+)\s*/\s*(?P<mixed_bottom>\d+)
        | (?P<top>{_DECIMAL})\s*/\s*(?P<bottom>-?{_DECIMAL})
        | (?P<start>\d*\.\d*)\\(?:overline|bar|dot)\s*\{{\s*(?P<period>\d+)\s*\}}
        | {_TEN % "ten"}
        | (?P<decimal>{_DECIMAL})(?:[eE](?P<exponent>[-+]?\d+)|\s*(?:\\cdot|[*x])\s*{_TEN % "power"})?
    )(?P<gap>\s*)(?:{_UNIT})""",
    re.VERBOSE,
)
_ATTACHED = frozenset(
    re.findall(r"\w+", "mm cm dm km mg kg ml mL am pm min hr hrs ft in lb oz mph kmh kJ kW Hz kHz pct")
)
_SINGLE = frozenset("mgslhLVWJNK")
_NO_UNITS = frozenset(
    re.findall(
        r"\w+",
        "pi ln log lg exp sin cos tan sqrt or and to mod e i is are was were be not no but if when where while the "
        "a an than more less at from plus minus times over by cannot maybe half x y z n k since because so which",
    )
)
"""Words that make a text behind a number something else than its unit."""
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
MAX_UNIT_WORDS, MAX_UNIT_CHARS = 4, 60


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number and the unit written at it, as written."""

    value: Fraction
    unit: str


def read_number(text: str) -> Number | None:
    """The number that a text is, or None when it is anything else (an expression, prose, several numbers)."""
    if len(text) > 2 * MAX_DIGITS:
        return None
    text = plain(text)
    if re.fullmatch(r"\([^(),;]*\)", text):
        text = text[1:-1].strip()
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    try:
        value = _value(found)
    except (ValueError, ZeroDivisionError):
        return None
    unit = (found["unit"] or "").strip()
    first, _, rest = unit.partition(" ")
    if first in _SCALES:
        value, unit = value * _SCALES[first], rest.strip()
    if found["money"] and unit:
        return None
    if not is_unit(unit, attached=not found["gap"]):
        return None
    negative = (found["sign"] == "-") != bool(found["sign2"])
    return Number(-value if negative else value, (found["money"] or unit).strip())


def is_unit(text: str, attached: bool) -> bool:
    """Whether letters behind a number are a unit and not variables: `5 m` and `5cm` are, `2x`, `2ab` and `2 pi` not."""
    if not text or re.fullmatch(r"\\?%|\\(?:degree|usd|eur|gbp)(?:\s*[CFK])?", text):
        return True
    if len(text) > MAX_UNIT_CHARS or not re.fullmatch(r"[^\W\d_]+(?:(?:[ /.]|\\cdot ?|\^\{?-?\d\}?)[^\W\d_]*)*", text):
        return False
    words = re.findall(r"[^\W\d_]+", re.sub(r"\\\w+", " ", text))
    if len(words) > MAX_UNIT_WORDS or _NO_UNITS & set(words) or (len(words[0]) == 1 and words[0] not in _SINGLE):
        return False
    return not attached or words[0] in _ATTACHED


def _value(found: re.Match[str]) -> Fraction:
    top, bottom = found[5], found[6]
    if top:
        part = _decimal(top) / _decimal(bottom)
        if found["whole"] and (part < 0 or part >= 1):
            raise ValueError("a product, not a mixed number")
        return Fraction(int(found["whole"] or 0)) + part
    if found["mixed"]:
        return int(found["mixed"]) + Fraction(int(found["mixed_top"]), int(found["mixed_bottom"]))
    if found["top"]:
        return _decimal(found["top"]) / _decimal(found["bottom"])
    if found["period"]:
        start = found["start"] if found["start"] != "." else "0."
        digits, period = len(start.partition(".")[2]), found["period"]
        return Fraction(start) + Fraction(int(period), (10 ** len(period) - 1) * 10**digits)
    if found["ten"]:
        return _power_of_ten(found["ten"])
    return _decimal(found["decimal"]) * _power_of_ten(found["exponent"] or found["power"] or "0")


def _power_of_ten(exponent: str) -> Fraction:
    power = int(exponent.replace(" ", ""))
    if abs(power) > MAX_DIGITS:
        raise ValueError("too large for exact arithmetic")
    return Fraction(10) ** power


def _decimal(text: str) -> Fraction:
    return Fraction(re.sub(r"[\s,]", "", text).rstrip("."))
