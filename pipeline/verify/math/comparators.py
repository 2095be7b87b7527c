"""Compare two forms: the reference's form picks the comparator, and nothing else is tried.

Numbers are compared exactly. What holds real expressions is asked of `same`, which either compares them or raises
NeedsSymbols, for a caller that must not run sympy on model text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pipeline.verify.math.forms import (
    Based,
    Difference,
    Expression,
    Form,
    Group,
    Listing,
    Matrix,
    Modular,
    NamedSet,
    Ratio,
    Relation,
    Union,
    Words,
    read_part,
)
from pipeline.verify.math.numbers import Number
from pipeline.verify.math.policy import Policy
from pipeline.verify.math.relations import LETTER, STRICT, Piece, as_set, greater_first, named, read_pieces, word_key
from pipeline.verify.math.units import NO_UNIT, Unit, read_unit

Same = Callable[[str, tuple[str, ...], tuple[str, ...]], bool]
"""same(kind, gold, answer): whether two formulas agree as a `value`, an `equation` (left minus right, up to a factor)
or an `inequality` (greater side minus smaller, up to a positive factor)."""

DEGREE = (("degree", 1),)
ANGLES = {DEGREE, (("rad", 1),), ()}


class NeedsSymbols(Exception):
    """Two expressions decide, which only a process that can be killed may compare."""


class WrongUnit(Exception):
    """The values may agree, the units do not."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The conventions of one task and the comparer of expressions."""

    policy: Policy
    same: Same

    def equal(self, gold: Form, answer: Form) -> bool:
        """Whether an answer equals the reference. Raises WrongUnit, and what `same` raises."""
        if gold == answer:
            return True
        gold, answer = _product(as_set(gold), as_set(answer)), _product(as_set(answer), as_set(gold))
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return self._relations(gold, answer)
        if isinstance(gold, Union) or isinstance(answer, Union):
            return self._pieces(gold, answer)
        if isinstance(gold, Group | Listing) or (isinstance(gold, Matrix) and not isinstance(answer, Matrix)):
            return self._elements(gold, answer)
        if isinstance(answer, Matrix) and isinstance(gold, Matrix):
            return len(gold.rows) == len(answer.rows) and all(
                self._in_order(mine, theirs) for mine, theirs in zip(gold.rows, answer.rows, strict=True)
            )
        if isinstance(gold, Number | Expression):
            return isinstance(answer, Number | Expression) and self._quantities(gold, answer)
        if isinstance(gold, Words):
            return isinstance(answer, Words) and word_key(gold.text) == word_key(answer.text)
        if isinstance(gold, Modular):
            return isinstance(answer, Modular) and self._residues(gold, answer)
        if isinstance(gold, Ratio):
            return isinstance(answer, Ratio) and self._in_order(gold.parts, answer.parts)
        if isinstance(gold, Difference):
            return isinstance(answer, Difference) and self._in_order(
                (gold.whole, gold.removed), (answer.whole, answer.removed)
            )
        assert isinstance(gold, NamedSet | Based)
        return gold == answer

    def _in_order(self, gold: Sequence[Form], answer: Sequence[Form]) -> bool:
        return len(gold) == len(answer) and all(self.equal(a, b) for a, b in zip(gold, answer, strict=True))

    def _in_any_order(self, gold: Sequence[Form], answer: Sequence[Form]) -> bool:
        """Equality of forms is an equivalence, so that the first partner found is as good as any."""
        left = list(answer)
        if len(left) != len(gold):
            return False
        for item in gold:
            partner = next((i for i, other in enumerate(left) if self._equal_or_other_unit(item, other)), None)
            if partner is None:
                return False
            del left[partner]
        return True

    def _equal_or_other_unit(self, gold: Form, answer: Form) -> bool:
        try:
            return self.equal(gold, answer)
        except WrongUnit:
            return False

    def _elements(self, gold: Form, answer: Form) -> bool:
        """Tuples, sets, lists and vectors. Braces are a set; a list may be written with braces and the reverse."""
        gold, answer = _vector(gold), _vector(answer)
        if not isinstance(gold, Group | Listing) or not isinstance(answer, Group | Listing):
            return False
        if isinstance(gold, Group) and isinstance(answer, Group):
            if (gold.opener, gold.closer) != (answer.opener, answer.closer):
                return False
            in_order = gold.opener != r"\{"
        else:
            if any(isinstance(form, Group) and form.opener != r"\{" for form in (gold, answer)):
                # A tuple has its brackets, or names its elements: (1,2) is also x=1, y=2.
                return (
                    _distinct_names(answer)
                    and _names(answer) == sorted(_names(answer))
                    and self._in_order(gold.items, answer.items)
                )
            free = any(isinstance(form, Group) or form.free for form in (gold, answer))
            in_order = not free and self.policy.order == "written" and not _distinct_names(gold, answer)
        return (self._in_order if in_order else self._in_any_order)(gold.items, answer.items)

    def _relations(self, gold: Form, answer: Form) -> bool:
        left, right = named(gold), named(answer)
        if left and right and left[0] == right[0]:
            return self._named_values(left[1], right[1]) or self._formulas(gold, answer)
        if left and right:
            return self._formulas(gold, answer)
        if left and not isinstance(answer, Relation):
            # `y = 2x` asks for an equation, `f(x) = 2x` and `x = 2` for what stands on the right.
            return (bool(re.search(r"[(_]", left[0])) or not _unknowns(left[1])) and self.equal(left[1], answer)
        if right and not isinstance(gold, Relation):
            return self._named_values(gold, right[1])
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            return self._formulas(gold, answer)
        if isinstance(answer, Relation) and set(answer.signs) <= {"=", r"\approx"}:
            return self._named_values(gold, answer)
        return self._pieces(gold, answer)

    def _named_values(self, gold: Form, answer: Form) -> bool:
        """A value against a value or a chain `12^2 = 144`, whose exact sides must all be right."""
        if isinstance(answer, Relation) and not isinstance(gold, Relation) and set(answer.signs) <= {"=", r"\approx"}:
            exact = [side for side, sign in zip(answer.sides, ("=", *answer.signs), strict=False) if sign == "="]
            return all(self.equal(gold, read_part(side)) for side in exact)
        return self.equal(gold, answer)

    def _formulas(self, gold: Form, answer: Form) -> bool:
        """Two relations: the same set of reals, or the same curve or condition up to a factor."""
        assert isinstance(gold, Relation) and isinstance(answer, Relation)
        mine, theirs = read_pieces(gold), read_pieces(answer)
        if mine and theirs:
            return mine[0].name in ("", theirs[0].name) and self._in_any_order_pieces(mine, theirs)
        if len(gold.signs) == 1 and len(answer.signs) == 1:
            (sign,), (other,) = gold.signs, answer.signs
            if {sign, other} <= {"=", r"\ne"} and sign == other:
                solved = named(gold)
                if solved and not _unknowns(solved[1]):
                    return False  # `t = 6` is not answered by `3t = 18`; `t = 6` by itself was compared before
                return self.same("equation", gold.sides, answer.sides)
            if sign in STRICT and other in STRICT and STRICT[sign] == STRICT[other]:
                return self.same("inequality", greater_first(gold), greater_first(answer))
        if gold.signs == answer.signs:
            return self._in_order([read_part(s) for s in gold.sides], [read_part(s) for s in answer.sides])
        return False

    def _pieces(self, gold: Form, answer: Form) -> bool:
        mine, theirs = read_pieces(gold), read_pieces(answer)
        return mine is not None and theirs is not None and self._in_any_order_pieces(mine, theirs)

    def _in_any_order_pieces(self, gold: Sequence[Piece], answer: Sequence[Piece]) -> bool:
        left = list(answer)
        for piece in gold:
            partner = next((i for i, other in enumerate(left) if self._same_piece(piece, other)), None)
            if partner is None:
                return False
            del left[partner]
        return not left

    def _same_piece(self, gold: Piece, answer: Piece) -> bool:
        if gold.brackets != answer.brackets or len(gold.items) != len(answer.items):
            return False
        return (self._in_any_order if gold.brackets == r"\{\}" else self._in_order)(gold.items, answer.items)

    def _residues(self, gold: Modular, answer: Modular) -> bool:
        if not self.equal(gold.modulus, answer.modulus):
            return False
        mine, theirs, modulus = gold.value, answer.value, gold.modulus
        if isinstance(mine, Number) and isinstance(theirs, Number) and isinstance(modulus, Number) and modulus.value:
            return (mine.value - theirs.value) % modulus.value == 0
        return self.equal(mine, theirs)

    def _quantities(self, gold: Number | Expression, answer: Number | Expression) -> bool:
        mine, theirs = read_unit(gold.unit), read_unit(answer.unit)
        if isinstance(gold, Number) and isinstance(answer, Number) and mine.is_percent != theirs.is_percent:
            return self._percent(gold, answer, mine, theirs)
        exact = isinstance(gold, Number) and isinstance(answer, Number)
        if (
            not exact
            and mine != theirs
            and DEGREE in (mine.kinds, theirs.kinds)
            and {mine.kinds, theirs.kinds} <= ANGLES
        ):
            return self.same("value", (_radians(gold, mine),), (_radians(answer, theirs),))
        factor = self._factor(mine, theirs)
        if isinstance(gold, Number) and isinstance(answer, Number):
            return self.near(gold.value, answer.value * factor)
        value = (
            _latex(answer)
            if factor == 1
            else rf"\frac{{{factor.numerator}}}{{{factor.denominator}}}\cdot ({_latex(answer)})"
        )
        return self.same("value", (_latex(gold),), (value,))

    def _factor(self, gold: Unit, answer: Unit) -> Fraction:
        """What the answer's number is to be multiplied by, to be in the unit of the reference."""
        if gold == NO_UNIT or answer == NO_UNIT:
            if gold != NO_UNIT and self.policy.units == "required":
                raise WrongUnit
            return Fraction(1)
        if gold.kinds != answer.kinds:
            raise WrongUnit
        return answer.factor / gold.factor

    def _percent(self, gold: Number, answer: Number, mine: Unit, theirs: Unit) -> bool:
        if NO_UNIT not in (mine, theirs):
            raise WrongUnit
        bare = gold.value if theirs.is_percent else answer.value
        points = self.policy.percent != "fraction" and (abs(bare) >= 1 or bare == 0 or self.policy.percent == "either")
        hundred = Fraction(1, 100)
        whole = (gold.value * (hundred if mine.is_percent else 1), answer.value * (hundred if theirs.is_percent else 1))
        if points and self.policy.units == "required" and mine.is_percent:
            points = False
        return (points and self.near(gold.value, answer.value)) or (
            self.policy.percent != "points" and self.near(*whole)
        )

    def near(self, gold: Fraction, answer: Fraction) -> bool:
        """Whether two exact numbers are equal, or as near as the task allows."""
        allowed = Fraction(0)
        if self.policy.decimals is not None:
            allowed = Fraction(1, 2 * 10**self.policy.decimals)
        if self.policy.relative is not None:
            allowed = max(allowed, Fraction(self.policy.relative) * abs(gold))
        return abs(gold - answer) <= allowed


def _unknowns(form: Form) -> bool:
    """Whether a value still holds variables."""
    if isinstance(form, Relation):
        return any(LETTER.search(side) for side in form.sides)
    return isinstance(form, Expression) and bool(LETTER.search(form.text))


def _distinct_names(*lists: Form) -> bool:
    """Whether all elements of both lists are equations with names of their own."""
    return all("" not in _names(form) and len(set(_names(form))) == len(_names(form)) for form in lists)


def _names(form: Form) -> list[str]:
    items = form.items if isinstance(form, Group | Listing) else ()
    return [found[0] if (found := named(item)) else "" for item in items]


def _vector(form: Form) -> Form:
    """A matrix of one row or column as a tuple."""
    if not isinstance(form, Matrix):
        return form
    if len(form.rows) == 1:
        return Group("(", ")", form.rows[0])
    return Group("(", ")", tuple(row[0] for row in form.rows)) if all(len(row) == 1 for row in form.rows) else form


def _product(form: Form, other: Form) -> Form:
    """A few letters in a row are a product where the other side is a formula of the same letters, else a word."""
    if isinstance(form, Words) and isinstance(other, Expression) and re.fullmatch(r"[a-zA-Z]{2,4}", form.text):
        letters = re.findall(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", other.text))
        return Expression(form.text) if set(letters) == set(form.text) else form
    return form


def _latex(form: Number | Expression) -> str:
    if isinstance(form, Expression):
        return form.text
    sign = "-" if form.value < 0 else ""
    top, bottom = abs(form.value.numerator), form.value.denominator
    return f"{sign}{top}" if bottom == 1 else rf"{sign}\frac{{{top}}}{{{bottom}}}"


def _radians(form: Number | Expression, unit: Unit) -> str:
    return rf"\frac{{\pi}}{{180}}\cdot ({_latex(form)})" if unit.kinds == DEGREE else _latex(form)
