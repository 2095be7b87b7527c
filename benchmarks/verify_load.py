"""Claim: `verify` gives 100,000 stored samples their verdicts at nearly the rate of its verifiers, in bounded memory.

Peer: the verifiers alone, on a part of the same answers, in as many plain processes as the stage has workers: no
cluster, no table, no store. `efficiency` is the stage's rate, from its start to its report, by the rate that the peer
implies for the same mix. `peak_mb` is the most that the stage's process held, `peak_mb_tenth` the same for a tenth of
the samples; `workers_peak_mb` is that of its largest worker.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import psutil

from pipeline.records import Sample, Task, canonical_json
from pipeline.shards import write_table
from pipeline.verdicts.judging import make_item
from pipeline.verify import Limits, judge_once

ROOT = Path(__file__).resolve().parents[1]
MIX = {"math": 8, "choice": 1, "code": 1}
"""Of each ten samples."""
ALONE = {"math": 4_000, "choice": 2_000, "code": 200}
"""Answers that each process of the peer judges."""


def made_pair(number: int, seed: int) -> tuple[str, Task, Sample]:
    """Kind, task and sample number `number`: no two are alike, and about half of the answers are right."""
    draw = random.Random(f"{seed} {number}")
    kind = draw.choices(list(MIX), list(MIX.values()))[0]
    shift = draw.choice((0, 1))
    reference: dict[str, object]
    if kind == "math":
        reference, answer = math_pair(draw, number, shift)
    elif kind == "choice":
        letters = "ABCD"
        right = draw.randrange(4)
        reference, answer = {"answer": letters[right]}, f"So it is {number}, answer \\boxed{{{letters[right - shift]}}}"
    else:
        reference, answer = code_pair(number, shift)
    text = canonical_json([{"role": "user", "content": f"Problem {number}"}])
    verifier = "code" if kind == "code" else "math"
    name = f"{seed}-{number}"
    fields = (text, None, verifier, canonical_json(reference), "train")
    task = Task(name, name, "made", name, None, "CC0-1.0", verifier, *fields)
    messages = canonical_json([{"role": "assistant", "content": answer}])
    return kind, task, Sample(name, name, 0, "t", "[]", messages, "complete", 1, 1, 0)


def math_pair(draw: random.Random, number: int, shift: int) -> tuple[dict[str, object], str]:
    """A reference and an answer: whole numbers mostly, fractions, decimals, and every tenth an expression."""
    shape = draw.choices(("whole", "fraction", "decimal", "root"), (6, 2, 1, 1))[0]
    n, m = number + 2, draw.randrange(3, 99)
    gold, said = {
        "whole": (str(n), f"{n + shift}"),
        "fraction": (rf"\frac{{{n}}}{{{m}}}", rf"\dfrac{{{2 * (n + shift)}}}{{{2 * m}}}"),
        "decimal": (f"{n}.25", f"{n + shift}.250"),
        "root": (rf"{n}\sqrt{{{m}}}+x", rf"x+{n + shift}\sqrt{{{m}}}"),
    }[shape]
    thoughts = " ".join(f"Step {step} follows." for step in range(40))
    return {"answer": gold}, f"{thoughts} The answer is \\boxed{{{said}}}."


def code_pair(number: int, shift: int) -> tuple[dict[str, object], str]:
    """A function to write with three calls, and a program."""
    tests = [{"args": [n], "expected": 3 * n + number} for n in (0, 7, 50)]
    program = f"def solve(n):\n    return 3 * n + {number + shift}\n"
    return {"function": "solve", "tests": tests}, f"Here it is:\n```python\n{program}```\n"


def seconds_alone(kind: str, number: int, seed: int) -> float:
    """Seconds that one process takes for so many answers of a kind."""
    pairs = (pair for pair in (made_pair(n, seed) for n in range(10**9)) if pair[0] == kind)
    items = [make_item({task.task_id: task}, sample) for _, task, sample in islice(pairs, number)]
    judge_once(items[:8], Limits())  # imports, and the first box
    started = time.perf_counter()
    judge_once(items, Limits())
    return time.perf_counter() - started


def implied_rate(workers: int, counts: dict[str, int]) -> tuple[float, dict[str, float]]:
    """Samples a second of this mix by the verifiers alone, and what each can do."""
    rates: dict[str, float] = {}
    for kind, number in counts.items():
        with ProcessPoolExecutor(workers) as pool:
            times = list(pool.map(seconds_alone, [kind] * workers, [number] * workers, range(1, workers + 1)))
        rates[kind] = sum(number / seconds for seconds in times)
    total = sum(MIX.values())
    return 1 / sum(share / total / rates[kind] for kind, share in MIX.items()), rates


def run_stage(folder: Path, samples: int, workers: int) -> tuple[float, float, float]:
    """Seconds of the whole stage, the peak of its own process and of its largest worker, in MB."""
    folder.mkdir()
    write_table(folder / "tasks", Task, (made_pair(n, 0)[1] for n in range(samples)))
    write_table(folder / "samples", Sample, (made_pair(n, 0)[2] for n in range(samples)))
    (folder / "verify.yaml").write_text("{}\n")
    (folder / "machine.yaml").write_text(f"workers: {workers}\n")
    command = [sys.executable, "-m", "pipeline", "verify", "--config", "verify.yaml", "--in", "tasks=tasks"]
    command += ["--in", "samples=samples", "--out", "out", "--report", "report.json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WARMSTART_MACHINE": "machine.yaml"}
    started = time.perf_counter()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        peaks = list(watch(process))
    seconds = time.perf_counter() - started
    if process.returncode != 0:
        raise RuntimeError((folder / "log").read_text()[-2000:])
    report = json.loads((folder / "report.json").read_text())
    if report["samples"] != samples or report["unknown"]:
        raise RuntimeError(f"not every sample has its verdict: {report}")
    return seconds, max(own for own, _ in peaks), max(worker for _, worker in peaks)


def watch(process: "subprocess.Popen[bytes]") -> Iterator[tuple[float, float]]:
    """MB of the process and of its largest child, time and again until it ends."""
    own = psutil.Process(process.pid)
    yield 0.0, 0.0
    while process.poll() is None:
        try:
            workers = [child.memory_info().rss for child in own.children()]
            yield own.memory_info().rss / 1e6, max(workers, default=0) / 1e6
        except psutil.Error:
            pass
        time.sleep(0.2)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args(argv)
    share = min(1.0, given.samples / 100_000 + 0.1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        _, tenth, _ = run_stage(Path(name) / "tenth", given.samples // 10, given.workers)
        seconds, peak, workers_peak = run_stage(Path(name) / "all", given.samples, given.workers)
        implied, rates = implied_rate(given.workers, {kind: int(count * share) for kind, count in ALONE.items()})
    figures = {
        "efficiency": round(given.samples / seconds / implied, 3),
        "samples_per_s": round(given.samples / seconds, 1),
        "implied_samples_per_s": round(implied, 1),
        **{f"{kind}_per_s_alone": round(rate, 1) for kind, rate in rates.items()},
        "peak_mb": round(peak, 1),
        "peak_mb_tenth": round(tenth, 1),
        "workers_peak_mb": round(workers_peak, 1),
        "samples": given.samples,
        "workers": given.workers,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
