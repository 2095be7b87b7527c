"""When an output is the expected one. Integers are never compared as floats; NaN equals NaN alone, infinity itself.

`exact`            text: equal lines, but for white space at their ends and empty lines at the end
                   value: equal with JSON's types: True is not 1, 1.0 is not 1
`tokens`           text: equal words, or equal numbers where both are numbers: 1.50 is 1.5
                   value: equal as Python's `==` has it: 1.0 is 1
`unordered_lines`  text: the lines in any order; value: the elements of a list in any order

A tuple stands for a list where a list is expected, as JSON has no tuples. With `relative` or `absolute`, `tokens`
allows numbers to differ so far, except two integers. Where a float is expected of a call, a millionth part is allowed
in any case: sums come out differently in another order.
"""

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal, get_args

Name = Literal["exact", "tokens", "unordered_lines"]
NAMES: tuple[str, ...] = get_args(Name)

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-9

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_NAMED_NUMBER = re.compile(r"([+-]?)(nan|inf|infinity)", re.IGNORECASE)
MAX_EXPONENT = 400
"""Decimal exponents of numbers compared with a tolerance; past those of floats, only equal ones are equal."""


@dataclass(frozen=True, slots=True)
class Comparator:
    """A rule by name, and how far numbers may differ under `tokens`."""

    name: Name = "tokens"
    relative: float = 0.0
    absolute: float = 0.0

    @property
    def tolerant(self) -> bool:
        """Whether numbers may differ at all."""
        return bool(self.relative or self.absolute)

    def allows(self, got: Fraction, expected: Fraction) -> bool:
        """Whether two numbers are near enough, computed without rounding."""
        return abs(got - expected) <= max(Fraction(self.relative) * abs(expected), Fraction(self.absolute))


def texts_equal(got: str, expected: str, rule: Comparator) -> bool:
    """Whether a printed text is the expected one."""
    if rule.name == "exact":
        return _lines(got) == _lines(expected)
    if rule.name == "unordered_lines":
        return _bag(got) == _bag(expected)
    ours, theirs = got.split(), expected.split()
    return len(ours) == len(theirs) and all(tokens_equal(a, b, rule) for a, b in zip(ours, theirs, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _bag(text: str) -> Counter[tuple[str | Decimal, ...]]:
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return Counter(tuple(Decimal(token) if _NUMBER.fullmatch(token) else token for token in tokens) for tokens in lines)


def tokens_equal(got: str, expected: str, rule: Comparator) -> bool:
    """Whether two words are equal, as text or as numbers."""
    if got == expected:
        return True
    named = _NAMED_NUMBER.fullmatch(got), _NAMED_NUMBER.fullmatch(expected)
    if named[0] and named[1]:
        return _named(named[0]) == _named(named[1])
    if not _NUMBER.fullmatch(got) or not _NUMBER.fullmatch(expected):
        return False
    ours, theirs = Decimal(got), Decimal(expected)
    if ours == theirs:
        return True
    if not rule.tolerant or (_INTEGER.fullmatch(got) and _INTEGER.fullmatch(expected)):
        return False
    if max(abs(ours.adjusted()), abs(theirs.adjusted())) > MAX_EXPONENT or max(len(got), len(expected)) > 1000:
        return False
    return rule.allows(Fraction(ours), Fraction(theirs))


def _named(found: re.Match[str]) -> tuple[bool, str]:
    """Sign and name of NaN (which has no sign) or infinity."""
    name = found[2].lower()[:3]
    return (found[1] == "-" and name == "inf", name)


def values_equal(got: object, expected: object, rule: Comparator) -> bool:
    """Whether a value of Python's plain types is the expected one."""
    if rule.name == "unordered_lines" and isinstance(expected, list | tuple):
        return isinstance(got, list | tuple) and Counter(map(_key, got)) == Counter(map(_key, expected))
    if isinstance(expected, list):
        return isinstance(got, list | tuple) and _all_equal(got, expected, rule)
    if isinstance(expected, tuple):
        return isinstance(got, tuple) and _all_equal(got, expected, rule)
    if isinstance(expected, dict):
        return isinstance(got, dict) and _dicts_equal(got, expected, rule)
    if isinstance(expected, bool | int | float):
        return isinstance(got, bool | int | float) and _numbers_equal(got, expected, rule)
    if isinstance(expected, set | frozenset):
        return isinstance(got, set | frozenset) and got == expected
    return type(got) is type(expected) and got == expected


def _all_equal(got: Sequence[object], expected: Sequence[object], rule: Comparator) -> bool:
    return len(got) == len(expected) and all(values_equal(a, b, rule) for a, b in zip(got, expected, strict=True))


def _key(value: object) -> Hashable:
    """Something hashable that is equal for equal values."""
    if isinstance(value, list | tuple):
        return ("list", *map(_key, value))
    if isinstance(value, dict):
        return ("dict", frozenset((key, _key(part)) for key, part in value.items()))
    if isinstance(value, bool | str | bytes | set | frozenset):
        return (type(value).__name__, frozenset(value) if isinstance(value, set) else value)
    assert value is None or isinstance(value, int | float)
    return value


def _dicts_equal(got: dict[object, object], expected: dict[object, object], rule: Comparator) -> bool:
    """JSON turns every key into text, so that a key 1 answers where "1" is expected."""
    if len(got) == len(expected) and any(key not in got for key in expected):
        got = {str(key) if type(key) is int else key: value for key, value in got.items()}
    return got.keys() == expected.keys() and all(values_equal(got[key], expected[key], rule) for key in expected)


def _numbers_equal(got: float, expected: float, rule: Comparator) -> bool:
    strict = rule.name == "exact"
    if strict and isinstance(got, bool) is not isinstance(expected, bool):
        return False
    if isinstance(expected, float) and not math.isfinite(expected):
        return isinstance(got, float) and (got == expected or (math.isnan(got) and math.isnan(expected)))
    if isinstance(got, float) and not math.isfinite(got):
        return False
    if isinstance(got, int) and isinstance(expected, int):
        return got == expected
    if isinstance(expected, int):
        return not strict and (got == expected or (rule.tolerant and rule.allows(Fraction(got), Fraction(expected))))
    if not rule.tolerant:
        rule = Comparator("tokens", RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE)
    return rule.allows(Fraction(got), Fraction(expected))
