"""Kills with the real parts: what is finished is kept, what is left over is ended."""

import os
import shutil
import signal
import sqlite3
import time

import psutil
import pytest

from pipeline.records import Sample
from pipeline.shards import iter_table
from tests.project import Project

pytestmark = pytest.mark.proof


def wait_for(condition, limit_s, process):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline, "the run did not get so far"
        time.sleep(0.05)


def ledger_rows(project):
    try:
        with sqlite3.connect(f"file:{project.folder}/.work/ledger/ledger.sqlite?mode=ro", uri=True) as db:
            return db.execute("SELECT COUNT(*) FROM answers").fetchone()[0]
    except sqlite3.Error:
        return 0


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("project"))
    project.dvc("repro", "configs/smoke/dvc.yaml:tasks", "configs/smoke/dvc.yaml:base")
    return project


@pytest.mark.parametrize("victim", ["the stage", "dvc and everything below it"])
def test_a_killed_generate_asks_only_for_missing_samples_and_leaves_no_process(project, victim):
    shutil.rmtree(project.folder / ".work/ledger", ignore_errors=True)
    run = project.start("repro", "--force", "--single-item", "configs/smoke/dvc.yaml:generate")
    wait_for(lambda: ledger_rows(project) >= 20, 600, run)
    if victim == "the stage":
        stages = [p for p in project.processes() if p.cmdline()[1:4] == ["-m", "pipeline", "generate"]]
        assert stages
        victims = stages
    else:
        victims = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for process in victims:
        os.kill(process.pid, signal.SIGKILL)
    run.wait()
    if victim == "the stage":
        assert project.wait_until_empty() == []
    kept = ledger_rows(project)
    project.dvc("repro", "configs/smoke/dvc.yaml:generate")
    assert project.wait_until_empty() == []
    report = project.report("generate")
    samples = list(iter_table(project.data("generate"), Sample))
    assert report["reused"] == kept
    assert report["requests_sent"] == report["server_requests"] == report["requested"] - kept
    assert len({(s.task_id, s.index) for s in samples}) == len(samples) == report["requested"]
