"""Answers are read from their region alone, numbers compared exactly, expressions in processes that can be killed."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.verify import Item, Judgement, Limits, judge_items, judge_once
from pipeline.verify.math import answer_region
from pipeline.verify.math.numbers import read_number

LIMITS = Limits.model_validate({"math": {"cpu_s": 1, "wall_s": 20}})


def item(answer: str, gold: object, outcome: str = "complete") -> Item:
    return Item("k", "math", answer, outcome, {"answer": gold})


def verdicts(pairs: list[tuple[str, str]]) -> list[str]:
    return [judgement.verdict for judgement in judge_once([item(a, g) for a, g in pairs], LIMITS)]


RIGHT = [
    ("The answer is 12.", "12"),
    ("7 + 5 = 12, so the answer is 12", "12"),
    ("**The answer is 12**", "12"),
    ("The answer is <12>.", "12"),
    ("The answer is: $12$.", "12"),
    ("The answer is 7 + 5 = 12.", "12"),
    ("7 + 5 = 12", "12"),
    ("First 3 + 4 = 7.\n7 + 5 = 12.", "12"),
    ("12", "12"),
    ("There are 3 cats. 4 * 3 = 12 legs.", "12"),
    ("The answer is 12 legs.", "12"),
    ("#### 1,234", "1234"),
    (r"\boxed{12}", "12"),
    (r"\boxed{3} wait, \boxed{4}", "4"),
    (r"So \boxed{\frac{1}{2}}.", "0.5"),
    (r"\boxed{\dfrac12}", "1/2"),
    (r"\boxed{2\frac{1}{2}}", "2.5"),
    ("The answer is 2 1/2.", "5/2"),
    ("The answer is -3.", "-3"),
    ("The answer is \u22123.", "-3"),
    (r"\boxed{1.5 \times 10^{3}}", "1500"),
    ("The answer is 1e5.", "100000"),
    (r"\boxed{\$1{,}200}", "1200"),
    (r"\boxed{50\%}", "50"),
    (r"\boxed{5\text{ cm}}", "5"),
    (r"\boxed{5\text{ cm}}", "5 cm"),
    ("The answer is 100000000000000000000000000000000001.", "100000000000000000000000000000000001"),
    (r"\boxed{\sqrt{8}}", r"2\sqrt{2}"),
    (r"\boxed{x^2+2x+1}", "(x+1)^2"),
    (r"\boxed{\frac{\pi}{2}}", r"\pi/2"),
    (r"\boxed{(1,2)}", "(1, 2)"),
    (r"\boxed{\text{no solution}}", "No solution"),
    (r"\boxed{(C)}", "C"),
]

WRONG = [
    ("The answer is 13.", "12"),
    ("I have 4 apples but cannot solve it", "4"),
    ("The answer is not 4.", "4"),
    (r"\boxed{4 or 5}", "4"),
    (r"\boxed{2x}", "2"),
    (r"\boxed{2 pi}", "2"),
    (r"\boxed{4\sqrt(2)}", "4"),
    (r"\boxed{-4}", "4"),
    (r"\boxed{3} \boxed{", "3"),
    (r"\boxed{4", "4"),
    ("<think>The answer is 4.</think> I do not know.", "4"),
    (r"<think>\boxed{4}", "4"),
    (r"\boxed{2^{-98}}", "2^{-99}"),
    (r"\boxed{\frac{1}{2006!}}", r"\frac{1}{2004!}"),
    (r"\boxed{2 \cdot 10^{-20}}", "10^{-20}"),
    (r"\boxed{CBA}", "ABC"),
    (r"\boxed{5 cm}", "5 m"),
    (r"\boxed{11}", "11_2"),
    (r"\boxed{(1,2)}", r"\{1,2\}"),
    (r"\boxed{[0,1)}", "(0,1)"),
    (r"\boxed{1728}", "1331 and 1728"),
    (r"\boxed{3x+4y+14=0}", "3*x-1*y+13=0"),
    (r"\boxed{100000000000000000000000000000000002}", "100000000000000000000000000000000001"),
    (r"\boxed{__import__('os').system('touch /tmp/pwned')}", "4"),
    (r"\boxed{\text{Rome}}", "Paris"),
    ("The answer is", "4"),
    ("The answer is 0.5.", "50%"),
    ("4 " * 300, "4"),
]


def test_right_answers_pass():
    assert dict(zip(RIGHT, verdicts(RIGHT), strict=True)) == dict.fromkeys(RIGHT, "pass")


def test_wrong_answers_and_answers_outside_the_region_fail():
    assert dict(zip(WRONG, verdicts(WRONG), strict=True)) == dict.fromkeys(WRONG, "fail")


def test_hostile_expressions_are_undecided_and_their_neighbours_judged():
    hostile = [r"\boxed{9^{9^{9}}}", r"\boxed{\binom{1000000000}{500000000}}"]
    answers = [item(r"\boxed{\sqrt{4}}", "2"), *[item(a, "5") for a in hostile], item(r"\boxed{\sqrt{9}}", "3")]
    judgements = judge_once(answers, LIMITS)
    assert [j.verdict for j in judgements] == ["pass", "unknown", "unknown", "pass"]
    assert all(j.score is None and j.reason in ("cpu_limit", "memory_limit", "crash") for j in judgements[1:3])


def test_a_wall_clock_timeout_is_undecided_even_after_another_try():
    limits = Limits.model_validate({"math": {"cpu_s": 60, "wall_s": 0.3}})
    [judgement] = judge_items([item(r"\boxed{9^{9^{9}}}", "5")], limits)
    assert (judgement.verdict, judgement.score, judgement.reason) == ("unknown", None, "wall_timeout")


@pytest.mark.parametrize("gold", [None, "", " ", 12])
def test_a_bad_reference_is_undecided(gold: object):
    assert judge_once([item("The answer is 4.", gold)], LIMITS)[0].reason == "bad_reference"


def test_a_reference_that_does_not_parse_is_undecided():
    [judgement] = judge_once([item(r"\boxed{7+}", r"\frac{1}{")], LIMITS)
    assert (judgement.verdict, judgement.reason) == ("unknown", "unparsable_reference")


def test_a_huge_answer_is_refused_at_once():
    for body in ("{" * 100_000 + "}" * 100_000, "9" * 200_000, "*" * 200_000, "\\text{" * 30_000):
        assert judge_once([item(f"\\boxed{{{body}}}", "4")], LIMITS)[0].verdict == "fail"
        assert judge_once([item(f"The answer is {body}", "4")], LIMITS)[0].verdict == "fail"


def test_a_sample_that_is_not_complete_fails_with_its_outcome():
    outcomes = ["cut_in_answer", "cut_in_thinking", "no_answer", "malformed_call", "prompt_too_long"]
    found = judge_once([item("The answer is 4.", "4", outcome) for outcome in outcomes], LIMITS)
    assert found == [Judgement("fail", None, outcome) for outcome in outcomes]


def test_an_unknown_verifier_is_a_user_error():
    with pytest.raises(UserError, match="no verifier `maths`; there are math, code"):
        judge_once([Item("k", "maths", "4", "complete", None)], LIMITS)


@pytest.mark.parametrize(
    ("text", "region"),
    [
        (r"\boxed{a{b}c} and more", "a{b}c"),
        (r"\boxed{\{1\}}", r"\{1\}"),
        (r"\boxed 4", None),
        (r"\boxed{}", None),
        ("The answer is 3.5. That is it.", "3.5"),
        ("The answer is 4. No, the answer is 5.", "5"),
        ("Answer: 7", "7"),
        ("So 3 + 4 = 7", "7"),
        ("x = y", None),
        ("", None),
    ],
)
def test_the_answer_region(text: str, region: str | None):
    assert answer_region(text) == region


@given(st.fractions(max_denominator=10**6), st.sampled_from(["", " apples", "\\%", r"\text{ m}"]))
def test_every_fraction_is_read_exactly(value: Fraction, unit: str):
    for text in (f"{value}{unit}", f"${value}${unit}", rf"\boxed{{{value}{unit}}}"[7:-1]):
        number = read_number(text)
        assert number is not None and number.value == value


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6), st.booleans())
def test_decimals_are_exact_with_and_without_separators(value: object, separators: bool):
    number = read_number(f"{value:,}" if separators else f"{value:f}")
    assert number is not None and number.value == Fraction(str(value))


@given(st.text(max_size=60), st.integers())
def test_any_text_gets_a_judgement_and_equal_texts_the_same(text: str, gold: int):
    first, second = judge_once([item(text, str(gold)), item(f"The answer is {gold}.", str(gold))], LIMITS)
    assert second.verdict == "pass"
    assert first.verdict in ("pass", "fail", "unknown")


@pytest.mark.parametrize(
    ("text", "region"),
    [
        ("The answer to this arithmetic problem is 5.", "5"),
        ("The solution to the arithmetic problem is 17.", "17"),
        ("So the final answer of the sum is = 12.", "12"),
        ("The answer is not here. It depends.", "not here"),
        ("I have 4 apples but cannot solve it", None),
    ],
)
def test_what_the_answer_is_to_may_stand_in_between(text, region):
    assert answer_region(text) == region
