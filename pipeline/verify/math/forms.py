r"""Read an answer into its form: number, list, set, interval, relation, matrix, words, or an expression left as text.

read_form(r"x \in [0,1)") -> Relation(("\in",), (Expression("x"), Group("[", ")", (Number(0), Number(1)))))

Nothing is evaluated. A text that is no form (brackets that do not close, too deep a nesting) is None.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

from pipeline.verify.math.notation import MAX_DEPTH, balanced, brackets, closing, plain, split_top, without_grouping
from pipeline.verify.math.numbers import MAX_UNIT_CHARS, Number, is_unit, read_number
from pipeline.verify.math.units import known

MAX_ITEMS = 200
"""Most elements of a list that is read: matching sets takes quadratic time."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A formula that exact numbers do not cover, as plain LaTeX, and the unit behind it."""

    text: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """An answer in words, or letters in a row such as the name of a polygon."""

    text: str


@dataclass(frozen=True, slots=True)
class Group:
    """Elements in brackets: a tuple, set, list or interval."""

    opener: str
    closer: str
    items: tuple["Form", ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Elements without brackets; `free` where `or`, `and` or a plus-minus sign joins them, so that none is first."""

    items: tuple["Form", ...]
    free: bool


@dataclass(frozen=True, slots=True)
class Union:
    """A union of sets."""

    parts: tuple["Form", ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A set without another."""

    whole: "Form"
    removed: "Form"


@dataclass(frozen=True, slots=True)
class NamedSet:
    """The empty set, the reals and their like."""

    name: str


@dataclass(frozen=True, slots=True)
class Relation:
    """Sides joined by relation signs, one fewer than sides; the sides as text, since names are read otherwise."""

    signs: tuple[str, ...]
    sides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Parts with colons between them: a ratio or a time."""

    parts: tuple["Form", ...]


@dataclass(frozen=True, slots=True)
class Modular:
    """A residue and its modulus."""

    value: "Form"
    modulus: "Form"


@dataclass(frozen=True, slots=True)
class Based:
    """Digits and the base that they are written in."""

    digits: str
    base: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of entries."""

    rows: tuple[tuple["Form", ...], ...]


Form: TypeAlias = (
    Number
    | Expression
    | Words
    | Group
    | Listing
    | Union
    | Difference
    | NamedSet
    | Relation
    | Ratio
    | Modular
    | Based
    | Matrix
)

_ALTERNATIVES = re.compile(r"(?<![\w\\])(?:or|and)(?![\w])|\\(?:lor|vee|land|wedge)(?![a-zA-Z])|[,;]")
_COMMA = re.compile(r"[,;]")
_SEMICOLON = re.compile(r";")
_RELATION = re.compile(r"\\(?:le|ge|ne|in|approx|equiv|sim|notin|subset|subseteq)(?![a-zA-Z])|[=<>]")
_COLON = re.compile(r":")
_CUP = re.compile(r"\\cup(?![a-zA-Z])")
_MINUS_SET = re.compile(r"\\setminus(?![a-zA-Z])")
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_MODULUS = re.compile(r"(?:\\pmod|\\bmod|\(\s*\\?b?mod|\\?\bmod)\s*\{?\s*(\w+)\s*\}?\s*\)?$")
_BASED = re.compile(
    r"\(?([0-9A-Fa-f]+(?:\.[0-9A-Fa-f]+)?)\)?\s*(?:_\s*(?:\{\s*\(?(\w+)\)?\s*\}|(\d))|\(?(?:in )?base (\w+)\)?)"
)
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
          "ten": "10", "twelve": "12", "sixteen": "16", "bin": "2", "oct": "8", "dec": "10", "hex": "16"}  # fmt: skip
_SETS = {
    r"\emptyset": "empty",
    r"\{\}": "empty",
    r"\{ \}": "empty",
    r"\R": "R",
    **{rf"\mathbb{{{x}}}": x for x in "RZNQC"},
}
_SETS |= {rf"\mathbb {x}": x for x in "RZNQC"} | {r"\{\emptyset\}": "set of the empty set"}
_WORDS = re.compile(r"[^\W\d_][^\W\d_]+(?:[\s'\u2019/.,&-]+[^\W\d_]+)*|[^\W\d_](?:\s+[^\W\d_]{2,})+")
_MATRIX = re.compile(
    r"(.*?)\\begin\s*\{([pbBvV]?(?:small)?matrix|array)\}(?:\s*\{[lcr| ]*\})?(.*)\\end\s*\{\2\}", re.DOTALL
)
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")


def read_form(text: str) -> Form | None:
    """The form of a raw answer or reference, None where its brackets do not close."""
    text = plain(text)
    return read_part(text) if text and balanced(text) and text.count("|") <= MAX_DEPTH else None


def read_part(text: str) -> Form:
    """The form of a part of a plain text whose brackets close."""
    text = text.strip().rstrip(".").strip()
    if name := _SETS.get(text):
        return NamedSet(name)
    if number := read_number(text):
        return number
    return _matrix(text) or _group(text) or _parts(text) or _single(text)


def _group(text: str) -> Form | None:
    """A text that one pair of brackets holds; round ones around a single element mean nothing."""
    found = brackets(text)
    if not found or found[0][0] != 0 or closing(text, 0) is None:
        return None
    opener, (end, closer) = found[0][1], found[-1]
    if closing(text, 0) != end or end + len(closer) != len(text):
        return None
    inner = text[len(opener) : end].strip()
    if opener == "{":
        return read_part(inner)
    separator = _SEMICOLON if len(split_top(inner, _SEMICOLON)) > 1 else _COMMA
    parts = [part for _, part in split_top(inner, separator)]
    if opener in "([" and len(parts) == 1:
        only = read_part(inner)
        return only if (opener, closer) == ("(", ")") or isinstance(only, Matrix) else None
    if opener == r"\{" and len(parts) == 1 and (builder := re.fullmatch(r"(.+?)\s*[|:]\s*(.+)", inner)):
        return read_part(builder[2]) if _RELATION.search(builder[2]) else Expression(text)
    if opener == r"\langle":
        opener, closer = "(", ")"
    items = _flat([read_part(part) for part in parts]) if opener == r"\{" else [read_part(part) for part in parts]
    return Group(opener, closer, tuple(items))


def _flat(forms: list[Form]) -> list[Form]:
    """Elements with those that a plus-minus sign joins one by one."""
    return [item for form in forms for item in (form.items if isinstance(form, Listing) else (form,))]


def _matrix(text: str) -> Form | None:
    found = _MATRIX.fullmatch(text)
    if not found or found[2] in ("vmatrix", "Vmatrix") or r"\begin" in found[1] + found[3]:
        return None
    body = found[3].strip().removesuffix(r"\\")
    scale = found[1].strip().removesuffix(r"\cdot").strip()
    if scale and (not balanced(scale) or _RELATION.search(scale)):
        return None
    cells = [row.split("&") for row in re.split(r"\\\\(?:\[[^\]]*\])?", body)]
    entries = [[f"({scale})\\cdot ({cell.strip()})" if scale else cell for cell in row] for row in cells]
    return Matrix(tuple(tuple(read_part(plain(cell)) for cell in row) for row in entries))


def _parts(text: str) -> Form | None:
    """Elements between words or commas, unions, relations and ratios, in the order in which they bind."""
    text = without_grouping(text)
    parts = split_top(text, _ALTERNATIVES)
    if len(parts) > MAX_ITEMS:
        return Expression(text)
    if len(parts) > 1:
        items = [read_part(part) for _, part in parts if part]
        joined = any(before not in ("", ",", ";") for before, _ in parts)
        flat = _flat(items)
        if not items or len(flat) > MAX_ITEMS:
            return Expression(text)
        return Listing(tuple(flat), joined)
    parts = split_top(text, _RELATION)
    if len(parts) > 1 and not _MODULUS.search(text):
        sides = tuple(part for _, part in parts)
        return Relation(tuple(sign for sign, _ in parts[1:]), sides) if all(sides) else Expression(text)
    for pattern in (_CUP, _MINUS_SET, _COLON):
        parts = split_top(text, pattern)
        if len(parts) > 1 and all(part for _, part in parts):
            forms = tuple(read_part(part) for _, part in parts)
            if pattern is _CUP:
                return Union(forms)
            if pattern is _COLON:
                return Ratio(forms)
            return Difference(forms[0], forms[1]) if len(forms) == 2 else None
    return None


def _single(text: str) -> Form:
    if modular := _MODULUS.search(text):
        value = text[: modular.start()].strip()
        if value:
            return Modular(read_part(value), read_part(modular[1]))
    if based := _BASED.fullmatch(text):
        base = based[2] or based[3] or based[4]
        return Based(based[1].upper(), _BASES.get(base.lower(), base))
    if 0 < len(_PLUS_MINUS.findall(text)) <= 4:
        upper = text.replace(r"\pm", "+").replace(r"\mp", "-")
        lower = text.replace(r"\pm", "-").replace(r"\mp", "+")
        return Listing((read_part(upper), read_part(lower)), free=True)
    if _WORDS.fullmatch(text):
        return Words(text)
    return _with_unit(text) or Expression(text)


def _with_unit(text: str) -> Expression | None:
    """A formula with a unit of the table behind it, as long as can be."""
    if _ANGLE.search(text):
        return None
    for space in re.finditer(r"(?<=[^\s\\])\s(?=[^\W\d_]{2}|\\degree|\\?%)", text):
        unit = text[space.end() :]
        if len(unit) <= MAX_UNIT_CHARS and is_unit(unit, attached=False) and known(unit):
            return Expression(text[: space.start()].strip(), unit)
    return None
