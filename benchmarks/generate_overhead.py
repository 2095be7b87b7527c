"""Claim: against a real vLLM server `generate` is as fast as a bare client, and costs little more CPU.

Peer: `benchmarks.bare_client` with the very same requests (prompts, seeds, limits) to the same server, in alternating
pairs; each pair has seeds of its own, and every prompt was sent once before, so that the prefix cache serves both.

`ratio` compares output tokens/s of the sampling alone, as each client counts them; `ratio_whole` those of the whole
processes, with Python's start and the stage's look-up and final table; both are medians of the pairs. CPU is that of
the client's process from before its first request to after its last answer, which the stage has on disk by then: the
stage runs here with its `Sampler.ask` timed, the bare client times itself. Neither counts the start of Python.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from benchmarks.generate_load import ROOT, run_bare, write_recipe
from benchmarks.standin.sums import sum_task
from pipeline.config import Machine, load_config
from pipeline.config.machine import Serving
from pipeline.engine import LocalEngine, key_fields, make_requests
from pipeline.engine.local import LocalServer, local_replicas
from pipeline.records import Task
from pipeline.shards import iter_table
from stages import generate

SAMPLES, PAIRS, CONCURRENCY, MAX_TOKENS, MODEL = 256, 5, 64, 64, "teacher"
BUDGET_S = 540.0
"""No further pair is begun that would end later than this after the start."""


@dataclass(frozen=True, slots=True)
class Run:
    """One client's load."""

    tokens: float
    tokens_per_s: float
    whole_tokens_per_s: float
    cpu_s: float


def prepare(folder: Path, url: str, samples: int) -> None:
    """A recipe of `samples` tasks with one sample each."""
    engine = {"type": "endpoints", "model": MODEL, "model_revision": "1"}
    sampling = {"temperature": 0.8, "max_tokens": MAX_TOKENS}
    tasks = map(sum_task, range(samples))
    write_recipe(folder, tasks, {"name": "t", "engine": engine, "sampling": sampling}, url, CONCURRENCY, per_task=1)


def write_bodies(folder: Path, seed: int, samples: int, **changes: int) -> Path:
    """The requests that the stage will send with this seed, as JSON lines for the bare client."""
    config = load_config(generate.Config, folder / "generate.yaml", (f"seed={seed}",))
    teacher = config.teachers[0]
    shared = {"model": MODEL, "n": 1, "skip_special_tokens": False, "include_stop_str_in_output": True}
    shared |= teacher.sampling.model_dump(mode="json") | changes
    wanted = make_requests(iter_table(folder / "tasks", Task), key_fields(teacher, None, folder, seed), [0])
    requests = list(islice(wanted, samples))
    path = folder / f"bodies-{seed}.jsonl"
    bodies = ({**shared, "messages": json.loads(r.task.messages), "seed": r.seed} for r in requests)
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return path


def measured_stage(cpu_file: Path, words: Sequence[str]) -> int:
    """Run the stage in this process and note the CPU seconds of its sampling."""
    from pipeline.cli.main import main as command_line
    from pipeline.engine import fleet, loop, sampling  # noqa: F401 - imported before the clock starts

    plain = sampling.Sampler.ask

    def ask(self: sampling.Sampler, *given: Any, **named: Any) -> None:  # noqa: ANN401 - passed on as they are
        started = time.process_time()
        plain(self, *given, **named)
        cpu_file.write_text(str(time.process_time() - started))

    setattr(sampling.Sampler, "ask", ask)  # noqa: B010 - mypy refuses the plain assignment
    return command_line(words)


def run_stage(folder: Path, seed: int, samples: int) -> Run:
    """The stage with this seed, in a process of its own."""
    out, cpu_file = f"out-{seed}", folder / f"cpu-{seed}"
    command = [sys.executable, "-m", "benchmarks.generate_overhead", "--stage", str(cpu_file), "--", "generate"]
    command += ["--config", "generate.yaml", "--in", "tasks=tasks", "--set", f"seed={seed}"]
    command += ["--out", out, "--report", f"{out}.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WARMSTART_MACHINE": "machine.yaml"}
    started = time.perf_counter()
    with (folder / "log.txt").open("ab") as log:
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, check=True)
    seconds = time.perf_counter() - started
    report = json.loads((folder / f"{out}.json").read_text())
    if report["requests_sent"] != samples:
        raise RuntimeError(f"sent {report['requests_sent']}, not {samples}")
    tokens = report["received_tokens"]
    return Run(tokens, report["output_tokens_per_s"], tokens / seconds, float(cpu_file.read_text()))


def run_peer(folder: Path, url: str, seed: int, samples: int) -> Run:
    """The bare client with the same requests."""
    flags = ("--bodies", str(write_bodies(folder, seed, samples)), "--concurrency", str(CONCURRENCY))
    started = time.perf_counter()
    figures = run_bare(url, *flags, "--requests", str(samples))
    seconds = time.perf_counter() - started
    tokens = figures["output_tokens"]
    return Run(tokens, figures["tokens_per_s"], tokens / seconds, figures["cpu_s"])


def run_pairs(folder: Path, url: str, samples: int, pairs: int, deadline: float) -> tuple[list[Run], list[Run]]:
    """Both clients in turns, the first one changing; ends early where the time would not do for another pair."""
    stages: list[Run] = []
    peers: list[Run] = []
    warm_up = write_bodies(folder, 1_000, samples, max_tokens=1)  # the prompts are what the server is to know
    run_bare(url, "--bodies", str(warm_up), "--concurrency", str(CONCURRENCY))
    started = time.perf_counter()
    for seed in range(pairs):
        first = seed % 2 == 0
        if first:
            stages.append(run_stage(folder, seed, samples))
        peers.append(run_peer(folder, url, seed, samples))
        if not first:
            stages.append(run_stage(folder, seed, samples))
        now = time.perf_counter()
        if now + (now - started) / (seed + 1) > deadline:
            break
    return stages, peers


def figures_of(stages: Sequence[Run], peers: Sequence[Run], samples: int) -> dict[str, float]:
    """Medians over the pairs."""

    def median(runs: Sequence[Run], name: str) -> float:
        return float(statistics.median(getattr(run, name) for run in runs))

    rate, bare = median(stages, "tokens_per_s"), median(peers, "tokens_per_s")
    cpu, bare_cpu = (median(runs, "cpu_s") * 1000 / samples for runs in (stages, peers))
    return {
        "ratio": round(rate / bare, 3),
        "ratio_whole": round(median(stages, "whole_tokens_per_s") / median(peers, "whole_tokens_per_s"), 3),
        "tokens_per_s": round(rate, 1),
        "bare_tokens_per_s": round(bare, 1),
        "client_cpu_ratio": round(cpu / bare_cpu, 2),
        "cpu_s_per_1000": round(cpu, 3),
        "bare_cpu_s_per_1000": round(bare_cpu, 3),
        "samples": samples,
        "output_tokens": median(stages, "tokens"),
        "bare_output_tokens": median(peers, "tokens"),
        "pairs": len(peers),
    }


def make_model(folder: Path) -> Path:
    """The demo's model, made by the stage `base` as the demo makes it."""
    command = [sys.executable, "-m", "pipeline", "base", "--config", str(ROOT / "configs/demo/base.yaml")]
    command += ["--out", str(folder / "base"), "--report", str(folder / "base.json")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder / "base"


def wait_until_ready(server: LocalServer) -> str:
    """The server's address once it lists its models."""
    while server.alive():
        try:
            with urllib.request.urlopen(f"{server.url}/models", timeout=5):
                return str(server.url)
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(server.log_tail())


def main() -> None:
    """Serve the model, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="model folder; without it the demo's is made")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--stage", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage:
        sys.exit(measured_stage(given.stage, given.words))
    deadline = time.perf_counter() + BUDGET_S
    os.chdir(ROOT)
    Path(".work").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=".work", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        ready = Path("data/demo/base")
        model = given.model or (ready if (ready / "config.json").exists() else make_model(folder))
        machine = Machine(serving=Serving(**yaml.safe_load(Path("configs/machines/local.yaml").read_text())["serving"]))
        engine = LocalEngine(dtype="float32", max_model_len=512)
        server = local_replicas(MODEL, model, engine, machine.serving, folder)[0]
        server.start()
        try:
            url = wait_until_ready(server)
            prepare(folder / "recipe", url, given.samples)
            stages, peers = run_pairs(folder / "recipe", url, given.samples, given.pairs, deadline)
        finally:
            server.stop()
    print(json.dumps(figures_of(stages, peers, given.samples)))


if __name__ == "__main__":
    main()
