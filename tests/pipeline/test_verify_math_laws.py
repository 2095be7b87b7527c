"""Laws of the math verifier: every spelling of a value equals it, no neighbour does, and prose changes nothing."""

import contextlib
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.verify import Item, Limits, judge_once
from pipeline.verify.math.comparators import NeedsSymbols
from pipeline.verify.math.decide import decide
from pipeline.verify.math.policy import Policy
from tests.labelled import read_labelled

NUMBERS = st.one_of(st.integers(-(10**30), 10**30).map(Fraction), st.fractions(max_denominator=10**6))
CENTS = st.integers(-(10**9), 10**9)
SETS = st.lists(st.fractions(max_denominator=50), min_size=2, max_size=6, unique=True)


def equal(gold, answer):
    return decide(gold, answer, Policy()) == "equal"


def spellings(value):
    """Ways to write a fraction."""
    sign, top, bottom = "-" if value < 0 else "", abs(value.numerator), value.denominator
    yield f"{value}"
    yield f"${value}$"
    yield rf"{sign}\frac{{{top}}}{{{bottom}}}"
    yield rf"\dfrac{{{sign}{3 * top}}}{{{3 * bottom}}}"
    yield rf"\left({sign}\tfrac{{{top}}}{{{bottom}}}\right)"
    yield rf"x = {sign}{top}/{bottom}"
    if bottom == 1:
        yield f"{value.numerator:,}"
        yield f"{value.numerator:,}".replace(",", "{,}")
        yield f"{value.numerator}.000"
        yield f"\u2212{top}" if value < 0 else f"+{top}"
    elif top > bottom:
        yield rf"{sign}{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}"


@given(NUMBERS, NUMBERS)
def test_a_number_equals_itself_in_every_spelling_and_no_other(value, other):
    for text in spellings(value):
        assert equal(str(value), text) and equal(text, str(value)), text
        for near in (value + 1, value - 1, -value, other, value + Fraction(1, 10**40)):
            assert equal(str(near), text) == (near == value), (near, text)


@given(CENTS)
def test_a_decimal_equals_its_fraction_and_not_its_neighbours(cents):
    text = f"{'-' if cents < 0 else ''}{abs(cents) // 100:,}.{abs(cents) % 100:02}"
    assert equal(str(Fraction(cents, 100)), text) and equal(text, f"{text}0")
    assert not equal(text, str(Fraction(cents + 1, 100)))
    assert not equal(text, str(Fraction(10 * cents + 1, 1000)))


@given(st.integers(1, 10**6), st.integers(-30, 30))
def test_powers_of_ten_are_exact(mantissa, exponent):
    value = str(mantissa * Fraction(10) ** exponent)
    for text in (
        f"{mantissa}e{exponent}",
        rf"{mantissa} \times 10^{{{exponent}}}",
        rf"{mantissa}\cdot10^{{{exponent}}}",
    ):
        assert equal(value, text)
        assert not equal(str(mantissa * Fraction(10) ** (exponent + 1)), text)


@given(st.integers(0, 999), st.integers(1, 4))
def test_a_repeating_decimal_is_its_fraction(period, digits):
    period %= 10**digits
    value = 2 + Fraction(period, 10**digits - 1)
    assert equal(str(value), rf"2.\overline{{{period:0{digits}}}}")
    assert not equal(str(value + Fraction(1, 10**9)), rf"2.\overline{{{period:0{digits}}}}")


@given(SETS, st.randoms(use_true_random=False))
def test_a_set_has_no_order_and_every_element(values, random):
    shuffled = random.sample(values, len(values))
    gold, answer = (rf"\{{{', '.join(map(str, part))}\}}" for part in (values, shuffled))
    assert equal(gold, answer)
    assert not equal(gold, rf"\{{{', '.join(map(str, shuffled[1:]))}\}}")
    assert not equal(gold, rf"\{{{', '.join(map(str, [*shuffled, max(values) + 1]))}\}}")
    assert not equal(gold, f"({', '.join(map(str, values))})")


@given(SETS)
def test_a_tuple_and_a_list_keep_their_order(values):
    swapped = [values[1], values[0], *values[2:]]
    for opener, closer in ("()", ("", ""), (r"\langle ", r"\rangle")):
        gold, same, other = (
            f"{opener}{separator.join(map(str, part))}{closer}"
            for part, separator in ((values, ", "), (values, ",\\ "), (swapped, ", "))
        )
        assert equal(gold, same) and not equal(gold, other)


@given(st.fractions(max_denominator=50), st.fractions(min_value=0, max_denominator=50).filter(bool), st.data())
def test_an_interval_is_its_ends_and_its_inequality(low, width, data):
    brackets = [(a, b) for a in "([" for b in ")]"]
    opener, closer = data.draw(st.sampled_from(brackets))
    gold = f"{opener}{low}, {low + width}{closer}"
    signs = [r"\le" if bracket in "[]" else "<" for bracket in (opener, closer)]
    assert equal(gold, rf"{low} {signs[0]} x {signs[1]} {low + width}")
    for other in brackets:
        assert equal(gold, rf"x \in {other[0]}{low},{low + width}{other[1]}") == (other == (opener, closer))


@given(NUMBERS, st.sampled_from(["m", "kg", "hours", "km/h", "cm^2", "apples"]), st.sampled_from(["V", "m^3", "pears"]))
def test_a_unit_may_be_left_out_but_not_be_another(value, unit, other):
    gold = rf"{value}\text{{ {unit}}}"
    assert equal(gold, f"{value} {unit}") and equal(gold, str(value)) and equal(str(value), gold)
    assert decide(gold, rf"{value} \text{{ {other}}}", Policy()) == "wrong_unit"
    assert decide(gold, f"{value + 1} {unit}", Policy()) == "wrong_answer"


@given(st.integers(1, 10**6))
def test_units_of_one_kind_are_converted_exactly(value):
    assert equal(f"{value} m", f"{100 * value} cm") and equal(f"{value} hours", f"{60 * value} min")
    assert equal(f"{18 * value} km/h", f"{5 * value} m/s")
    assert not equal(f"{value} m", f"{100 * value + 1} cm") and not equal(f"{value} m", f"{value} km")


PROSE = st.text("abcdefgh .,:\n0123456789", max_size=200)


@given(NUMBERS, PROSE, PROSE, st.booleans())
def test_a_boxed_answer_does_not_depend_on_the_text_around_it(value, before, after, is_right):
    gold = str(value if is_right else value + 1)
    texts = (
        rf"\boxed{{{value}}}",
        rf"{before}$\boxed{{{value}}}${after}",
        rf"<think>{before}</think>\boxed{{{value}}}.",
    )
    found = judge_once([Item("k", "math", text, "complete", {"answer": gold}) for text in texts], Limits())
    assert {judgement.verdict for judgement in found} == {"pass" if is_right else "fail"}


FORMS = [
    "5", "5 cm", "x^2", "(1,2)", r"\{1,2\}", "[0,1)", "1, 2", "x = 2 or x = 7", "x < 1", "y = 2x", r"x \ne 5", "C",
    "Paris", "No",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"[0,1] \cup \{3\}", r"\mathbb{R}", r"\mathbb{R} \setminus \{0\}", "7:32",
    "11_2", r"3 \pmod 7", r"50\%", "no solution", r"1 \pm \sqrt{2}", "A, B",
]  # fmt: skip


@settings(max_examples=300)
@given(st.text(r"\{}()[]|<>=+-*/^_.,:;!%$'0129abxCI " + "\u00bd\u221a\u00b2\u2264\u03c0", max_size=80))
def test_any_text_is_decided_or_left_to_symbols(text):
    for gold in FORMS:
        with contextlib.suppress(NeedsSymbols):
            assert decide(gold, text, Policy()) in {"equal", "wrong_answer", "wrong_unit", "unparsable_answer"}


def test_no_form_equals_another_but_a_list_its_set_and_a_number_its_quantity():
    allowed = ({"5", "5 cm"}, {"1, 2", r"\{1,2\}"})
    items = [Item("k", "math", rf"\boxed{{{answer}}}", "complete", {"answer": gold})
             for gold in FORMS for answer in FORMS if gold != answer and {gold, answer} not in allowed]  # fmt: skip
    found = judge_once(items, Limits())
    assert [(item.reference, item.answer, judgement.reason) for item, judgement in zip(items, found, strict=True)
            if judgement.verdict != "fail"] == []  # fmt: skip


def test_every_labelled_reference_equals_itself_in_another_dress():
    golds = sorted({row["gold"] for row in read_labelled("math_equivalence")})
    dressed = [rf"So $\boxed{{\, {gold.strip().strip('$').replace('frac', 'dfrac')} \;}}$." for gold in golds]
    items = [Item(g, "math", text, "complete", {"answer": g}) for g, text in zip(golds, dressed, strict=True)]
    found = judge_once(items, Limits())
    assert [item.key for item, judgement in zip(items, found, strict=True) if judgement.verdict != "pass"] == []
