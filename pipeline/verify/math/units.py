"""Units of measure: which of two are of one kind, and the exact factor between them.

read_unit("km/h") -> Unit({"m": 1, "s": -1}, Fraction(5, 18))

A word that is no known unit is a kind of its own: 5 apples are not 5 pears. Temperatures are never converted, since
their scales do not share a zero.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_PREFIXES = {"k": 3, "kilo": 3, "c": -2, "centi": -2, "m": -3, "milli": -3, "d": -1, "deci": -1, "mega": 6, "M": 6}
_PREFIXES |= {"micro": -6, "nano": -9, "n": -9, "giga": 9, "G": 9}
# base unit: (kind, factor, symbols that take short prefixes, names that take long ones)
_SCALED: list[tuple[str, Fraction, tuple[str, ...], tuple[str, ...]]] = [
    ("m", Fraction(1), ("m",), ("meter", "metre")),
    ("g", Fraction(1), ("g",), ("gram", "gramme")),
    ("l", Fraction(1), ("l", "L"), ("liter", "litre")),
    ("J", Fraction(1), ("J",), ("joule",)),
    ("W", Fraction(1), ("W",), ("watt",)),
    ("N", Fraction(1), ("N",), ("newton",)),
    ("V", Fraction(1), ("V",), ("volt",)),
    ("A", Fraction(1), ("A",), ("ampere", "amp")),
    ("Pa", Fraction(1), ("Pa",), ("pascal",)),
    ("Hz", Fraction(1), ("Hz",), ("hertz",)),
    ("mol", Fraction(1), ("mol",), ("mole",)),
    ("s", Fraction(1), ("s",), ("second",)),
]
_NAMED: dict[str, list[tuple[int | str, str]]] = {
    "s": [(1, "sec secs seconds"), (60, "min mins minute minutes"), (3600, "h hr hrs hour hours"),
          (86400, "d day days"), (604800, "week weeks")],
    "month": [(1, "month months"), (12, "year years yr yrs")],
    "m": [("0.0254", "in inch inches"), ("0.3048", "ft foot feet"), ("0.9144", "yd yard yards"),
          ("1609.344", "mi mile miles")],
    "g": [("453.59237", "lb lbs pound pounds"), ("28.349523125", "oz ounce ounces"),
          (1000000, "t tonne tonnes")],
    "usd": [(1, r"\usd dollar dollars usd US\usd"), ("0.01", "cent cents \u00a2")],
    "eur": [(1, r"\eur euro euros eur")],
    "gbp": [(1, r"\gbp gbp"), ("0.01", "pence")],
    "degree": [(1, r"\degree deg degs degree degrees")],
    "rad": [(1, "rad rads radian radians")],
    "celsius": [(1, r"\degree_C celsius centigrade")],
    "fahrenheit": [(1, r"\degree_F fahrenheit")],
    "kelvin": [(1, "K kelvin kelvins")],
    "unit": [(1, "unit units")],
    "percent": [(1, r"% \% pct percent percents percentage percentages")],
}  # fmt: skip
_SHORT = frozenset(
    re.findall(
        r"\w+", "km cm mm dm nm kg mg cl dl ml mL kJ MJ kW MW GW mW kN kV mV mA kPa hPa MPa kHz MHz GHz ms ns mmol"
    )
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Exponents of the base kinds, sorted by name, and the factor to the product of the base units."""

    kinds: tuple[tuple[str, int], ...]
    factor: Fraction

    @property
    def is_percent(self) -> bool:
        """Whether it is the percent sign or its name."""
        return self.kinds == (("percent", 1),)


NO_UNIT = Unit((), Fraction(1))


def _table() -> dict[str, tuple[str, Fraction]]:
    found = {name: (kind, Fraction(factor)) for kind, rows in _NAMED.items() for factor, names in rows
             for name in names.split()}  # fmt: skip
    for kind, factor, symbols, names in _SCALED:
        spelled = [*symbols, *names, *(f"{name}s" for name in names)]
        found |= dict.fromkeys(spelled, (kind, factor))
        for prefix, power in _PREFIXES.items():
            scaled = (kind, factor * Fraction(10) ** power)
            if len(prefix) > 1:
                found |= {prefix + name: scaled for name in spelled if name not in symbols}
            else:
                found |= {prefix + name: scaled for name in symbols if prefix + name in _SHORT}
    return found


_UNITS = _table()
_SHORTHAND = {"mph": "mi/h", "kmh": "km/h", "kph": "km/h", "km/hr": "km/h", "fps": "ft/s", "cc": "cm^3"}
_TOKEN = re.compile(
    r"\\?[A-Za-z\u00a2%]+(?:_[CF])?|\\%|/|\^\s*\{?\s*(-?\d)\s*\}?|[^\W\d_]+|(?:\\cdot|[.\s])+", re.UNICODE
)


def known(text: str) -> bool:
    """Whether every word of a unit is one of the table."""
    return all(word in _UNITS or word.lower() in _UNITS for word in _words(text) if not word.startswith(("/", "^")))


def read_unit(text: str) -> Unit:
    """The unit that a text names; words that are no known unit are kinds of their own, in the singular."""
    kinds: dict[str, int] = {}
    factor, sign, power = Fraction(1), 1, 1
    words = _words(text)
    for index, word in enumerate(words):
        if word == "/":
            sign = -1
            continue
        if word.startswith("^"):
            continue
        follower = words[index + 1] if index + 1 < len(words) else ""
        power = sign * (int(follower[1:]) if follower.startswith("^") else 1)
        kind, scale = _UNITS.get(word) or _UNITS.get(word.lower()) or (_singular(word), Fraction(1))
        kinds[kind] = kinds.get(kind, 0) + power
        factor *= scale**power
    return Unit(tuple(sorted((kind, n) for kind, n in kinds.items() if n)), factor)


def _words(text: str) -> list[str]:
    """Words, `/` and `^n`, with names such as `square metres per second` written as symbols."""
    text = re.sub(r"\\degree\s*([CF])\b", r"\\degree_\1", text.strip())
    text = re.sub(r"\bdegrees?\s+(celsius|centigrade|fahrenheit)\b", r"\1", text, flags=re.IGNORECASE)
    text = re.sub(r"\b(?:square|sq\.?)\s+([a-z]+)", r"\1^2", text, flags=re.IGNORECASE)
    text = re.sub(r"\b(?:cubic|cu\.?)\s+([a-z]+)", r"\1^3", text, flags=re.IGNORECASE)
    text = re.sub(r"\b([a-z]+)\s+squared\b", r"\1^2", text, flags=re.IGNORECASE)
    text = re.sub(r"\b([a-z]+)\s+cubed\b", r"\1^3", text, flags=re.IGNORECASE)
    text = re.sub(r"\bper\b", "/", text)
    text = " ".join(_SHORTHAND.get(word, word) for word in text.split())
    words = []
    for found in _TOKEN.finditer(text):
        if found[1]:
            words.append(f"^{found[1]}")
        elif found[0].strip(" .") and found[0].strip() != r"\cdot":
            words.append(found[0])
    return words


def _singular(word: str) -> str:
    word = word.lower()
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
