"""Verdicts kept by content, tasks read in step with their samples, and verifiers that fail."""

import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pipeline.config import Machine
from pipeline.records import Sample, Task, canonical_json
from pipeline.shards import write_table
from pipeline.verdicts import Judge, TasksInStep, judging, tasks
from pipeline.verdicts.store import VerdictStore
from pipeline.verify import VERIFIERS, Item, Judgement, Limits, judge_once

RIGHT = Judgement("pass", 1.0, "equal", {"answer": "12", "odd": "ü\ud83d"})
KEYS = [number.to_bytes(16, "big") for number in range(2000)]


def made_task(number, verifier="math", reference=None):
    text = canonical_json([{"role": "user", "content": f"What is {number}?"}])
    reference = canonical_json(reference or {"answer": str(number)})
    return Task(f"t{number}", f"p{number}", "own", "1", None, "MIT", "math", text, None, verifier, reference, "train")


def made_sample(number, text, task_id=None):
    messages = canonical_json([{"role": "assistant", "content": text}])
    return Sample(f"s{number}", task_id or f"t{number}", 0, "t", "[]", messages, "complete", 1, 1, 0)


def test_judgements_come_back_as_they_were_stored(tmp_path):
    with VerdictStore(tmp_path) as store:
        store.put(dict.fromkeys(KEYS[:1500], RIGHT))
        store.put({KEYS[0]: Judgement("fail", 0.0, "wrong_answer")})
    with VerdictStore(tmp_path) as store:
        found = store.find(KEYS)
    assert found == {**dict.fromkeys(KEYS[1:1500], RIGHT), KEYS[0]: Judgement("fail", 0.0, "wrong_answer")}


@pytest.mark.parametrize("reason", ["wall_timeout", "box_failed", "verifier_error"])
def test_what_the_machine_left_undecided_is_not_kept(tmp_path, reason):
    with VerdictStore(tmp_path) as store:
        store.put({KEYS[0]: Judgement("unknown", None, reason), KEYS[1]: Judgement("unknown", None, "bad_reference")})
        assert list(store.find(KEYS)) == [KEYS[1]]


@pytest.mark.parametrize("damage", ["head", "page", "row", "gone"])
def test_a_damaged_store_is_begun_anew(tmp_path, damage, capsys):
    path = tmp_path / "verdicts.sqlite"
    with VerdictStore(tmp_path) as store:
        store.put(dict.fromkeys(KEYS, RIGHT))
        if damage == "row":
            store._db.execute("UPDATE judgements SET text = '[1]'")
    data = bytearray(path.read_bytes())
    if damage == "head":
        data[:100] = b"\0" * 100
    elif damage == "page":
        for start in range(4096, len(data), 4096):
            data[start : start + 64] = b"\xff" * 64
    path.write_bytes(data)
    if damage == "gone":
        path.unlink()
    with VerdictStore(tmp_path) as store:
        assert store.find(KEYS) == {}
        store.put({KEYS[0]: RIGHT})
        assert store.find(KEYS) == {KEYS[0]: RIGHT}
    assert ("damaged, begun anew" in capsys.readouterr().err) == (damage != "gone")


def put_some(folder, first):
    with VerdictStore(folder) as store:
        for key in KEYS[first : first + 200]:
            store.put({key: RIGHT})


def test_two_processes_store_side_by_side(tmp_path):
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=put_some, args=(tmp_path, first)) for first in (0, 100, 200)]
    for process in others:
        process.start()
    for process in others:
        process.join()
    assert [process.exitcode for process in others] == [0, 0, 0]
    with VerdictStore(tmp_path) as store:
        assert len(store.find(KEYS)) == 400


@pytest.mark.parametrize("step", [1, 7, -1])
def test_tasks_are_found_in_step_backwards_and_again(tmp_path, step, monkeypatch):
    write_table(tmp_path / "tasks", Task, map(made_task, range(50)))
    read = Counter()
    plain = tasks.iter_table

    def counted(folder, kind):
        for row in plain(folder, kind):
            read["rows"] += 1
            yield row

    monkeypatch.setattr(tasks, "iter_table", counted)
    table = TasksInStep(tmp_path / "tasks")
    for start in range(0, 50, 5) if step > 0 else range(45, -1, -5):
        wanted = {f"t{number % 50}" for number in range(start, start + 5)}
        assert set(table.find(wanted)) == wanted == set(table.find(wanted))
    assert step < 0 or read["rows"] == 50  # once in all
    assert table.find({"t3", "gone"}).keys() == {"t3"}


def test_the_same_answer_to_the_same_reference_is_judged_once(tmp_path, monkeypatch):
    judged = []
    plain = judging.judge_once
    monkeypatch.setattr(judging, "judge_once", lambda items, limits: judged.extend(items) or plain(items, limits))
    machine = Machine(workers=1, verdicts=tmp_path / "verdicts")
    known = {"t1": made_task(1)}
    samples = [made_sample(number, "The answer is 1.", "t1") for number in range(9)]
    with Judge(Limits(), machine) as judge:
        assert judge.passes(known, samples) == [True] * 9
        assert judge.passes(known, samples[::-1]) == [True] * 9
    assert len(judged) == 1


def test_a_verifier_that_fails_on_an_answer_costs_no_other_its_verdict(monkeypatch):
    plain = VERIFIERS["math"].judge

    def judge(items, limits):
        if any("bad" in item.answer for item in items):
            raise RecursionError
        return plain(items, limits)

    monkeypatch.setattr(VERIFIERS["math"], "judge", judge)
    texts = ["The answer is 1.", "bad", "The answer is 2."]
    items = [Item(str(n), "math", text, "complete", {"answer": "1"}) for n, text in enumerate(texts)]
    found = judge_once(items, Limits())
    assert [(one.verdict, one.reason) for one in found] == [
        ("pass", "equal"),
        ("unknown", "verifier_error"),
        ("fail", "wrong_answer"),
    ]
    assert found[1].evidence == {"error": "RecursionError"}


def test_progress_counts_samples_and_not_different_answers(tmp_path, capsys):
    samples = [made_sample(number, "The answer is 1." if number % 2 else " ", "t1") for number in range(10)]
    for _ in range(2):  # judged, then known
        with Judge(Limits(), Machine(workers=1, verdicts=tmp_path / "verdicts")) as judge:
            assert sum(judge.passes({"t1": made_task(1)}, samples)) == 5
        assert "verify: 10/10 samples" in (said := capsys.readouterr().err) and "5 fail, 5 pass" in said


TWO_RUNS = r"""
from pathlib import Path
from pipeline.config import Machine
from pipeline.verdicts import Judge
from pipeline.verify import Limits
from pipeline.work import Guard
from tests.pipeline.test_verdicts import formula
if __name__ == "__main__":
    for run in ("first", "second"):
        with Guard(Path(f"{run}.json")), Judge(Limits(), Machine(workers=1, verdicts=Path(run))) as judge:
            task, sample = formula()
            print(judge.passes({task.task_id: task}, [sample]))
"""


def formula():
    """A task and a right answer that only a process can compare."""
    return made_task(1, reference={"answer": r"2\sqrt{3}+x"}), made_sample(1, r"\boxed{x+2\sqrt{3}}")


def test_a_second_run_in_one_process_compares_formulas_after_the_guard_of_the_first_ended_its_processes(tmp_path):
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "runs.py").write_text(TWO_RUNS)
    done = subprocess.run(
        [sys.executable, "runs.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["[True]", "[True]"], done.stderr
