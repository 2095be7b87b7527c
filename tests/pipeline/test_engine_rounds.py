"""Rounds: a target is reached exactly, whoever answers first, and what it cannot reach it says."""

import hashlib
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.standin import Fault
from benchmarks.standin.sums import sum_task as task
from pipeline.config import Machine
from pipeline.engine import lane as lanes
from pipeline.engine.rounds import Attempts, Found, GiveUp, Target, Try, collect_set, hopeless, run_rounds
from pipeline.engine.sampling import Sampler
from pipeline.engine.settings import Budget, Teacher
from pipeline.errors import UserError
from pipeline.ledger import Ledger
from tests.standin import StandIn, serving

TASKS = [task(number) for number in range(300)]


def right_in(share, always=(), never=()):
    """A text that is right for a share of all (task, seed), decided by both alone."""

    def text(body):
        content = body["messages"][-1]["content"]
        number = int(content.split()[2])
        drawn = hashlib.sha256(f"{content} {body['seed']}".encode()).digest()[0] / 256
        right = number in always or (number not in never and drawn < share)
        return f"It is {2 * number if right else 2 * number + 1}."

    return text


def is_right(tasks, samples):
    """The verdict of a verifier that knows the sum."""
    texts = [json.loads(sample.messages)[-1]["content"] if json.loads(sample.messages) else "" for sample in samples]
    answers = [json.loads(tasks[sample.task_id].reference)["answer"] for sample in samples]
    return [text == f"It is {answer}." for text, answer in zip(texts, answers, strict=True)]


def sampler_of(server, ledger, folder, window=16, budget=None, name="t", domains=()):
    engine = {"type": "endpoints", "model": "m", "model_revision": "1"}
    endpoint = {"urls": [server.url], "max_in_flight": window}
    serving_ = {"poll_s": 0.02, "stall_s": 5, "drain_s": 5}
    machine = Machine.model_validate({"endpoints": {name: endpoint}, "serving": serving_})
    teacher = Teacher.model_validate({"name": name, "engine": engine, "domains": list(domains)})
    return Sampler(teacher, None, 0, machine, ledger, folder, budget or Budget())


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lanes, "FIRST_PAUSE_S", 0.02)


def find(server, folder, target, tasks=TASKS, window=16, budget=None, passes=is_right):
    """What rounds find, the samples of the set, and the sampler."""
    with Ledger(folder / "ledger") as ledger, sampler_of(server, ledger, folder, window, budget) as sampler:
        found = run_rounds(lambda: tasks, [sampler], Target.model_validate(target), passes)
        return found, list(collect_set(found, tasks, [sampler])), sampler


def in_order(samples):
    """(task, index) of the set, by the task's place."""
    places = {task.task_id: place for place, task in enumerate(TASKS)}
    return [(places[sample.task_id], sample.index) for sample in samples]


def test_a_number_of_rows_is_reached_exactly_and_no_more_is_asked_than_rounds_need(tmp_path, capsys):
    with serving(StandIn(text=right_in(0.3))) as server:
        found, samples, sampler = find(server, tmp_path, {"rows": 50, "tries": 4})
    passed = is_right({t.task_id: t for t in TASKS}, samples)
    assert sum(passed) == 50 and passed[-1]
    assert found.report()["passing"] == 50 and found.report()["target_reached"] is True
    assert in_order(samples) == sorted(in_order(samples))
    assert server.received == sampler.counts.requests_sent < 4 * len(TASKS)
    assert all(not any(one.right for one in attempts.tries[:-1]) for attempts in found.attempts)
    assert "not reached" not in capsys.readouterr().err


def test_the_set_depends_on_no_order_of_answers(tmp_path):
    target, sets = {"rows": 40, "tries": 5, "passing": 2}, []
    for window in (1, 7, 64):
        faults = {number: Fault("hold_back", later=3, seconds=0.05) for number in range(0, 500, 9)}
        with serving(StandIn(text=right_in(0.3), faults=faults)) as server:
            found, samples, _ = find(server, tmp_path / str(window), target, window=window)
        sets.append((samples, found.report()))
    assert sets[0] == sets[1] == sets[2]


def test_a_target_that_cannot_be_reached_says_so(tmp_path, capsys):
    with serving(StandIn(text=right_in(0.3))) as server:
        found, _, _ = find(server, tmp_path, {"rows": 50, "tries": 2}, TASKS[:20])
    assert found.report()["target_reached"] is False and 0 < found.report()["passing"] < 50
    assert found.report()["tasks_tried"] == 20
    assert f"target: not reached; {found.passing} samples pass after 20 tasks" in capsys.readouterr().err


def test_tokens_end_the_set_before_the_sample_that_would_exceed_them(tmp_path, capsys):
    with serving(StandIn(text=right_in(0.3))) as server:
        found, samples, _ = find(server, tmp_path, {"tokens": 100, "tries": 2})
        assert found.report()["target_reached"] is True
        spent = sum(sample.num_output_tokens for sample in samples)
        following = [one for attempts in found.attempts for one in attempts.tries][len(samples)]
        assert spent <= 100 < spent + following.tokens
        rows, _, _ = find(server, tmp_path, {"tokens": 100, "rows": 200, "tries": 2})
    assert rows.report()["target_reached"] is False and rows.report()["passing"] < 200
    assert "target: not reached" in capsys.readouterr().err


def test_two_passing_samples_of_each_task_are_asked_for_and_no_third(tmp_path):
    with serving(StandIn(text=right_in(0.5))) as server:
        found, samples, _ = find(server, tmp_path, {"passing": 2, "tries": 6}, TASKS[:40])
    for attempts in found.attempts:
        assert attempts.right <= 2 and (attempts.right == 2 or len(attempts.tries) == 6)
        assert attempts.right < 2 or attempts.tries[-1].right
    assert server.received == sum(len(attempts.tries) for attempts in found.attempts) == len(samples)


def test_a_task_that_is_hardly_ever_solved_is_given_up(tmp_path):
    rule = GiveUp(pass_rate=0.3, confidence=0.9)
    with serving(StandIn(text=right_in(0.0, always=range(0, 40, 2)))) as server:
        found, _, _ = find(server, tmp_path, {"tries": 20, "give_up": rule.model_dump()}, TASKS[:40])
    made = [len(attempts.tries) for attempts in found.attempts]
    enough = next(wrong for wrong in range(1, 20) if hopeless(0, wrong, rule))
    assert made[::2] == [1] * 20 and made[1::2] == [enough] * 20 and enough < 20
    assert server.received == 20 * (1 + enough)


def test_rounds_go_on_after_a_stop_and_ask_nothing_twice(tmp_path):
    target = {"rows": 40, "tries": 4}
    with serving(StandIn(text=right_in(0.3))) as server:
        judged = []

        def stop_in_the_third_round(tasks, samples):
            judged.append(len(samples))
            if len(judged) == 3:
                raise KeyboardInterrupt
            return is_right(tasks, samples)

        with pytest.raises(KeyboardInterrupt):
            find(server, tmp_path, target, passes=stop_in_the_third_round)
        before = server.received
        found, samples, sampler = find(server, tmp_path, target, window=3)
        asked = Counter((body["messages"][0]["content"], body["seed"]) for body in server.bodies)
        fresh, fresh_samples, _ = find(server, tmp_path / "fresh", target)
    assert sampler.counts.reused == before == sum(judged)
    assert set(asked.values()) == {1}
    assert samples == fresh_samples and found.report() == fresh.report()


def test_a_budget_ends_rounds_in_order_and_the_next_run_goes_on(tmp_path, capsys):
    target = {"rows": 60, "tries": 4}
    with serving(StandIn(text=right_in(0.3), delay_s=0.05)) as server:
        found, samples, sampler = find(server, tmp_path, target, window=4, budget=Budget(output_tokens=100))
        assert sampler.budget_reached and found.report()["target_reached"] is False
        assert sampler.counts.received_tokens >= 100 and server.received < 60
        first = server.received
        found, samples, sampler = find(server, tmp_path, target)
        assert sampler.counts.reused + sampler.counts.requests_sent == sampler.counts.requested
        assert server.received - first == sampler.counts.requests_sent
        _fresh, fresh_samples, _ = find(server, tmp_path / "fresh", target)
    assert found.report()["target_reached"] is True and samples == fresh_samples
    assert "budget: reached" in capsys.readouterr().err


def test_a_lost_attempt_is_left_out_and_the_target_is_still_reached(tmp_path):
    faults = dict.fromkeys(range(3, 30, 5), Fault("status", 400))
    with serving(StandIn(text=right_in(0.3), faults=faults)) as server:
        found, _, sampler = find(server, tmp_path, {"rows": 30, "tries": 4})
    assert found.report()["passing"] == 30 and sampler.counts.lost == len(sampler.lost) == len(faults)


def test_each_task_is_asked_of_the_first_teacher_of_its_domain_and_one_of_none_is_named(tmp_path):
    tasks = [task(number, domain="math" if number % 2 else "code") for number in range(20)]
    with serving(StandIn(text=right_in(1.0))) as one, serving(StandIn(text=right_in(1.0))) as other:
        with Ledger(tmp_path / "ledger") as ledger:
            with sampler_of(one, ledger, tmp_path, name="a", domains=["math"]) as math:
                with sampler_of(other, ledger, tmp_path, name="b", domains=["code"]) as code:
                    found = run_rounds(lambda: tasks, [math, code], Target(tries=2), is_right)
                    samples = list(collect_set(found, tasks, [math, code]))
                    with pytest.raises(UserError, match=r"no teacher takes the domain code"):
                        run_rounds(lambda: tasks, [math], Target(), is_right)
    teachers = {sample.task_id: sample.teacher for sample in samples}
    assert all(teachers[t.task_id] == ("a" if t.domain == "math" else "b") for t in tasks)


made_attempts = st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=4), max_size=8)


@given(made_attempts, st.integers(1, 12) | st.none(), st.integers(1, 60) | st.none())
def test_the_set_is_a_prefix_in_task_order_that_ends_with_its_row_and_keeps_to_its_tokens(drawn, rows, tokens):
    found = Found(Target(rows=rows, tokens=tokens))
    for each in drawn:
        attempts = Attempts()
        found.attempts.append(attempts)
        for index, (cost, right) in enumerate(each):
            found.add(attempts, Try(index, cost, right))
    every = [one for attempts in found.attempts for one in attempts.tries]
    chosen = [one for kept in found.chosen() for one in kept]
    assert len(list(found.chosen())) == len(found.attempts)
    assert found.made == len(every) and found.passing == sum(one.right for one in every)
    assert chosen == every[: len(chosen)]
    assert sum(one.right for one in chosen) == found.rows() <= (rows or 10**9)
    assert sum(one.tokens for one in chosen) <= (tokens or 10**9)
    if rows is not None and found.rows() == rows:
        assert chosen[-1].right and found.reached()
    elif len(chosen) < len(every):  # only tokens end it earlier
        assert sum(one.tokens for one in every[: len(chosen) + 1]) > tokens
    if found.enough() and tokens is None:
        assert found.rows() == rows


def test_verdicts_are_told_to_those_who_scrape(tmp_path):
    with serving(StandIn(text=right_in(0.3))) as server:
        found, _, _ = find(server, tmp_path, {"rows": 20, "tries": 3})
    text = (tmp_path / ".work/metrics/t.prom").read_text()
    assert f'warmstart_samples_judged_total{{teacher="t"}} {found.made}\n' in text
    assert f'warmstart_samples_passed_total{{teacher="t"}} {found.passing}\n' in text


def test_an_answer_damaged_after_its_verdict_ends_the_run_and_the_next_one_asks_for_it(tmp_path):
    target = {"rows": 10, "tries": 2}
    with serving(StandIn(text=right_in(0.5))) as server:
        with Ledger(tmp_path / "ledger") as ledger, sampler_of(server, ledger, tmp_path) as sampler:
            found = run_rounds(lambda: TASKS, [sampler], Target.model_validate(target), is_right)
            file = tmp_path / "ledger/segments/000001.jsonl"
            lines = file.read_bytes().splitlines(keepends=True)
            lines[1] = lines[1].replace(b"It is", b"It iz")
            file.write_bytes(b"".join(lines))
            with pytest.raises(UserError, match="damaged after it had been judged"):
                list(collect_set(found, TASKS, [sampler]))
        before = server.received
        found, samples, _ = find(server, tmp_path, target)
    assert server.received == before + 1 and found.report()["passing"] == 10
    assert sum(is_right({t.task_id: t for t in TASKS}, samples)) == 10
