"""The command line explains every stage and answers every mistake on one screen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.main import command_names, stage_names

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "trl", "datasets", "deepspeed", "vllm", "matplotlib", "reasoning_gym", "distributed")
CONFIG = "sources: [{type: jsonl, name: own, domain: math, verifier: math, license: MIT, path: own.jsonl}]\n"


@pytest.fixture
def warmstart(tmp_path):
    """Run a command in a folder of its own that holds a config and a source."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/own.jsonl").write_text('{"prompt": "2 + 2?", "answer": "4"}\n')
    (tmp_path / "tasks.yaml").write_text(CONFIG)

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipeline", *argv]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("WARMSTART_MACHINE", None)
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    return run


TASKS = ("tasks", "--config", "tasks.yaml", "--in", "sources=sources", "--out", "data/own/tasks", "--report", "r.json")


def test_a_stage_runs_and_moves_output_and_report_into_place(warmstart, tmp_path):
    done = warmstart(*TASKS)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data/own/tasks/tasks/manifest.json").exists()
    assert json.loads((tmp_path / "r.json").read_text())["tasks"] == 1
    assert "tasks" in done.stdout and "data/own/tasks" in done.stdout
    assert not list((tmp_path / ".work/own/tasks").glob("*/output"))


def test_set_and_limit_reach_the_config(warmstart, tmp_path):
    (tmp_path / "sources/own.jsonl").write_text('{"prompt": "2 + 2?", "answer": "4"}\n' * 3)
    assert warmstart(*TASKS, "--limit", "2", "--set", "sources.0.domain=sums").returncode == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["read"], report["tasks_sums"], report["rejected_duplicate"]) == (2, 1, 1)


def test_a_failed_run_leaves_the_last_output_and_report(warmstart, tmp_path):
    assert warmstart(*TASKS).returncode == 0
    (tmp_path / "sources/own.jsonl").write_text("")
    assert warmstart(*TASKS).returncode == 1
    assert (tmp_path / "data/own/tasks/tasks/manifest.json").exists()
    assert json.loads((tmp_path / "r.json").read_text())["tasks"] == 1


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("tusks",), "no stage `tusks`; the stages are: base, tasks"),
        (("tasks",), "--config"),
        ((*TASKS, "--sett", "a=1"), "--sett"),
        ((*TASKS, "--set", "sources.0.domian=x"), "allowed here: columns, domain"),
        ((*TASKS, "--set", "sead=1"), "tasks.yaml: sead"),
        ((*TASKS, "--limit", "0"), "--limit 0"),
        ((*TASKS, "--in", "sauces=sources"), "--in sauces"),
        ((*TASKS, "--in", "sources"), "NAME=PATH"),
        ((*TASKS, "--in", "sources=nowhere"), "nowhere: does not exist"),
        (("filter", "--config", "tasks.yaml", "--out", "o", "--report", "r"), "tasks.yaml: sources"),
        (("filter", "--config", os.devnull, "--out", "o", "--report", "r"), "--in tasks=PATH --in samples=PATH"),
        (("tasks", "--config", "no.yaml", "--out", "o", "--report", "r"), "no.yaml: no such config file"),
        (("tasks", "--config", "tasks.yaml", "--out", "o", "--report", "r"), "--in sources=DIR"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ",
)
def test_a_mistake_is_answered_on_one_screen_without_a_traceback(warmstart, argv, expected):
    done = warmstart(*argv)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 24


def test_general_help_lists_every_stage_and_command(warmstart):
    done = warmstart("--help")
    assert done.returncode == 0
    for name in (*stage_names(), *command_names()):
        assert f"  {name} " in done.stdout
    assert not set(stage_names()) & set(command_names())


@pytest.mark.parametrize("argv", [["--help"], *([name, "--help"] for name in command_names())], ids=" ".join)
def test_help_loads_nothing_heavy(argv):
    code = (
        "import sys; from pipeline.cli.main import main; code = main(sys.argv[1:])\n"
        "print('HEAVY', *sorted({name.split('.')[0] for name in sys.modules}))\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text, _, modules = done.stdout.partition("HEAVY")
    assert not set(HEAVY) & set(modules.split())
    assert "usage: warmstart" in text


@pytest.mark.parametrize("stage", stage_names())
def test_help_of_a_stage_explains_every_key_and_loads_nothing_heavy(stage):
    code = (
        "import sys; from pipeline.cli.main import main; code = main(sys.argv[1:])\n"
        "print('HEAVY', *sorted({name.split('.')[0] for name in sys.modules}))\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, stage, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text, _, modules = done.stdout.partition("HEAVY")
    assert not set(HEAVY) & set(modules.split())
    for expected in (f"usage: warmstart {stage}", "config keys:", "  seed  (int; default 0)", "--limit N"):
        assert expected in text
