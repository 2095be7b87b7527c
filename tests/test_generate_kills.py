"""generate, killed at twenty random points: nothing paid for is asked again or doubled, and the bytes are equal."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from benchmarks.standin.sums import sum_task as task
from pipeline.ledger.segments import unframe
from pipeline.records import Task
from pipeline.shards import sha256_of, write_table

ROOT = Path(__file__).resolve().parents[1]
TASKS, EACH = 40, 5
SAMPLES = TASKS * EACH
WINDOWS = [1, 2, 7, 32, 64]

pytestmark = pytest.mark.proof


class Server:
    """The stand-in as a program that can be killed and started again at the same address."""

    def __init__(self):
        self.port, self.process = 0, None
        self.start()

    def start(self):
        command = [sys.executable, "-m", "benchmarks.standin", "--port", str(self.port), "--until-stdin-closes"]
        command += ["--size", "200", "--delay", "0.02"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        self.address = self.process.stdout.readline().strip()
        self.port = int(self.address.rpartition(":")[2])

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def counts(self, action=""):
        with urllib.request.urlopen(f"{self.address}/standin{action}", b"" if action else None, timeout=30) as reply:
            return json.load(reply)

    def forget(self):
        """Count from nothing, once the requests of a killed stage have ended."""
        while self.counts()["concurrent"]:
            time.sleep(0.01)
        self.counts("/reset")


@pytest.fixture(scope="module")
def server():
    running = Server()
    yield running
    running.kill()


def make_project(folder, server, ledger="ledger"):
    """Tasks, config and a machine file for each window."""
    write_table(folder / "tasks", Task, map(task, range(TASKS)))
    engine = {"type": "endpoints", "model": "m", "model_revision": "1"}
    teacher = {"name": "t", "engine": engine, "sampling": {"max_tokens": 64}}
    (folder / "generate.yaml").write_text(yaml.safe_dump({"samples_per_task": EACH, "teachers": [teacher]}))
    for window in WINDOWS:
        endpoint = {"urls": [f"{server.address}/v1"], "max_in_flight": window}
        machine = {"endpoints": {"t": endpoint}, "ledger": str(folder / ledger), "serving": {"poll_s": 0.1}}
        (folder / f"machine-{window}.yaml").write_text(yaml.safe_dump(machine))


@contextmanager
def started(folder, window):
    command = [sys.executable, "-m", "pipeline", "generate", "--config", "generate.yaml", "--in", "tasks=tasks"]
    command += ["--out", "out", "--report", "report.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WARMSTART_MACHINE": str(folder / f"machine-{window}.yaml")}
    with (folder / "log").open("w") as log:
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log) as process:
            yield process


def finish(folder, window):
    with started(folder, window) as process:
        assert process.wait(120) == 0, (folder / "log").read_text()
    return json.loads((folder / "report.json").read_text())


def keys_in(folder):
    """How often each key stands in whole records of the ledger's files."""
    keys = Counter()
    for file in sorted((folder / "ledger/segments").glob("*.jsonl")):
        for line in file.read_bytes().splitlines(keepends=True):
            text = unframe(line)
            record = json.loads(text) if text else {}
            keys.update([record["key"]] if "answer" in record else [])
    return keys


def shards_of(folder):
    return {path.name: sha256_of(path) for path in sorted((folder / "out/samples").iterdir())}


@pytest.fixture(scope="module")
def uninterrupted(server, tmp_path_factory):
    """The shards of a run that nobody stopped."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    make_project(folder, server)
    server.forget()
    assert finish(folder, 7)["requests_sent"] == server.counts()["received"] == SAMPLES
    return shards_of(folder)


def tear(folder, draw):
    """Cut the last record at a byte, the newline alone and the whole record among them."""
    files = sorted((folder / "ledger/segments").glob("*.jsonl"))
    last = files[-1].read_bytes().splitlines(keepends=True)[-1]
    os.truncate(files[-1], files[-1].stat().st_size - draw.choice([1, draw.randint(1, len(last))]))


def wait_for_requests(server, process, number):
    while server.counts()["received"] < number:
        assert process.poll() is None
        time.sleep(0.005)


@pytest.mark.parametrize("point", range(20))
def test_a_killed_run_goes_on_with_what_is_missing_and_gives_the_same_bytes(point, server, uninterrupted, tmp_path):
    draw = random.Random(point)
    make_project(tmp_path, server)
    server.forget()
    window = draw.choice(WINDOWS)
    with started(tmp_path, window) as process:
        if point % 3 == 2:  # the server ends first, comes back, and the run goes on
            wait_for_requests(server, process, draw.randrange(1, SAMPLES // 2))
            server.kill()
            time.sleep(draw.uniform(0, 0.3))
            server.start()
            wait_for_requests(server, process, draw.randrange(1, SAMPLES // 2))
        else:
            wait_for_requests(server, process, draw.randrange(1, SAMPLES - 2))
        time.sleep(draw.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "out").exists()
    if point % 3 == 1 and keys_in(tmp_path):
        tear(tmp_path, draw)
    kept = len(keys_in(tmp_path))
    server.forget()
    report = finish(tmp_path, draw.choice([other for other in WINDOWS if other != window]))
    assert server.counts()["received"] == report["requests_sent"] == SAMPLES - kept
    assert report["reused"] == kept and report["complete"] == SAMPLES
    after = keys_in(tmp_path)
    assert len(after) == SAMPLES and set(after.values()) == {1}
    assert shards_of(tmp_path) == uninterrupted
    if point % 5 == 0:
        server.forget()
        finish(tmp_path, window)
        assert server.counts()["received"] == 0 and shards_of(tmp_path) == uninterrupted
