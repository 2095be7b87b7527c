"""Kills with the real parts: what is finished is kept, what is left over is ended."""

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import time

import psutil
import pytest

from pipeline.records import Sample
from pipeline.shards import iter_table, sha256_of
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
    # Forced and without DVC's run cache, which would hand back the rows of the run before.
    again = ["repro", "--force", "--single-item", "--no-run-cache", "configs/smoke/dvc.yaml:generate"]
    run = project.start(*again)
    wait_for(lambda: ledger_rows(project) >= 20, 600, run)
    if victim == "the stage":
        stages = [p for p in project.processes() if p.cmdline()[1:4] == ["-m", "pipeline", "generate"]]
        assert stages
        victims = stages
    else:
        victims = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for process in victims:
        with contextlib.suppress(ProcessLookupError):  # the guard may have been quicker
            os.kill(process.pid, signal.SIGKILL)
    run.wait()
    if victim == "the stage":
        assert project.wait_until_empty() == []
    kept = ledger_rows(project)
    project.dvc(*again)
    assert project.wait_until_empty() == []
    report = project.report("generate")
    samples = list(iter_table(project.data("generate"), Sample))
    assert report["reused"] == kept
    assert report["requests_sent"] == report["server_requests"] == report["requested"] - kept
    assert len({(s.task_id, s.index) for s in samples}) == len(samples) == report["requested"]
    rows = rows_of(project, "generate")
    project.dvc(*again)
    assert rows_of(project, "generate") == rows  # what an uninterrupted run over the same ledger gives


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole run that nobody interrupted."""
    project = Project(tmp_path_factory.mktemp("finished"))
    project.dvc("repro", "configs/smoke/dvc.yaml")
    return project


def rows_of(project, output):
    """sha256 of every Parquet shard of a stage, by name."""
    shards = sorted(project.data(output).rglob("*.parquet"))
    return {str(path.relative_to(project.data(output))): sha256_of(path) for path in shards}


@pytest.mark.parametrize(
    ("stage", "target", "output"),
    [
        ("verify", "verify", "verify"),
        ("dedup", "dedup", "dedup"),
        ("pack", "pack@general", "pack/general"),
        ("sft", "sft@general", "sft/general"),
        ("publish", "publish", "publish"),
    ],
)
def test_a_stage_killed_with_dvc_finishes_on_the_next_run_with_the_same_rows(finished, stage, target, output):
    before, report = rows_of(finished, output), finished.report(output)
    again = ["repro", "--force", "--single-item", "--no-run-cache", f"configs/smoke/dvc.yaml:{target}"]
    run = finished.start(*again)

    def running():
        return [p for p in finished.processes() if p.cmdline()[1:4] == ["-m", "pipeline", stage]]

    wait_for(running, 120, run)
    # Somewhere in the stage's run: the moment follows from its name, so that a failure can be met again.
    time.sleep(random.Random(stage).uniform(0, 0.5 * float(report["seconds"])))
    for process in [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    run.wait()
    finished.dvc(*again)
    assert finished.wait_until_empty() == []
    assert rows_of(finished, output) == before
    if stage == "sft":
        after = finished.report(output)
        assert (after["rows_seen"], after["steps"]) == (report["rows_seen"], report["steps"])
        assert after["reload_max_abs_diff"] == 0
