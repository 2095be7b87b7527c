"""Relations: the name that one sets, and the sets of reals that inequalities, intervals and unions are."""

import re
from dataclasses import dataclass

from pipeline.verify.math.forms import Expression, Form, Group, Listing, NamedSet, Relation, Union, Words, read_part
from pipeline.verify.math.notation import split_top

EMPTY = frozenset({"no solution", "no solutions", "empty set", "the empty set", "none", "no real solutions",
                   "no real solution"})  # fmt: skip
REALS = frozenset({"all real numbers", "all reals", "real numbers", "all real x", "the real numbers"})
_INFINITE = re.compile(r"([+-]?)\s*\\infty")
STRICT = {"<": True, ">": True, r"\le": False, r"\ge": False}
"""Whether an inequality sign leaves its end out."""
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
LETTER = re.compile(r"(?<![\\a-zA-Z])(?!e(?![a-zA-Z]))[a-zA-Z](?![a-zA-Z])")
"""A variable of one letter; e is a number."""
_NAME = re.compile(
    r"(?:\\(?!(?:infty|emptyset|pi|frac|sqrt)(?![a-zA-Z]))[a-zA-Z]+(?:\s[A-Z]{1,4})?|[A-Za-z](?:\s?[A-Za-z]+){0,3})\s*"
    r"(?:_\s*(?:\{[\w,+ -]*\}|\w))?\s*'*\s*(?:\([^()=]{1,40}\))?\s*"
)


def read_name(side: str) -> str | None:
    """The name that one side of a relation is (`x`, `a_1`, `f(x)`, `(p,q)`, `V_1:V_2`, `Area`), without spaces."""
    bare = side.strip()
    inner = bare[1:-1] if bare.startswith("(") and bare.endswith(")") else bare
    parts = [part for _, part in split_top(inner, re.compile(r"[,:]"))]
    if (len(parts) == 1 and inner != bare) or not all(_NAME.fullmatch(part) for part in parts):
        return None
    return re.sub(r"[\s{}]", "", bare)


def named(form: Form) -> tuple[str, Form] | None:
    """(name, what it equals) of `x = 5`, `5 = x` or `x \\in A`; None for any other form."""
    if not isinstance(form, Relation) or form.signs[0] not in ("=", r"\in", r"\approx") or r"\in" in form.signs[1:]:
        return None
    name, rest = read_name(form.sides[0]), form
    if name is not None:
        rest = Relation(form.signs[1:], form.sides[1:])
    elif len(form.sides) == 2 and form.signs == ("=",) and (name := read_name(form.sides[1])):
        rest = Relation((), form.sides[:1])
    if name is None:
        return None
    return name, (rest if rest.signs else read_part(rest.sides[0]))


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval or a finite set, a part of a set of reals; `name` is the variable of an inequality."""

    brackets: str
    items: tuple[Form, ...]
    name: str = ""


def read_pieces(form: Form) -> list[Piece] | None:
    """The parts of a set of reals, None for a form that is none."""
    if isinstance(form, NamedSet) and form.name == "R":
        return [Piece("()", (Expression(r"-\infty"), Expression(r"\infty")))]
    if isinstance(form, Group):
        if form.opener == r"\{":
            return [Piece(r"\{\}", form.items)]
        return [Piece(form.opener + form.closer, form.items)] if len(form.items) == 2 else None
    if isinstance(form, Union) or (isinstance(form, Listing) and form.free):
        found = [read_pieces(part) for part in (form.parts if isinstance(form, Union) else form.items)]
        return [piece for part in found for piece in part] if all(found) else None  # type: ignore[union-attr]
    if isinstance(form, Relation):
        belongs = named(form)
        if belongs and form.signs == (r"\in",):
            return read_pieces(belongs[1])
        return _inequality(form)
    return None


def _inequality(form: Relation) -> list[Piece] | None:
    r"""`a < x \le b`, `x > a` and `x \le b` as intervals."""
    sides, signs = list(form.sides), list(form.signs)
    if not set(signs) <= STRICT.keys() or len(signs) > 2:
        return None
    if signs[0] in (">", r"\ge"):
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    if not set(signs) <= {"<", r"\le"}:
        return None
    if len(signs) == 1:
        is_upper = _variable(sides[0]) is not None
        sides = [r"-\infty", *sides] if is_upper else [*sides, r"\infty"]
        signs = ["<", *signs] if is_upper else [*signs, "<"]
    name = _variable(sides[1])
    if name is None or LETTER.search(sides[0] + sides[2]):
        return None
    ends = ("(" if STRICT[signs[0]] else "[") + (")" if STRICT[signs[1]] else "]")
    return [Piece(ends, (read_part(sides[0]), read_part(sides[2])), name)]


_VARIABLE = re.compile(
    r"[a-zA-Z](?:_\{?\w+\}?)?|\\(?:alpha|beta|gamma|theta|phi|lambda|mu|omega|rho|sigma|tau|epsilon)"
)


def _variable(side: str) -> str | None:
    return re.sub(r"[\s{}]", "", side) if _VARIABLE.fullmatch(side.strip()) else None


def greater_first(relation: Relation) -> tuple[str, ...]:
    first, second = relation.sides if relation.signs[0] in (">", r"\ge") else relation.sides[::-1]
    return first, second


def as_set(form: Form) -> Form:
    """Words and intervals for the empty set and the reals as those sets."""
    if isinstance(form, Words) and (words := word_key(form.text)) in EMPTY | REALS:
        return NamedSet("R" if words in REALS else "empty")
    if isinstance(form, Group) and (form.opener, form.closer) == ("(", ")") and len(form.items) == 2:
        ends = [_INFINITE.fullmatch(item.text) if isinstance(item, Expression) else None for item in form.items]
        if ends[0] and ends[1] and ends[0][1] == "-" != ends[1][1]:
            return NamedSet("R")
    if isinstance(form, Relation) and form.signs == (r"\in",) and (found := named(form)):
        return as_set(found[1]) if isinstance(as_set(found[1]), NamedSet) else form
    return form


def word_key(text: str) -> str:
    """Words without case, quotes, final punctuation, hyphens inside and a leading article."""
    text = re.sub(r"[\"'\u2018\u2019\u201c\u201d`]|[.,!?;:]+(?=\s|$)", "", text.casefold())
    text = re.sub(r"(?<=[^\W\d_])-(?=[^\W\d_])", " ", text)
    text = re.sub(r"^(?:the|an|a) (?=\w{2})", "", " ".join(text.split()))
    return "does not exist" if text == "dne" else text
