"""Only complete, passed answers to training tasks are kept, and every other sample has a reason."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import validate
from pipeline.errors import UserError
from pipeline.records import Rejected, Sample, Task, Trace, Verdict, canonical_json
from pipeline.shards import iter_table, write_table
from stages.filter import Attempt, Config, Terms, choose, rate_of, run
from tests.made_traces import trace


def config_of(**keys) -> Config:
    return validate(Config, keys, "test")


def attempt(
    index: int, verdict: str = "pass", outcome: str = "complete", answer: str = "", tokens: int = 10
) -> Attempt:
    return Attempt(f"s{index}", index, outcome, verdict, tokens, answer or f"answer {index}")


def reasons(attempts: list[Attempt], split: str = "train", **keys) -> list[str | None]:
    found = choose(attempts, Terms(split, "MIT"), config_of(**keys))
    return [found.get(one.sample_id) for one in attempts]


def test_a_passed_complete_answer_is_kept():
    assert reasons([attempt(0)]) == [None]


def test_each_rule_gives_its_reason():
    assert reasons([attempt(0)], "heldout") == ["heldout"]
    assert reasons([attempt(0, "fail", "cut_in_answer")]) == ["not_complete:cut_in_answer"]
    assert reasons([attempt(0, "fail")]) == ["fail"]
    assert reasons([attempt(0, "unknown")]) == ["unknown"]
    assert reasons([attempt(0, "not_checked")]) == ["not_checked"]
    assert reasons([attempt(0), attempt(1, "fail")], min_pass_rate=0.6) == ["pass_rate_low", "fail"]
    assert reasons([attempt(0), attempt(1)], max_pass_rate=0.9) == ["pass_rate_high"] * 2
    assert reasons([attempt(0, tokens=11), attempt(1)], max_output_tokens=10) == ["too_long", None]
    assert reasons([attempt(0, answer="a"), attempt(1, answer="a")]) == [None, "duplicate_answer"]
    assert reasons([attempt(0), attempt(1), attempt(2)], max_per_task=2) == [None, None, "over_max_per_task"]


def test_the_choice_goes_by_index_and_not_by_order():
    attempts = [attempt(2), attempt(0), attempt(3), attempt(1)]
    assert reasons(attempts, max_per_task=2) == ["over_max_per_task", None, "over_max_per_task", None]


def test_a_repeated_answer_takes_no_place_of_another():
    attempts = [attempt(0, answer="a"), attempt(1, answer="a"), attempt(2, answer="b")]
    assert reasons(attempts, max_per_task=2) == [None, "duplicate_answer", None]


def test_unknown_is_no_judgement_in_a_pass_rate():
    attempts = [attempt(0), attempt(1, "unknown"), attempt(2, "unknown"), attempt(3, "fail")]
    rate = rate_of(attempts)
    assert (rate.value, rate.judged) == (0.5, 2)
    assert rate_of([attempt(0, "unknown")]).value is None


def test_without_require_pass_failed_answers_stay_but_never_cut_ones():
    attempts = [attempt(0, "fail"), attempt(1, "unknown"), attempt(2, "fail", "no_answer")]
    assert reasons(attempts, require_pass=False) == [None, None, "not_complete:no_answer"]


def test_a_band_upside_down_is_refused():
    with pytest.raises(UserError, match=r"min_pass_rate 0\.9 is above max_pass_rate 0\.1"):
        config_of(min_pass_rate=0.9, max_pass_rate=0.1)


ATTEMPTS = st.lists(
    st.builds(
        attempt,
        st.integers(0, 9),
        st.sampled_from(["pass", "fail", "unknown"]),
        st.sampled_from(["complete", "cut_in_answer", "no_answer"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 50),
    ),
    max_size=8,
    unique_by=lambda one: one.sample_id,
)
CONFIGS = st.fixed_dictionaries(
    {"max_per_task": st.none() | st.integers(1, 3), "max_output_tokens": st.none() | st.integers(1, 50)},
    optional={"min_pass_rate": st.floats(0, 0.5), "max_pass_rate": st.floats(0.5, 1)},
)


@settings(deadline=None)
@given(attempts=ATTEMPTS, keys=CONFIGS, data=st.data())
def test_what_is_kept_keeps_every_rule_in_any_order(attempts, keys, data):
    found = choose(attempts, Terms("train", "MIT"), config_of(**keys))
    assert found == choose(data.draw(st.permutations(attempts)), Terms("train", "MIT"), config_of(**keys))
    kept = [one for one in attempts if one.sample_id not in found]
    assert len(kept) + len(found) == len(attempts)
    assert all(one.verdict == "pass" and one.outcome == "complete" for one in kept)
    assert len({one.answer for one in kept}) == len(kept)
    assert keys["max_per_task"] is None or len(kept) <= keys["max_per_task"]


TASKS = [("t0", "math", "train"), ("t1", "code", "train"), ("t2", "math", "heldout")]


@pytest.fixture
def inputs(tmp_path) -> dict[str, Path]:
    """Two training tasks and a held-out one, three samples each: pass, fail, cut."""
    tasks, samples, verdicts = [], [], []
    for name, domain, split in TASKS:
        question = canonical_json([{"role": "user", "content": f"Question {name}"}])
        tasks.append(Task(name, f"p-{name}", "src", "1", None, "MIT", domain, question, None, domain, "{}", split))
        for index, (outcome, verdict) in enumerate(
            [("complete", "pass"), ("complete", "fail"), ("cut_in_answer", "fail")]
        ):
            answer = [{"role": "assistant", "content": f"Größe {index}", "reasoning_content": "hm"}]
            messages = canonical_json(answer if outcome == "complete" else [])
            samples.append(Sample(f"{name}-{index}", name, index, "me", "[]", messages, outcome, 5, 20 + index, index))
            verdicts.append(Verdict(f"{name}-{index}", domain, "1", verdict, float(verdict == "pass"), "x", "{}"))
    write_table(tmp_path / "tasks", Task, tasks)
    write_table(tmp_path / "generate", Sample, samples)
    write_table(tmp_path / "verify", Verdict, verdicts)
    return {
        name: tmp_path / folder
        for name, folder in (("tasks", "tasks"), ("samples", "generate"), ("verdicts", "verify"))
    }


def test_traces_join_task_sample_and_verdict(inputs, tmp_path):
    report = run(config_of(), inputs, tmp_path / "out")
    first, second = iter_table(tmp_path / "out", Trace)
    assert json.loads(first.messages) == [
        {"role": "user", "content": "Question t0"},
        {"role": "assistant", "content": "Größe 0", "reasoning_content": "hm"},
    ]
    assert (first.task_id, first.prompt_id, first.teacher, first.split) == ("t0", "p-t0", "me", "train")
    assert (first.verdict, first.score, first.pass_rate, first.num_samples) == ("pass", 1.0, 1 / 3, 3)
    assert (first.num_output_tokens, second.domain) == (20, "code")
    assert first.trace_id != second.trace_id
    assert report == {
        "samples": 9,
        "kept": 2,
        "rejected": 7,
        "rejected_fail": 2,
        "rejected_heldout": 3,
        "rejected_not_complete:cut_in_answer": 2,
        "tasks_with_kept": 2,
        "tasks_without": 1,
        "kept_code": 1,
        "pass_rate_code": 0.3333,
        "kept_math": 1,
        "pass_rate_math": 0.3333,
    }


def test_every_sample_is_kept_or_rejected_once(inputs, tmp_path):
    run(config_of(), inputs, tmp_path / "out")
    rejected = list(iter_table(tmp_path / "out", Rejected))
    kept = len(list(iter_table(tmp_path / "out", Trace)))
    assert kept + len(rejected) == 9
    assert max(Counter(row.id for row in rejected).values()) == 1
    assert json.loads(rejected[0].evidence) == {"index": 1, "pass_rate": 1 / 3, "task_id": "t0", "verdict": "fail"}


def test_same_inputs_give_the_same_bytes(inputs, tmp_path):
    for name in ("one", "two"):
        run(config_of(max_per_task=1), inputs, tmp_path / name)
    for file in ("traces/part-00000.parquet", "rejected/part-00000.parquet", "traces/manifest.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_limit_reads_the_first_samples_only(inputs, tmp_path):
    assert run(config_of(limit=4), inputs, tmp_path / "out")["samples"] == 4


def test_a_sample_without_a_verdict_is_an_error(inputs, tmp_path):
    write_table(tmp_path / "verify", Verdict, [])
    with pytest.raises(UserError, match="no verdict for sample t0-0; run verify"):
        run(config_of(), inputs, tmp_path / "out")


def test_two_verdicts_of_one_sample_are_an_error(inputs, tmp_path):
    verdict = next(iter_table(inputs["verdicts"], Verdict))
    write_table(tmp_path / "verify", Verdict, [verdict, verdict])
    with pytest.raises(UserError, match="two verdicts for sample t0-0"):
        run(config_of(), inputs, tmp_path / "out")


def test_samples_of_other_tasks_are_an_error(inputs, tmp_path):
    write_table(tmp_path / "tasks", Task, [])
    with pytest.raises(UserError, match="answers task t0, which is not in --in tasks"):
        run(config_of(), inputs, tmp_path / "out")


def test_nothing_sampled_gives_empty_tables(inputs, tmp_path):
    write_table(tmp_path / "generate", Sample, [])
    report = run(config_of(), inputs, tmp_path / "out")
    assert (report["samples"], report["kept"], report["tasks_without"]) == (0, 0, 0)
    assert list(iter_table(tmp_path / "out", Trace)) == []


def test_collected_traces_pass_the_rules_that_apply_to_them(inputs, tmp_path):
    others = [
        replace(trace(f"q{n}", "a"), verdict=verdict) for n, verdict in enumerate(["pass", "not_checked", "fail"])
    ]
    others += [replace(trace("nc", "a"), license="CC-BY-NC-4.0"), trace("held", "out", split="heldout")]
    write_table(tmp_path / "collect", Trace, others)
    given = {**inputs, "collected": tmp_path / "collect"}
    report = run(config_of(licenses=["MIT", "Apache-2.0"]), given, tmp_path / "out")
    assert (report["samples"], report["collected_read"], report["collected_kept"], report["kept"]) == (9, 5, 2, 4)
    assert report["samples"] + report["collected_read"] == report["kept"] + report["rejected"]
    reasons = {row.id: row.reason for row in iter_table(tmp_path / "out", Rejected)}
    assert [reasons.get(t.trace_id) for t in others] == [None, None, "fail", "license", "heldout"]


def test_a_licence_that_is_not_listed_rejects_samples_too(inputs, tmp_path):
    report = run(config_of(licenses=["Apache-2.0"]), inputs, tmp_path / "out")
    assert (report["kept"], report["rejected_license"], report["rejected_heldout"]) == (0, 6, 3)
