"""Traces in = train + val + unused; budgets and weights hold, prompts stand on one side, nothing is taken twice."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import validate
from pipeline.errors import UserError
from pipeline.records import Rejected, Trace
from pipeline.shards import iter_table, write_table
from stages.mix import Config, run
from tests.made_traces import trace

TRACES = [
    replace(trace(f"Question {n // 2}?", f"Answer {n}."), domain="code" if n % 3 == 0 else "math") for n in range(60)
]


def mix(folder, traces, val_fraction=0.2, **phase):
    write_table(folder / "in", Trace, traces)
    config = validate(Config, {"phase": "general", "phases": {"general": phase}, "val_fraction": val_fraction}, "test")
    report = run(config, {"traces": folder / "in"}, folder / "out")
    tables = [list(iter_table(folder / "out" / name, Trace)) for name in ("train", "val")]
    return report, *tables, list(iter_table(folder / "out", Rejected))


def test_without_settings_everything_is_used_once(tmp_path):
    report, train, val, rejected = mix(tmp_path, TRACES)
    assert report["train"] + report["val"] == 60 and not rejected and val
    assert report["epochs_math"] == report["epochs_code"] == 1
    assert report["train_tokens"] == 10 * len(train)


def test_domains_and_the_split_decide_who_takes_part(tmp_path):
    report, train, val, rejected = mix(tmp_path, [*TRACES, trace("held", "out", split="heldout")], domains=["code"])
    assert {t.domain for t in train + val} == {"code"}
    assert (report["rejected_other_domain"], report["rejected_heldout"]) == (40, 1)
    assert report["traces"] == report["train"] + report["val"] + report["rejected"] == 61
    assert {row.reason for row in rejected} == {"other_domain", "heldout"}


def test_a_budget_is_shared_by_weights_and_what_is_short_is_stated(tmp_path):
    report, *_ = mix(tmp_path, TRACES, 0.0, token_budget=100, weights={"math": 3, "code": 1})
    assert (report["train_tokens_math"], report["train_tokens_code"]) == (70, 20)
    assert (report["budget_tokens"], report["short_tokens"], report["train"]) == (100, 10, 9)
    assert (report["epochs_math"], report["epochs_code"]) == (0.175, 0.1)


def test_weights_without_a_budget_take_what_the_scarcest_domain_allows(tmp_path):
    report, *_ = mix(tmp_path, TRACES, 0.0, weights={"math": 1, "code": 1})
    assert report["train_tokens_math"] == report["train_tokens_code"] == 200


def test_a_larger_budget_takes_all_that_a_smaller_one_takes(tmp_path):
    taken = [
        {t.trace_id for t in mix(tmp_path / str(budget), TRACES, token_budget=budget)[1]} for budget in (50, 200, 9999)
    ]
    assert taken[0] < taken[1] < taken[2]


def test_tokens_nobody_counted_are_a_quarter_of_the_characters(tmp_path):
    report, *_ = mix(tmp_path, [replace(trace("q", "x" * 40), num_output_tokens=None)], 0.0)
    assert report["train_tokens"] == 10


def test_validation_prompts_are_the_same_in_every_phase(tmp_path):
    general, code = mix(tmp_path / "a", TRACES)[2], mix(tmp_path / "b", TRACES, domains=["code"])[2]
    assert {t.trace_id for t in code} == {t.trace_id for t in general if t.domain == "code"}


@settings(max_examples=25)
@given(
    drawn=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 5), st.sampled_from(["math", "code"])), min_size=1, max_size=30
    ),
    val_fraction=st.sampled_from([0.0, 0.1, 0.5]),
    budget=st.none() | st.integers(10, 200),
    random=st.randoms(use_true_random=False),
)
def test_every_trace_goes_to_one_place_and_every_prompt_to_one_side(drawn, val_fraction, budget, random):
    traces = [replace(trace(f"Question {q}?", f"Answer {a}."), domain=domain) for q, a, domain in drawn]
    places = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            try:
                report, train, val, rejected = mix(Path(folder), traces, val_fraction, token_budget=budget)
            except UserError:
                return
        assert report["traces"] == len(train) + len(val) + len(rejected) == len(traces)
        assert not {t.prompt_id for t in train} & {t.prompt_id for t in val}
        assert budget is None or report["train_tokens"] <= budget
        places.append((sorted(t.trace_id for t in train), sorted(t.trace_id for t in val)))
        random.shuffle(traces)
    assert places[0] == places[1]


def test_mistakes_are_told(tmp_path):
    with pytest.raises(UserError, match="no trace to train on has the domain chem; the domains are math"):
        mix(tmp_path / "1", TRACES, weights={"chem": 1, "math": 1})
    with pytest.raises(UserError, match="nothing is left to train on"):
        mix(tmp_path / "2", TRACES, domains=["chem"])
    with pytest.raises(UserError, match="weights are 0 or more"):
        mix(tmp_path / "3", TRACES, weights={"math": 0})
    with pytest.raises(UserError, match="the phases are general"):
        run(Config(phase="x", phases={"general": {}}), {"traces": tmp_path / "1/in"}, tmp_path / "4")
