"""Claim: beside a fast server `generate` stores every answer durably at a good part of a bare client's rate, in memory
that does not grow, and goes on within seconds after a stop, however much is stored and however long the texts are.

Peer: `benchmarks.bare_client`, which stores nothing, against the same stand-in server, before and after the stage.
Both rates are from the first request to the last answer, which the stage has on disk by then; `whole_samples_per_s` is
over the whole run of the stage's process, with the start of Python, the look-up and the final table. Resuming is timed
from the start of the process to the first request that the server sees, with files that were just written and are still
cached.
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml

from benchmarks.standin import RunningStandIn, standin_process
from benchmarks.standin.answers import made_text
from benchmarks.standin.sums import sum_task as task
from pipeline.config import load_config
from pipeline.engine import key_fields, make_requests
from pipeline.ledger import Answer, Ledger
from pipeline.records import Task
from pipeline.shards import iter_table, shard_paths, write_table
from stages import generate

ROOT = Path(__file__).resolve().parents[1]
PER_TASK, NEW_TASKS, CONCURRENCY, MAX_TOKENS, TOGETHER = 4, 10, 256, 8_192, 2_000
ENGINE = {"type": "endpoints", "model": "standin", "model_revision": "1"}
TEACHER: dict[str, Any] = {"name": "t", "engine": ENGINE, "sampling": {"max_tokens": MAX_TOKENS}}
SHORT, LONG = 1_024, 20_480


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    samples: int = 100_000
    bare: int = 20_000
    resume: int = 1_000_000
    resume_long: int = 100_000
    """Samples stored for the ratio of 20 KB to 1 KB: 2 GB of long texts."""
    turns: int = 3
    """Measurements of each for that ratio, in turns."""


def write_recipe(
    folder: Path, tasks: Iterable[Task], teacher: dict[str, Any], url: str, in_flight: int, per_task: int = PER_TASK
) -> None:
    """A folder in which `generate` asks the server at `url` to solve the tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "tasks", Task, tasks)
    endpoint = {teacher["name"]: {"urls": [url], "max_in_flight": in_flight}}
    machine = {"endpoints": endpoint, "ledger": str((folder / "ledger").resolve()), "serving": {"drain_s": 1}}
    (folder / "machine.yaml").write_text(yaml.safe_dump(machine))
    (folder / "generate.yaml").write_text(yaml.safe_dump({"teachers": [teacher], "samples_per_task": per_task}))


def start_stage(folder: Path, out: str, *overrides: str) -> "subprocess.Popen[bytes]":
    """Start `generate` in the folder as a user does; what it says goes to log.txt."""
    command = [sys.executable, "-m", "pipeline", "generate", "--config", "generate.yaml", "--in", "tasks=tasks"]
    command += ["--out", out, "--report", f"{out}.json", *(word for value in overrides for word in ("--set", value))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WARMSTART_MACHINE": "machine.yaml"}
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def wait_for(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Wait for the stage's end; raises with the end of its log if it fails."""
    if process.wait() != 0:
        raise RuntimeError(f"generate failed:\n{(folder / 'log.txt').read_text()[-2000:]}")


def cpu_of_children() -> float:
    """CPU seconds of all processes that were started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_bare(url: str, *flags: str) -> dict[str, Any]:
    """Figures of the bare client in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bare_client", "--url", url, *flags]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_load(folder: Path, server: RunningStandIn, sizes: Sizes) -> dict[str, Any]:
    """The stage over all samples, watched from outside."""
    count = sizes.samples // PER_TASK
    write_recipe(folder, map(task, range(count)), TEACHER, server.url, CONCURRENCY)
    server.reset()
    started, cpu = time.perf_counter(), cpu_of_children()
    process = start_stage(folder, "out")
    watched = psutil.Process(process.pid)
    looks: list[tuple[int, float]] = []
    while process.poll() is None:
        try:
            looks.append((server.counts()["answered"], watched.memory_info().rss / 1e6))
        except psutil.Error:
            break
        time.sleep(0.1)
    wait_for(process, folder)
    seconds, cpu = time.perf_counter() - started, cpu_of_children() - cpu
    report = json.loads((folder / "out.json").read_text())
    first = [rss for answered, rss in looks if answered >= sizes.samples * 0.1]
    last = [rss for answered, rss in looks if answered < sizes.samples]
    return {
        "samples": sizes.samples,
        "samples_per_s": round(report["output_tokens_per_s"] * sizes.samples / report["received_tokens"], 1),
        "whole_samples_per_s": round(sizes.samples / seconds, 1),
        "durable": durable_samples(folder / "out"),
        "requests_at_server": server.counts()["received"],
        "rss_growth_mb": round(last[-1] - first[0], 1) if first else 0.0,
        "peak_rss_mb": round(max(rss for _, rss in looks), 1),
        "cpu_ms_per_sample": round(1000 * cpu / sizes.samples, 3),
    }


def durable_samples(out: Path) -> int:
    """Different samples in the output's shards."""
    shards = shard_paths(out, "samples")
    return len({name.as_py() for path in shards for name in pq.read_table(path, columns=["sample_id"])["sample_id"]})


def prefill(folder: Path, size: int, count: int) -> None:
    """Store an answer of `size` bytes to every request of the recipe's first `count` tasks."""
    config = load_config(generate.Config, folder / "generate.yaml")
    teacher = config.teachers[0]
    key = key_fields(teacher, None, folder, config.seed)
    tasks = islice(iter_table(folder / "tasks", Task), count)
    requests = make_requests(tasks, key, range(PER_TASK))
    with Ledger(folder / "ledger") as ledger:
        ledger.declare({"teacher": teacher.name, **key})
        rows: list[tuple[bytes, Answer]] = []
        for request in requests:
            text = made_text({"seed": request.seed}, size)
            rows.append((request.key, Answer(text, "stop", None, 8, size // 4, MAX_TOKENS, request.seed)))
            if len(rows) == TOGETHER:
                ledger.put(rows)
                rows = []
        ledger.put(rows)


def prepare_resume(folder: Path, url: str, samples: int, size: int) -> None:
    """A recipe with `samples` stored answers and ten new tasks at its end."""
    count = samples // PER_TASK
    write_recipe(folder, map(task, range(count + NEW_TASKS)), TEACHER, url, CONCURRENCY)
    prefill(folder, size, count)


def resume_seconds(folder: Path, server: RunningStandIn) -> float:
    """Seconds from the start of the process to the first request; the server holds every answer back."""
    server.reset()
    started = time.monotonic()
    process = start_stage(folder, "out")
    while (seen := server.counts()["first_request_at"]) is None:
        if process.poll() is not None:
            wait_for(process, folder)
            raise RuntimeError("generate asked for nothing")
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)  # SIGINT is ignored below nohup
    process.wait()
    return float(seen) - started


def run_resumes(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Resuming with many stored samples, and with long ones beside as many short ones."""
    with standin_process("--delay", "3600") as server:
        prepare_resume(folder / "many", server.url, sizes.resume, SHORT)
        many = resume_seconds(folder / "many", server)
        stored = {"short": SHORT, "long": LONG}
        for name, size in stored.items():
            prepare_resume(folder / name, server.url, sizes.resume_long, size)
        times: dict[str, list[float]] = {name: [] for name in stored}
        for _ in range(sizes.turns):
            for name in stored:
                times[name].append(resume_seconds(folder / name, server))
    short, long = (statistics.median(times[name]) for name in stored)
    return {
        "resume_samples": sizes.resume,
        "resume_s": round(many, 2),
        "resume_ratio_samples": sizes.resume_long,
        "resume_1kb_s": round(short, 2),
        "resume_20kb_s": round(long, 2),
        "resume_ratio_20kb": round(long / short, 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=Sizes.samples)
    parser.add_argument("--bare", type=int, default=Sizes.bare, help="requests of each run of the bare client")
    parser.add_argument(
        "--resume", type=int, default=Sizes.resume, help="stored samples of 1 KB; 0 leaves resuming out"
    )
    parser.add_argument("--resume-long", type=int, default=Sizes.resume_long, help="stored samples of 20 KB")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    given = parser.parse_args()
    sizes = Sizes(given.samples, given.bare, given.resume, given.resume_long)
    if given.quick:
        sizes = Sizes(2_000, 1_000, 2_000, 400, turns=1)
    Path(".work").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=".work", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        flags = ("--requests", str(sizes.bare), "--concurrency", str(CONCURRENCY), "--max-tokens", str(MAX_TOKENS))
        with standin_process("--size", str(SHORT)) as server:
            before = run_bare(server.url, *flags)
            figures = run_load(folder / "load", server, sizes)
            after = run_bare(server.url, *flags)
        bare = statistics.median(run["samples_per_s"] for run in (before, after))
        figures["bare_samples_per_s"] = bare
        figures["bare_cpu_ms_per_sample"] = statistics.median(run["cpu_ms_per_sample"] for run in (before, after))
        figures["ratio_to_bare"] = round(figures["samples_per_s"] / bare, 3)
        figures["whole_ratio_to_bare"] = round(figures["whole_samples_per_s"] / bare, 3)
        if sizes.resume:
            figures |= run_resumes(folder, sizes)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
