"""The bars that the verifier keeps on the labelled pairs of tests/data, and what its benchmark says of them."""

from benchmarks.verify_math import HOSTILE, ROWS, judge_rows, rates, read_rows
from pipeline.verify import Item
from pipeline.verify.limits import MathLimits
from pipeline.verify.math import compare_plainly
from tests.labelled import read_labelled


def test_no_wrong_answer_is_accepted_and_hardly_a_right_one_refused():
    rows = [row for row in read_rows(ROWS) if row["policy"] == "clear"]
    found = judge_rows(rows)
    accepted = [row["id"] for row, judgement in zip(rows, found, strict=True)
                if judgement.verdict == "pass" and not row["expected"]]  # fmt: skip
    assert accepted == []
    assert rates(rows, [judgement.verdict == "pass" for judgement in found])["false_rejects_pct"] <= 1


def test_the_labelled_rows_are_ours():
    rows = read_labelled("math_equivalence")
    assert len(rows) == 828
    assert {(row["source"], row["licence"]) for row in rows} == {("built", "own")}


def test_a_rejected_right_answer_and_an_accepted_wrong_one_are_counted():
    rows = [{"expected": expected} for expected in (True, True, False, False)]
    assert rates(rows, [True, False, True, False]) == {"false_accepts": 1, "false_rejects_pct": 50.0}


def test_hostile_answers_never_pass_where_they_are_read():
    for name, answer in HOSTILE.items():
        found = compare_plainly(Item(name, "math", answer, "complete", {"answer": r"\sqrt{5}"}), MathLimits())
        assert isinstance(found, tuple) or found.verdict == "fail", name
