"""Claim: a Python program in the strongest box starts and answers in at most 2.5 times the time of bare Python, and one
forked by the warm server in no more than bare Python takes.

Peer: `python3 -I -c print(1)` without any box, alternating with both in the same run; medians. Throughput is that of
as many callers as there are cores.
"""

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pipeline.sandbox import BoxLimits, BoxSetup
from pipeline.sandbox.box import run_in
from pipeline.sandbox.setup import choose, probe

RUNS = 60
THROUGHPUT_S = 10.0
PROGRAM = "print(1)"


def boxed(setup: BoxSetup) -> Callable[[], None]:
    """A run of the program in a box of its own."""
    argv = setup.python_argv(PROGRAM)

    def run() -> None:
        result = run_in(setup, argv, b"", BoxLimits())
        assert (result.status, result.stdout) == ("exited", b"1\n"), result

    return run


def bare(python: str) -> Callable[[], None]:
    """A run of the program by itself."""

    def run() -> None:
        done = subprocess.run([python, "-I", "-c", PROGRAM], capture_output=True, check=True)
        assert done.stdout == b"1\n"

    return run


def seconds_of(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def runs_per_s(run: Callable[[], None]) -> float:
    """Runs finished a second, with a caller a core."""
    callers = len(os.sched_getaffinity(0))
    deadline = time.perf_counter() + THROUGHPUT_S

    def call(_: int) -> int:
        count = 0
        while time.perf_counter() < deadline:
            run()
            count += 1
        return count

    started = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        return sum(pool.map(call, range(callers))) / (time.perf_counter() - started)


def main() -> None:
    """Measure and print."""
    strongest, warm = choose(["A"]), choose(["B"])
    ways = {"bare": bare(strongest.python), "tier_a": boxed(strongest), "fork": boxed(warm)}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, run in ways.items():
            taken[name].append(seconds_of(run))
    p50 = {name: statistics.median(values) * 1000 for name, values in taken.items()}
    figures = {f"{name}_p50_ms": round(value, 2) for name, value in p50.items()}
    figures |= {f"{name}_ratio": round(p50[name] / p50["bare"], 3) for name in ("tier_a", "fork")}
    figures |= {f"{name}_runs_per_s": round(runs_per_s(run), 1) for name, run in ways.items()}
    figures["probe_p50_ms"] = round(statistics.median(seconds_of(lambda: probe(strongest)) for _ in range(5)) * 1000, 1)
    print(json.dumps({**figures, "cgroup": int(strongest.cgroups is not None), "runs": RUNS}))


if __name__ == "__main__":
    main()
