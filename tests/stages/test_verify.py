"""One verdict a sample and verifier; a killed run resumes; the bytes do not depend on the number of workers."""

import hashlib
import json
from pathlib import Path

import pytest

from pipeline.config import load_config
from pipeline.errors import UserError
from pipeline.records import Sample, Task, Verdict, canonical_json
from pipeline.shards import iter_table, write_table
from pipeline.verdicts import judging
from pipeline.verify import Judgement
from stages import verify

ROOT = Path(__file__).resolve().parents[2]
CONFIG = verify.Config.model_validate({"limits": {"code": {"cpu_s": 1, "wall_s": 15}, "math": {"cpu_s": 1}}})
ADD = {"function": "add", "tests": [{"args": [1, 2], "expected": 3}, {"args": [5, 5], "expected": 10}]}


def task(name: str, verifier: str, reference: object) -> Task:
    messages = canonical_json([{"role": "user", "content": name}])
    return Task(
        name, name, "own", name, None, "CC0-1.0", verifier, messages, None, verifier, canonical_json(reference), "train"
    )


def sample(index: int, task_id: str, content: str, outcome: str = "complete") -> Sample:
    message = {"role": "assistant", "content": content, "reasoning_content": "The answer is 12."}
    return Sample(f"s{index:04d}", task_id, index, "me", "[]", canonical_json([message]), outcome, 1, 1, 0)


TASKS = [task("t-math", "math", {"answer": "12"}), task("t-code", "code", ADD)]
ANSWERS = [
    ("t-math", "The answer is 12.", "complete", "pass", "equal"),
    ("t-math", "The answer is 13.", "complete", "fail", "wrong_answer"),
    ("t-math", "I do not know.", "complete", "fail", "no_answer"),
    ("t-math", "The answer is 12.", "cut_in_answer", "fail", "cut_in_answer"),
    ("t-math", r"\boxed{9^{9^{9}}}", "complete", "unknown", "cpu_limit"),
    ("t-code", "```python\ndef add(a, b):\n    return a + b\n```", "complete", "pass", "equal"),
    ("t-code", "```python\ndef add(a, b):\n    return 3\n```", "complete", "fail", "wrong_answer"),
    ("t-code", "It adds.", "complete", "fail", "no_code"),
]


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """150 samples of which only the first are costly; verdicts are stored below the test's own folder."""
    monkeypatch.chdir(tmp_path)
    samples = [sample(i, name, text, outcome) for i, (name, text, outcome, *_) in enumerate(ANSWERS)]
    samples += [sample(i, "t-math", f"The answer is {i % 3 + 11}.") for i in range(len(ANSWERS), 150)]
    write_table(tmp_path / "tasks", Task, TASKS)
    write_table(tmp_path / "generate", Sample, samples)
    return {"tasks": tmp_path / "tasks", "samples": tmp_path / "generate"}


def output_folder(tmp_path: Path, name: str) -> Path:
    output = tmp_path / name / "output"
    output.mkdir(parents=True)
    return output


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_every_sample_gets_one_verdict_in_order_and_the_report_counts_them(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WARMSTART_MACHINE", machine(tmp_path, workers=1))
    output = output_folder(tmp_path, "one")
    report = verify.run(CONFIG, inputs, output)
    verdicts = list(iter_table(output, Verdict))
    assert [v.sample_id for v in verdicts] == [s.sample_id for s in iter_table(inputs["samples"], Sample)]
    assert [(v.verdict, v.reason) for v in verdicts[: len(ANSWERS)]] == [(v, r) for *_, v, r in ANSWERS]
    assert all(v.verifier_version and json.loads(v.evidence) is not None for v in verdicts)
    assert all((v.score is None) == (v.verdict == "unknown" or v.reason == "cut_in_answer") for v in verdicts)
    assert report["samples"] == 150 == sum(int(report[name]) for name in ("pass", "fail", "unknown"))
    assert sum(int(n) for key, n in report.items() if key.startswith("reason_")) == 150
    assert report["unknown"] == report["reason_cpu_limit"] == 1
    assert report["samples_math"] == 147 and report["samples_code"] == 3
    assert report["pass_rate_code"] == round(1 / 3, 6)
    assert report["pass_rate_math"] == round(
        sum(v.verdict == "pass" for v in verdicts if v.verifier == "math") / 146, 6
    )


def machine(tmp_path: Path, workers: int) -> str:
    path = tmp_path / f"machine-{workers}.yaml"
    path.write_text(f"workers: {workers}\n")
    return str(path)


def test_the_bytes_are_equal_for_one_worker_and_two(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = []
    for workers in (1, 2):
        monkeypatch.setenv("WARMSTART_MACHINE", machine(tmp_path, workers))
        output = output_folder(tmp_path, f"workers-{workers}")
        found.append((verify.run(CONFIG, inputs, output), digests(output)))
    assert found[0] == found[1]


def test_a_killed_run_judges_again_only_what_no_finished_chunk_holds(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WARMSTART_MACHINE", machine(tmp_path, workers=1))
    monkeypatch.setattr(judging, "CHUNK", 2)
    judged: list[str] = []
    plain, left = judging.judge_chunk, 3

    def counted(chunk: judging.Chunk) -> tuple[list[Judgement], float]:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        judged.extend(item.key for item in chunk.items)
        return plain(chunk)

    monkeypatch.setattr(judging, "judge_chunk", counted)
    killed = output_folder(tmp_path, "killed")
    with pytest.raises(KeyboardInterrupt):
        verify.run(CONFIG, inputs, killed)
    before, left = list(judged), 1000
    verify.run(CONFIG, inputs, killed)
    assert before and len(set(judged)) == len(judged)
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    whole = output_folder(tmp_path, "whole")
    verify.run(CONFIG, inputs, whole)
    assert digests(killed) == digests(whole)


def test_what_was_judged_once_is_not_judged_again(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WARMSTART_MACHINE", machine(tmp_path, workers=1))
    first, second = output_folder(tmp_path, "first"), output_folder(tmp_path, "second")
    verify.run(CONFIG, inputs, first)
    monkeypatch.setattr(judging, "judge_chunk", None)  # would fail if it were called
    verify.run(CONFIG, inputs, second)
    assert digests(first) == digests(second)


def test_windows_of_any_size_give_the_same_bytes(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WARMSTART_MACHINE", machine(tmp_path, workers=1))
    found = []
    for size in (1, 7, 8192):
        monkeypatch.setattr(judging, "WINDOW", size)
        output = output_folder(tmp_path, f"window-{size}")
        found.append((verify.run(CONFIG, inputs, output), digests(output)))
    assert found[0] == found[1] == found[2]


def test_other_answers_limits_or_references_never_meet_a_stored_verdict():
    def key(content: str, answer: str, limits: verify.Limits) -> bytes:
        tasks = {"t-math": task("t-math", "math", {"answer": answer})}
        return judging.key_of(judging.make_item(tasks, sample(0, "t-math", content)), limits)

    texts = ("The answer is 12.", "The answer is 1.")
    keys = {key(text, answer, limits) for text in texts for answer in ("12", "13") for limits in LIMITS}
    assert len(keys) == 8
    others = CONFIG.limits.model_copy(update={"code": LIMITS[0].code})
    assert key(texts[0], "12", CONFIG.limits) == key(texts[0], "12", others)  # the limits of code are not math's


LIMITS = (verify.Limits(), CONFIG.limits)


def test_what_is_only_said_while_thinking_is_no_answer():
    message = {"role": "assistant", "content": None, "reasoning_content": "The answer is 12."}
    assert judging.final_answer(canonical_json([message])) == ""
    assert judging.final_answer("[]") == ""


def test_limit_takes_the_first_samples(inputs: dict[str, Path], tmp_path: Path):
    output = output_folder(tmp_path, "limited")
    assert verify.run(CONFIG.model_copy(update={"limit": 2}), inputs, output)["samples"] == 2


def test_no_samples_give_an_empty_table(inputs: dict[str, Path], tmp_path: Path):
    write_table(tmp_path / "none", Sample, [])
    output = output_folder(tmp_path, "empty")
    report = verify.run(CONFIG, {**inputs, "samples": tmp_path / "none"}, output)
    assert report == {"samples": 0, "pass": 0, "fail": 0, "unknown": 0}
    assert list(iter_table(output, Verdict)) == []


def test_a_sample_without_its_task_is_a_user_error(inputs: dict[str, Path], tmp_path: Path):
    write_table(tmp_path / "stray", Sample, [sample(0, "t-gone", "The answer is 12.")])
    with pytest.raises(UserError, match="s0000 belongs to task t-gone"):
        verify.run(CONFIG, {**inputs, "samples": tmp_path / "stray"}, output_folder(tmp_path, "stray-out"))


def test_an_unknown_verifier_is_a_user_error(inputs: dict[str, Path], tmp_path: Path):
    write_table(tmp_path / "odd", Task, [task("t-math", "maths", {}), TASKS[1]])
    with pytest.raises(UserError, match="'maths' is not known; known are math, code"):
        verify.run(CONFIG, {**inputs, "tasks": tmp_path / "odd"}, output_folder(tmp_path, "odd-out"))


def test_too_many_undecided_verdicts_fail_the_stage(inputs: dict[str, Path], tmp_path: Path):
    config = CONFIG.model_copy(update={"max_rejected": 0.01, "limit": 8})
    with pytest.raises(UserError, match=r"1 of 8 verdicts are `unknown`.*max_rejected = 0.01.*cpu_limit 1"):
        verify.run(config, inputs, output_folder(tmp_path, "strict"))


@pytest.mark.parametrize("recipe", ["demo", "smoke"])
def test_the_recipes_hold_valid_settings(recipe: str):
    load_config(verify.Config, ROOT / "configs" / recipe / "verify.yaml")
