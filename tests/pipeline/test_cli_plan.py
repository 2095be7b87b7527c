"""`warmstart plan`: exact where it can be, honest where it cannot, and nothing of the pilot is paid for twice."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.cli.main import main
from pipeline.records import Sample, Task, canonical_json, content_id, prompt_id_of
from pipeline.shards import iter_table, write_table
from tests.standin import StandIn, serving

ROOT = Path(__file__).resolve().parents[2]
PLAN = ("plan", "--config", "generate.yaml", "--in", "tasks=tasks")


def task(i, domain="math", split="train"):
    messages, reference = [{"role": "user", "content": f"What is {i} + {i}?"}], canonical_json({"answer": str(2 * i)})
    ids = (content_id(messages, reference), prompt_id_of(messages))
    return Task(*ids, "sums", str(i), None, "CC0", domain, canonical_json(messages), None, "math", reference, split)


def said_by(share):
    """Right for a share of the requests, by their seed."""

    def text(body):
        number = int(re.search(r"\d+", body["messages"][0]["content"])[0])
        right = body["seed"] % 1000 < 1000 * share(number)
        return f"It is \\boxed{{{2 * number if right else 2 * number + 1}}}.<|im_end|>"

    return text


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A hundred training tasks of two domains, a config of three samples a task, and a way to name the server."""
    monkeypatch.chdir(tmp_path)
    domains = ["math"] * 75 + ["code"] * 25
    write_table(Path("tasks"), Task, [*map(task, range(100), domains), task(900, split="heldout")])
    engine = {"type": "endpoints", "model": "m", "model_revision": "1"}
    teacher = {"name": "t", "engine": engine, "sampling": {"max_tokens": 64}}
    Path("generate.yaml").write_text(yaml.safe_dump({"samples_per_task": 3, "teachers": [teacher]}))
    monkeypatch.setenv("WARMSTART_MACHINE", "machine.yaml")

    def use(url):
        machine = {"endpoints": {"t": {"urls": [url]}, "u": {"urls": [url, url]}}, "ledger": "ledger", "workers": 1}
        Path("machine.yaml").write_text(yaml.safe_dump(machine))

    use("http://127.0.0.1:9/v1")
    return use


def said_of(capsys, *argv):
    assert main([*PLAN, *argv]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def problem_of(capsys, *argv):
    assert main(argv) == 1
    found = capsys.readouterr()
    assert "Traceback" not in found.err
    return found.err


def run_stage(*more):
    command = ["generate", *PLAN[1:], *more, "--out", "out", "--report", "report.json"]
    assert main(command) == 0
    return json.loads(Path("report.json").read_text())


def numbers(said, name):
    """(low, mean, high) of a line of the forecast."""
    line = next(line for line in said.splitlines() if line.startswith(f"  {name} "))
    mean, low, high = (float(text.replace(",", "")) for text in re.findall(r"[\d,]*\.?\d+", line[len(name) :])[:3])
    return low, mean, high


def test_without_a_pilot_it_counts_exactly_and_asks_nobody(bench, capsys):
    said = said_of(capsys, "--pilot", "0")
    assert "100 training tasks (75 math, 25 code)" in said
    assert "t: 100 tasks x 3 = 300 samples, 0 in the ledger, 300 to ask" in said
    assert "forecast" not in said and "pilot" not in said
    with serving(StandIn()) as server:
        bench(server.url)
        run_stage("--limit", "20")
    bench("http://127.0.0.1:9/v1")
    said = said_of(capsys, "--pilot", "0", "--set", "samples_per_task=4")
    assert "100 tasks x 4 = 400 samples, 60 in the ledger, 340 to ask" in said


def test_without_a_pilot_it_says_which_key_field_changed(bench, capsys):
    with serving(StandIn()) as server:
        bench(server.url)
        run_stage()
    assert main([*PLAN, "--pilot", "0", "--set", "teachers.0.sampling.temperature=0.5"]) == 0
    found = capsys.readouterr()
    assert "300 stored samples of t do not fit any more, since sampling.temperature 0.8 -> 0.5" in found.err
    assert "0 in the ledger, 300 to ask" in found.out


def test_nothing_of_the_pilot_is_paid_for_twice(bench, capsys):
    with serving(StandIn(text=said_by(lambda number: 0.5))) as server:
        bench(server.url)
        said = said_of(capsys, "--pilot", "16")
        assert "pilot: 16 tasks (12 math, 4 code), 48 samples (48 complete)" in said
        assert "still to ask of t after the pilot: 252 samples" in said
        assert server.answered == 48
        report = run_stage()
        assert server.answered == 300 == len({body["seed"] for body in server.bodies})
    assert report["reused"] == 48 and report["requests_sent"] == 252
    asked = [body["messages"][0]["content"] for body in server.bodies[:48]]
    assert len(set(asked)) == 16 and max(int(re.search(r"\d+", text)[0]) for text in asked) > 50


def test_tasks_that_are_all_alike_are_forecast_as_they_come(bench, capsys):
    with serving(StandIn(text=said_by(lambda number: 1.0))) as server:
        bench(server.url)
        said = said_of(capsys, "--pilot", "20", "--price", "3")
        report = run_stage()
    assert numbers(said, "pass rate")[1:] == (100, 100)
    assert numbers(said, "passing samples")[1:] == (300, 300) and numbers(said, "tasks with one")[1:] == (100, 100)
    low, mean, high = numbers(said, "output tokens")
    assert low <= report["received_tokens"] <= high and mean == pytest.approx(report["received_tokens"], rel=0.1)
    assert 0 < numbers(said, "prompt tokens")[1] < report["prompt_tokens"]
    assert "server-hours" in said and "at 3 an hour" in said and "Times hold for the machine" in said


def test_yields_of_mixed_tasks_lie_in_their_intervals(bench, capsys):
    with serving(StandIn(text=said_by(lambda number: (number % 10) / 10))) as server:
        bench(server.url)
        said = said_of(capsys, "--pilot", "40")
        run_stage()
    right = {}
    tasks = {t.task_id: t for t in iter_table(Path("tasks"), Task)}
    for sample in iter_table(Path("out"), Sample):
        wanted = json.loads(tasks[sample.task_id].reference)["answer"]
        right.setdefault(sample.task_id, []).append(f"{{{wanted}}}" in sample.messages)
    for name, truth in (
        ("passing samples", sum(map(sum, right.values()))),
        ("tasks with one", sum(map(any, right.values()))),
    ):
        low, mean, high = numbers(said, name)
        assert low <= truth <= high and low < mean < high < 1.5 * mean


def test_a_target_is_forecast_by_its_rounds_and_the_run_then_asks_as_many(bench, capsys):
    target = ("--set", "target={passing: 1, tries: 6}")
    with serving(StandIn(text=said_by(lambda number: 0.5))) as server:
        bench(server.url)
        said = said_of(capsys, "--pilot", "40", *target)
        pilot = server.answered
        report = run_stage(*target)
        assert server.answered == report["requested"]  # nothing twice, and nothing that the run does not want
    assert "t: 100 tasks x at most 6 = at most 600 samples" in said
    assert "until each task has 1 passing or 6 attempts" in said
    low, mean, high = numbers(said, "attempts")
    assert low <= report["requested"] <= high and mean < 300
    rest = numbers(said[said.index("still to ask") :], "attempts")
    assert rest[0] <= report["requested"] - pilot <= rest[2]
    assert numbers(said, "tasks with enough")[1] > 90
    said = said_of(capsys, "--pilot", "40", "--set", "target={passing: 1, tries: 6, rows: 5000}")
    assert "until 5,000 samples pass" in said and "the tasks run out before that with a probability of 100%" in said


def test_samples_that_are_cut_and_asked_again_are_paid_for_twice(bench, capsys):
    with serving(StandIn(text=lambda body: "4 " * 200)) as server:  # 100 tokens, as the stand-in counts
        bench(server.url)
        twice = ("--set", "teachers.0.max_tokens_if_cut=128")
        said = said_of(capsys, "--pilot", "20", *twice)
        report = run_stage(*twice)
    assert report["received_tokens"] == 240 * (64 + 100)
    assert numbers(said, "output tokens")[1] == report["received_tokens"]


def test_two_teachers_are_forecast_each(bench, capsys):
    config = yaml.safe_load(Path("generate.yaml").read_text())
    config["teachers"].append({**config["teachers"][0], "name": "u", "domains": ["code"]})
    config["teachers"][1]["sampling"] = {"max_tokens": 64, "temperature": 0.3}
    Path("generate.yaml").write_text(yaml.safe_dump(config))
    with serving(StandIn(text=said_by(lambda number: 1.0))) as server:
        bench(server.url)
        said = said_of(capsys, "--pilot", "12")
    assert "u: 25 tasks x 3 = 75 samples" in said and "all teachers together:\n  server-hours" in said
    assert "still to ask of t after the pilot: 264" in said and "still to ask of u after the pilot: 66" in said
    assert numbers(said, "passing samples")[1] == pytest.approx(375)
    assert "100 tasks and 375 samples" in said


def test_a_pilot_that_was_made_before_measures_no_speed_and_says_so(bench, capsys):
    with serving(StandIn()) as server:
        bench(server.url)
        first = said_of(capsys, "--pilot", "12")
        asked = server.answered
        second = said_of(capsys, "--pilot", "12")
        assert server.answered == asked
    assert numbers(first, "output tokens") == numbers(second, "output tokens")
    assert "speed not measured" in second and "wall time          not known" in second


def test_a_plan_leaves_no_work_behind(bench, capsys):
    with serving(StandIn()) as server:
        bench(server.url)
        said_of(capsys, "--pilot", "3")
    left = {path.name for path in Path(".work/plan").iterdir()}
    assert left <= {"lock", "processes.json"}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("plan",), "--config"),
        (("plan", "--config", "generate.yaml"), "needs --in tasks=PATH"),
        (("plan", "--config", "no.yaml", "--in", "tasks=tasks"), "no.yaml: no such config file"),
        ((*PLAN, "--pilot", "-1"), "give a number of tasks"),
        ((*PLAN, "--price", "-1"), "0 or more"),
        ((*PLAN, "--in", "samples=tasks"), "this command reads tasks, teacher"),
        ((*PLAN, "--set", "samples=3"), "samples: Extra inputs are not permitted"),
        (("plan", "--config", "generate.yaml", "--in", "tasks=heldout"), "holds no training task"),
        ((*PLAN, "--set", "teachers.0.engine={type: local}"), "give it with --in teacher=PATH"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_answered_without_a_traceback(bench, capsys, argv, expected):
    write_table(Path("heldout"), Task, [task(900, split="heldout")])
    assert expected in problem_of(capsys, *argv)


def test_a_server_that_is_not_there_is_named(bench, monkeypatch, capsys):
    from pipeline.engine import fleet

    monkeypatch.setattr(fleet, "MAX_TRIES", 1)
    assert "no answer after 1 tries" in problem_of(capsys, *PLAN, "--pilot", "2")


def test_help_comes_without_loading_arrow():
    code = "import sys; from pipeline.cli.main import main; main(['plan', '--help']); print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--price EUR" in done.stdout and done.stdout.endswith("False\n")
