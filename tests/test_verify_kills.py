"""`verify` on a mix of cheap and costly answers: killed, resumed, and with any number of workers."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time

import psutil
import pytest

from benchmarks.verify_load import made_pair
from pipeline.records import Sample, Task, Verdict
from pipeline.shards import iter_table, write_table
from pipeline.verdicts.judging import COSTLY_CHUNK
from tests.project import ROOT

pytestmark = pytest.mark.proof

SAMPLES, WORKERS = 3_000, 2


def start(folder, workers, output):
    """The stage with so many workers, as its command line runs it; verdicts are stored beside its output."""
    (folder / "verify.yaml").write_text("{}\n")
    (folder / f"{output}.machine.yaml").write_text(f"workers: {workers}\nverdicts: {output}.store\n")
    line = [sys.executable, "-m", "pipeline", "verify", "--config", "verify.yaml", "--in", "tasks=tasks"]
    line += ["--in", "samples=samples", "--out", output, "--report", f"{output}.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WARMSTART_MACHINE": f"{output}.machine.yaml"}
    with (folder / f"{output}.log").open("ab") as log:
        return subprocess.Popen(line, cwd=folder, env=environment, stdout=log, stderr=log)


def ask(folder, output, *statements):
    """What a run's store answers to the last statement, None while there is no table yet."""
    file = folder / f"{output}.store/verdicts.sqlite"
    if file.exists():
        with contextlib.closing(sqlite3.connect(file, timeout=60)) as db, contextlib.suppress(sqlite3.OperationalError):
            found = [db.execute(statement).fetchone() for statement in statements][-1]
            db.commit()
            return found
    return None


def stored(folder, output):
    """Verdicts in a run's store."""
    return (ask(folder, output, "SELECT COUNT(*) FROM judgements") or (0,))[0]


def left_over(folder):
    """Processes that work inside the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder):
                found.append(process)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    write_table(folder / "tasks", Task, (made_pair(n, 0)[1] for n in range(SAMPLES)))
    write_table(folder / "samples", Sample, (made_pair(n, 0)[2] for n in range(SAMPLES)))
    assert start(folder, WORKERS, "whole").wait() == 0
    return folder


def files_of(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("workers", [1, 4])
def test_the_verdicts_are_the_same_bytes_for_any_number_of_workers(folder, workers):
    output = f"workers-{workers}"
    assert start(folder, workers, output).wait() == 0
    assert files_of(folder / output) == files_of(folder / "whole")
    assert sum(1 for _ in iter_table(folder / output, Verdict)) == SAMPLES


@pytest.mark.parametrize("enough", [COSTLY_CHUNK, 8 * COSTLY_CHUNK, SAMPLES // 2])
def test_a_killed_run_judges_only_what_is_not_stored_and_leaves_no_process(folder, enough):
    output = f"killed-{enough}"
    run = start(folder, WORKERS, output)
    while stored(folder, output) < enough:
        assert run.poll() is None, (folder / f"{output}.log").read_text()
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    deadline = time.monotonic() + 60
    while left_over(folder):
        assert time.monotonic() < deadline, left_over(folder)
        time.sleep(0.1)
    kept = stored(folder, output)
    count = "CREATE TRIGGER count AFTER INSERT ON judgements BEGIN INSERT INTO judged VALUES (NEW.key); END"
    ask(folder, output, "CREATE TABLE judged (key BLOB)", count)
    assert start(folder, WORKERS, output).wait() == 0
    judged, different = ask(folder, output, "SELECT COUNT(*), COUNT(DISTINCT key) FROM judged")
    assert (judged, different) == (SAMPLES - kept, SAMPLES - kept)
    assert files_of(folder / output) == files_of(folder / "whole")
