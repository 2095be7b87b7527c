"""evaluate: intervals and the paired test against independent formulas."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import load_config
from pipeline.errors import UserError
from pipeline.records import Task, canonical_json
from pipeline.shards import write_table
from stages import evaluate


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_the_interval_is_wilsons(passed):
    n, p, z = len(passed), sum(passed) / len(passed), 1.959963984540054
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    found = evaluate.accuracy_of(passed)
    assert found.accuracy == pytest.approx(p, abs=1e-4)
    assert found.low == pytest.approx(max(0.0, centre - half), abs=2e-4)
    assert found.high == pytest.approx(min(1.0, centre + half), abs=2e-4)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_the_paired_p_value_is_mcnemars_exact_one(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    only_first = sum(a and not b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    n = only_first + only_second
    tail = sum(math.comb(n, k) for k in range(min(only_first, only_second) + 1)) / 2**n
    assert evaluate.paired_p_value(first, second) == pytest.approx(min(1.0, 2 * tail))


def task(i, domain, split="heldout"):
    messages = canonical_json([{"role": "user", "content": f"{domain} {i}"}])
    return Task(
        f"{domain}{i}", f"p{domain}{i}", "s", str(i), None, "CC0-1.0", domain, messages, None, domain, None, split
    )


def test_domains_are_compared_apart_and_together():
    tasks = [task(0, "math"), task(1, "math"), task(2, "code"), task(3, "code")]
    report = evaluate.compare(tasks, {"base": [True, False, False, False], "tuned": [True, True, False, True]})
    assert report["tasks"] == 4 and report["math_tasks"] == 2 and report["code_tasks"] == 2
    assert (report["base_accuracy"], report["tuned_accuracy"]) == (0.25, 0.75)
    assert (report["base_math_accuracy"], report["tuned_code_accuracy"]) == (0.5, 0.5)
    assert (report["only_base"], report["only_tuned"]) == (0, 2)
    assert report["paired_p_value"] == 0.5


def test_the_table_for_plots_has_a_row_a_model_and_domain(tmp_path):
    report = evaluate.compare([task(0, "math"), task(1, "code")], {"base": [True, False], "tuned": [True, True]})
    evaluate.write_accuracy_table(tmp_path / "a.csv", ["code", "math"], report)
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0] == "model,domain,accuracy,low,high"
    assert [line.split(",")[:2] for line in lines[1:]] == [
        [model, domain] for model in ("base", "tuned") for domain in ("all", "code", "math")
    ]


def test_no_heldout_task_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "tasks", Task, [task(0, "math", "train")])
    (tmp_path / "c.yaml").write_text("")
    config = load_config(evaluate.Config, tmp_path / "c.yaml")
    with pytest.raises(UserError, match="no held-out task"):
        evaluate.run(config, {"tasks": tmp_path / "tasks", "base": tmp_path, "tuned": tmp_path}, tmp_path / "out")
