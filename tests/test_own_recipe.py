"""A recipe of one's own, made as the README says, from twenty lines of JSON to a report and a published folder."""

import json
import os
import subprocess

import pytest

from pipeline.records import Task, Trace
from pipeline.shards import iter_table
from tests.project import ROOT, Project

pytestmark = pytest.mark.proof


def test_twenty_rows_of_ones_own_run_through_to_report_and_published_folder(tmp_path):
    project = Project(tmp_path / "project")
    rows = [{"question": f"What is {a} + {b}?", "final_answer": a + b} for a in range(1, 6) for b in range(2, 6)]
    mine = tmp_path / "mine.jsonl"
    mine.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["new", "sums", "--from", "demo", "--tasks", str(mine), "--license", "CC0-1.0"]
    warmstart = ROOT / ".venv/bin/warmstart"
    environment = {**os.environ, "PYTHONPATH": str(project.folder)}
    made = subprocess.run([warmstart, *words], cwd=project.folder, env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    project.dvc("repro", "configs/sums/dvc.yaml")

    tasks = list(iter_table(project.data("tasks", "sums"), Task))
    assert len(tasks) == 20 and {task.license for task in tasks} == {"CC0-1.0"}
    traces = list(iter_table(project.data("decontaminate", "sums"), Trace))
    assert {trace.source for trace in traces} == {"sums"} and {trace.verdict for trace in traces} == {"pass"}
    for phase in ("general", "agentic"):
        assert project.report(f"sft/{phase}", "sums")["engine"] == "DeepSpeedEngine"
    assert "sums" in (project.data("report", "sums") / "summary.txt").read_text()
    assert "<html" in (project.data("report", "sums") / "index.html").read_text()
    card = (project.data("publish", "sums") / "README.md").read_text()
    assert "license: cc0-1.0" in card
    assert project.report("publish", "sums")["rows"] == len(traces) > 0
    assert project.processes() == []
