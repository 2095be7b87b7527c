"""The reference's form picks the comparator; what a task leaves open is settled by its policy."""

import pytest

from pipeline.verify import Item, Limits, judge_once

LIMITS = Limits.model_validate({"math": {"cpu_s": 5, "wall_s": 60}})


def outcomes(pairs, policy=None):
    """(verdict, reason) of boxed answers."""
    reference = {} if policy is None else {"policy": policy}
    items = [Item("k", "math", rf"\boxed{{{a}}}", "complete", {"answer": g, **reference}) for a, g in pairs]
    return {pair: found.verdict for pair, found in zip(pairs, judge_once(items, LIMITS), strict=True)}


RIGHT = [
    # numbers
    ("0.\\overline{285714}", "2/7"),
    ("1.2e-5", r"1.2 \times 10^{-5}"),
    ("2 million", "2000000"),
    ("1{,}234{,}567.5", "1234567.5"),
    (r"\left(-\frac{3}{4}\right)", "-0.75"),
    ("12^3+1", "1729"),
    # expressions
    (r"\frac{6}{\sqrt{3}}", r"2\sqrt{3}"),
    (r"2e^{2\pi i/3}", r"-1+i\sqrt{3}"),
    (r"1+\log_2 5", r"\log_{2} 10"),
    ("4^{-49}", r"\frac{1}{2^{98}}"),
    ("ba^2", "a^2b"),
    (r"\frac{n^2+n}{2}", r"\sum_{k=1}^{n} k"),
    (r"1/\sqrt{n}", r"\sqrt{1/n}"),
    ("N-1", "-1+N"),
    (r"\sin 30^\circ", r"\frac{1}{2}"),
    # tuples, lists, sets, intervals
    (r"\left(0.5,\ \sqrt{4}\right)", r"(\frac12, 2)"),
    ("x=1, y=2", "(1,2)"),
    ("y=2, x=1", "x=1, y=2"),
    (r"\{3,2,1\}", r"\{1, 2, 3\}"),
    (r"\{1,\sqrt{8}\}", r"\{2\sqrt{2}, 1\}"),
    ("7 or 2", "x = 2 or x = 7"),
    (r"1 \pm \sqrt{2}", r"1-\sqrt{2}, 1+\sqrt{2}"),
    ("0 < x \\le 1", "(0,1]"),
    (r"x<1 \text{ or } x>2", r"(2,\infty) \cup (-\infty,1)"),
    ("-2x > -6", "x < 3"),
    # equations
    ("3x^2+4y^2=12", r"\frac{x^2}{4}+\frac{y^2}{3}=1"),
    ("y = 1+2x", "2x - y + 1 = 0"),
    ("12 = t", "t=12"),
    ("2x+1", "f(x) = 1+2x"),
    # matrices and vectors
    (r"\frac{1}{6}\begin{bmatrix}3&0\\0&2\end{bmatrix}", r"\begin{pmatrix}\frac12 & 0\\0 & \frac13\end{pmatrix}"),
    (r"\langle 1, 2\rangle", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    # units
    (r"60\ \text{kilometers per hour}", "60 km/h"),
    ("72 km/h", "20 m/s"),
    (r"12\,\mathrm{cm}^{2}", "12 square centimeters"),
    (r"\frac{2}{3}\text{ hour}", "40 minutes"),
    (r"\$0.75", "75 cents"),
    (r"45^\circ", r"\frac{\pi}{4}"),
    (r"12\pi\text{ cm}^2", r"12\pi"),
    # texts, choices, notations
    (r"\text{the Isosceles triangle}", "isosceles triangle"),
    (r"\textbf{(C)}\ 12", "C"),
    (r"\text{option } C", "(C)"),
    (r"(1011)_{2}", "1011_2"),
    ("10 \\pmod 7", r"3 \pmod{7}"),
    ("7 : 32", "7:32"),
    (r"\varnothing", "no solution"),
]

WRONG = [
    ("0.2857", "2/7"),
    ("0.1\\overline{2}", "0.\\overline{12}"),
    ("2 million", "2"),
    ("10^{20}+1", "10^{20}"),
    (r"2^{200}+1", "2^{200}"),
    (r"\frac{3}{2^{98}}", r"\frac{1}{2^{98}}"),
    ("n-1", "N-1"),
    ("x'", "x"),
    ("2ab", "2"),
    ("n!!", "(n!)!"),
    ("2 3", "5"),
    ("x", "|x|"),
    ("B", "B and C"),
    ("C or D", "C"),
    ("C. 12 or D. 13", "C"),
    ("(2,1)", "(1,2)"),
    ("1,2", "(1,2)"),
    ("2, 1", "1, 2"),
    ("x=1, y=3", "(1,2)"),
    (r"\{1,2\}", "(1,2)"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    ("2", "x = 2 or x = 7"),
    ("(0,1)", "(0,1]"),
    ("0<x<1", "(0,1]"),
    ("x > -3", "x < 3"),
    ("x < 2", "y < 2"),
    ("3t = 18", "t = 6"),
    ("0", "3x-y+13=0"),
    ("3x+y+13=0", "3x-y+13=0"),
    ("2x+1", "y=2x+1"),
    (r"\begin{pmatrix}1&2\\4&3\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    (r"\begin{pmatrix}2\\1\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ("60 mph", "60 km/h"),
    (r"5\text{ m}^2", "5 m"),
    ("5 pears", "5 apples"),
    (r"20^\circ F", r"20^\circ C"),
    (r"5 \text{ euros}", r"\$5"),
    ("0.5\\%", "0.5"),
    (r"\text{Rome}", "Paris"),
    ("CBA", "ABC"),
    ("1011", "1011_2"),
    ("1011_3", "1011_2"),
    ("4 \\pmod 7", r"3 \pmod{7}"),
    ("32:7", "7:32"),
    ("0", "no solution"),
    ("4 is wrong", "4"),
    ("4 but maybe 5", "4"),
    (r"\mathbb{Z}", r"\mathbb{R}"),
]


def test_other_spellings_of_an_answer_pass():
    assert outcomes(RIGHT) == dict.fromkeys(RIGHT, "pass")


def test_answers_of_another_value_or_form_fail():
    assert outcomes(WRONG) == dict.fromkeys(WRONG, "fail")


@pytest.mark.parametrize(
    ("policy", "answer", "gold", "verdict"),
    [
        ({}, "35", r"35\%", "pass"),
        ({}, "0.35", r"35\%", "fail"),
        ({"percent": "fraction"}, "0.35", r"35\%", "pass"),
        ({"percent": "fraction"}, "35", r"35\%", "fail"),
        ({"percent": "either"}, "0.35", r"35\%", "pass"),
        ({"percent": "either"}, "35", r"35\%", "pass"),
        ({"order": "any"}, "2, 1", "1, 2", "pass"),
        ({"order": "any"}, "(2, 1)", "(1, 2)", "fail"),
        ({"units": "required"}, "5", "5 cm", "fail"),
        ({"units": "required"}, "50 mm", "5 cm", "pass"),
        ({"units": "required"}, "5 cm", "5", "pass"),
        ({"decimals": 2}, "0.29", "2/7", "pass"),
        ({"decimals": 2}, "0.35", "2/7", "fail"),
        ({"decimals": 2}, "3.14", r"\pi", "pass"),
        ({"decimals": 2}, "3.15", r"\pi", "fail"),
        ({"relative": 0.01}, "1005", "1000", "pass"),
        ({"relative": 0.01}, "1011", "1000", "fail"),
    ],
)
def test_a_policy_settles_what_strings_do_not(policy, answer, gold, verdict):
    assert outcomes([(answer, gold)], policy) == {(answer, gold): verdict}


@pytest.mark.parametrize(
    "reference",
    [
        {"answer": "5", "policy": {"percent": "sometimes"}},
        {"answer": "5", "policy": {"rounding": 2}},
        {"answer": "5", "policy": {"decimals": -1}},
        {"answer": "5", "policy": {"relative": 2}},
        {"answer": "5", "policy": "exact"},
        {"answer": "5", "policies": {}},
    ],
)
def test_a_policy_that_is_not_known_is_a_bad_reference(reference):
    [found] = judge_once([Item("k", "math", r"\boxed{5}", "complete", reference)], LIMITS)
    assert (found.verdict, found.reason) == ("unknown", "bad_reference")


@pytest.mark.parametrize(
    "answer",
    [
        r"\boxed{C}",
        "C",
        "**C**",
        "(C).",
        "Answer: C",
        "The answer is (C) 12 m.",
        "The answer is C because the sum is 5.",
        "The correct option is C) 12 m.",
        "**Final Answer**\n\nC",
        "<answer>C</answer>",
        "So option (C) is correct.",
        "I would choose C.",
        "答案是 C。",
    ],
)
def test_a_choice_is_found_however_it_is_stated(answer):
    assert judge_once([Item("k", "math", answer, "complete", {"answer": "C"})], LIMITS)[0].verdict == "pass"


@pytest.mark.parametrize(
    ("text", "gold", "verdict"),
    [
        (r"\boxed{3} is the half. Final answer: $6$.", "6", "pass"),
        (r"\boxed{3} is the half. Final answer: $6$.", "3", "fail"),
        ("The solution is\n\\[\n x = 5 \n\\]", "5", "pass"),
        ("So $y < 7$ is the solution.", "y < 7", "pass"),
        ("Hence the matrix is $(1,2)$.", "(1,2)", "pass"),
        ("The paper is worth 2.5 marks and I would rather skip it.", "2.5", "fail"),
        ("In 1728 this was an open question.", "1728", "fail"),
        (r"<think>\boxed{5}</think> I gave up.", "5", "fail"),
    ],
)
def test_only_the_stated_answer_counts(text, gold, verdict):
    assert judge_once([Item("k", "math", text, "complete", {"answer": gold})], LIMITS)[0].verdict == verdict
