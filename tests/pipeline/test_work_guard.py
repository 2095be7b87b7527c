"""Nothing that a stage starts outlives it, however it and its guard end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.work import Guard
from pipeline.work.guard import end_members, find_members, is_deaf, reap_leftovers

# Marks itself as started, starts the next kind below itself, and stays.
PROGRAM = """
import os, signal, subprocess, sys, time
from pathlib import Path
folder, kind, *below = sys.argv[1:]
if kind == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if below:
    subprocess.Popen([sys.executable, __file__, folder, *below], start_new_session=below[0] == "session")
Path(folder, str(os.getpid())).touch()
time.sleep(600)
"""
STAGE = """
import os, subprocess, sys, time
from pathlib import Path
from pipeline.work import Guard
folder, program = sys.argv[1:]
with Guard(Path(folder).parent / "processes.json") as guard:
    for kinds in (["child", "grandchild"], ["child", "session"], ["deaf"]):
        argv = [sys.executable, program, folder, *kinds]
        guard.popen(argv, env=dict(os.environ), log=Path(folder).parent / "log")
    subprocess.Popen([sys.executable, program, folder, "session"], start_new_session=True)
    time.sleep(600)
"""
STARTED = 6


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def stage(tmp_path, program):
    """A running stage with its six processes; whatever a failing test leaves is ended by pid."""
    folder, script = tmp_path / "pids", tmp_path / "stage.py"
    folder.mkdir()
    script.write_text(STAGE)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    process = subprocess.Popen([sys.executable, str(script), str(folder), str(program)], env=environment)
    assert wait_until(lambda: len(list(folder.iterdir())) == STARTED)
    pids = [int(path.name) for path in folder.iterdir()]
    yield process, pids, tmp_path / "processes.json"
    for pid in [process.pid, *pids]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def guard_of(record: Path) -> int:
    """The guard is the process that was given the record file."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(record).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                return int(entry.name)
    raise AssertionError("no guard runs")


def test_a_killed_stage_leaves_no_process(stage):
    process, pids, record = stage
    assert all(map(alive, pids))
    process.kill()
    process.wait()
    assert wait_until(lambda: not any(map(alive, pids)))
    assert wait_until(lambda: not record.exists())


def test_the_next_start_reaps_what_a_killed_guard_left(stage):
    process, pids, record = stage
    os.kill(guard_of(record), signal.SIGKILL)
    process.kill()
    process.wait()
    assert all(map(alive, pids))
    assert reap_leftovers(record) == STARTED
    assert wait_until(lambda: not any(map(alive, pids)))
    assert not record.exists()
    assert reap_leftovers(record) == 0


def test_stopping_one_program_ends_its_children_and_no_other(tmp_path, program):
    folder = tmp_path / "pids"
    folder.mkdir()
    with Guard(tmp_path / "processes.json") as guard:
        argv = [sys.executable, str(program), str(folder)]
        one = guard.popen([*argv, "child", "grandchild"], env=os.environ, log=tmp_path / "log")
        assert wait_until(lambda: len(list(folder.iterdir())) == 2)
        pids = [int(path.name) for path in folder.iterdir()]
        other = guard.popen([*argv, "child"], env=os.environ, log=tmp_path / "log")
        one.stop()
        assert wait_until(lambda: not any(map(alive, pids)))
        assert alive(other.process.pid)
    assert wait_until(lambda: not alive(other.process.pid))
    other.process.wait()


def test_a_session_id_given_to_a_stranger_is_left_alone(tmp_path, program):
    stranger = subprocess.Popen([sys.executable, str(program), str(tmp_path), "child"], start_new_session=True)
    try:
        record = tmp_path / "processes.json"
        record.write_text(json.dumps({"token": "none", "sessions": {str(stranger.pid): 1}}))
        assert reap_leftovers(record) == 0
        assert alive(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_record_that_is_no_json_is_passed_over(tmp_path):
    (tmp_path / "processes.json").write_text('{"token"')
    assert reap_leftovers(tmp_path / "processes.json") == 0


def test_ending_nothing_returns_at_once():
    assert find_members("no such token", {}) == []
    assert end_members("no such token", {}) == 0


def test_a_process_that_ignores_sigterm_is_told_from_one_that_does_not(tmp_path, program):
    found = {}
    for kind in ("deaf", "child"):
        with subprocess.Popen([sys.executable, str(program), str(tmp_path), kind]) as process:
            assert wait_until((tmp_path / str(process.pid)).exists)
            found[kind] = is_deaf(process.pid)
            process.kill()
        assert is_deaf(process.pid), "one that is gone need not be waited for"
    assert found == {"deaf": True, "child": False}
