"""Kills with the real parts: what is finished is kept, what is left over is ended."""

import contextlib
import copy
import os
import random
import shutil
import signal
import sqlite3
import time

import psutil
import pytest
import yaml

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


def with_children(run):
    return [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]


def kill(processes):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # the guard may have been quicker
            os.kill(process.pid, signal.SIGKILL)


def ledger_rows(project, ledger="ledger"):
    """Whole answers in the ledger's files."""
    files = (project.folder / f".work/{ledger}/segments").glob("*.jsonl")
    lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
    return sum(line[9:18] == b'{"answer"' and line.endswith(b"\n") for line in lines)


def verdict_rows(project):
    """Verdicts in the store."""
    file = project.folder / ".work/verdicts/verdicts.sqlite"
    if not file.exists():
        return 0
    with contextlib.closing(sqlite3.connect(file, timeout=60)) as db, contextlib.suppress(sqlite3.OperationalError):
        return int(db.execute("SELECT COUNT(*) FROM judgements").fetchone()[0])
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
        victims = with_children(run)
    kill(victims)
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
    shutil.rmtree(finished.folder / ".work/verdicts", ignore_errors=True)
    again = ["repro", "--force", "--single-item", "--no-run-cache", f"configs/smoke/dvc.yaml:{target}"]
    run = finished.start(*again)

    def running():
        return [p for p in finished.processes() if p.cmdline()[1:4] == ["-m", "pipeline", stage]]

    wait_for(running, 120, run)
    # Somewhere in the stage's run: the moment follows from its name, so that a failure can be met again.
    time.sleep(random.Random(stage).uniform(0, 0.5 * float(report["seconds"])))
    kill(with_children(run))
    run.wait()
    finished.dvc(*again)
    assert finished.wait_until_empty() == []
    assert rows_of(finished, output) == before
    if stage == "sft":
        after = finished.report(output)
        assert (after["rows_seen"], after["steps"]) == (report["rows_seen"], report["steps"])
        assert after["reload_max_abs_diff"] == 0


def change(project, stage, **values):
    """Set keys of one stage's config; a key below another is given as above__below."""
    path = project.folder / f"configs/smoke/{stage}.yaml"
    config = yaml.safe_load(path.read_text())
    for key, value in values.items():
        *above, last = key.split("__")
        place = config
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
    path.write_text(yaml.safe_dump(config))


def progress_of(project, place):
    return list((project.folder / ".work/smoke" / place).glob("*/progress/*"))


@pytest.mark.parametrize(
    ("stage", "target", "place", "before", "after"),
    [
        ("generate", "generate", "generate", {}, {"seed": 7}),
        ("verify", "verify", "verify", {"max_rejected": 1.0}, {"limits__math__answer_chars": 1}),
        (
            "sft",
            "sft@general",
            "sft/general",
            {"phases__general__save_steps": 1, "phases__general__epochs": 2},
            {"phases__general__learning_rate": 5e-4},
        ),
    ],
)
def test_a_config_changed_after_a_kill_mixes_nothing_of_the_killed_run_in(
    finished, stage, target, place, before, after
):
    config = finished.folder / f"configs/smoke/{stage}.yaml"
    untouched = config.read_text()
    change(finished, stage, **before)
    for store in ("ledger", "verdicts"):
        shutil.rmtree(finished.folder / ".work" / store, ignore_errors=True)
    again = ["repro", "--force", "--single-item", "--no-run-cache", f"configs/smoke/dvc.yaml:{target}"]
    run = finished.start(*again)
    done = {
        "generate": lambda: ledger_rows(finished) >= 10,
        "verify": lambda: verdict_rows(finished) > 0,
        "sft": lambda: [p for p in progress_of(finished, place) if list(p.rglob("checkpoint-*"))],
    }[stage]
    wait_for(done, 600, run)
    kill(with_children(run))
    run.wait()
    assert finished.wait_until_empty() == []
    kept, stale = ledger_rows(finished), {path.parents[1] for path in progress_of(finished, place)}
    change(finished, stage, **after)
    try:
        finished.dvc(*again)
        report, rows = copy.copy(finished.report(place)), rows_of(finished, place)
        # What the killed run left stays as it was, for `warmstart clean`; the folder of this run is gone.
        assert {path.parents[1] for path in progress_of(finished, place)} == stale
        if stage == "generate":
            assert kept >= 10 and report["reused"] == 0
            assert report["requests_sent"] == report["requested"]
            assert ledger_rows(finished) == kept + report["requested"]
        shutil.rmtree(finished.folder / ".work/verdicts", ignore_errors=True)
        shutil.rmtree(finished.folder / ".work/smoke" / place)
        finished.dvc(*again)  # from nothing, and for generate from the same ledger
        assert rows_of(finished, place) == rows
        if stage == "sft":
            fresh = finished.report(place)
            assert report["resumed_at"] == fresh["resumed_at"] == 0
            assert report["loss_last"] == pytest.approx(fresh["loss_last"], rel=1e-4)
    finally:
        config.write_text(untouched)
