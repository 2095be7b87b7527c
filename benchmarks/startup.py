"""Claim: `warmstart --help` and `warmstart STAGE --help` answer in under a second and load no heavy library.

Peer: the time of `python -c pass` in the same run, alternating.
"""

import json
import statistics
import subprocess
import sys
import time

RUNS = 7
HEAVY = ("torch", "transformers", "datasets", "vllm", "distributed")


def seconds_of(*words: str) -> float:
    """Wall seconds of one Python process."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    return time.perf_counter() - started


def heavy_imports(*words: str) -> int:
    """How many of the heavy libraries a command loads."""
    program = (
        "import sys; from pipeline.cli.main import main; main(sys.argv[1:]); "
        f"print('heavy', sum(name in sys.modules for name in {HEAVY!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, text=True)
    return int(done.stdout.rsplit("heavy ", 1)[1])


def main() -> None:
    """Measure and print."""
    from pipeline.cli.main import stage_names

    commands = {"help": ["--help"], **{f"{stage}_help": [stage, "--help"] for stage in stage_names()}}
    bare: list[float] = []
    measured: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        bare.append(seconds_of("-c", "pass"))
        for name, words in commands.items():
            measured[name].append(seconds_of("-m", "pipeline", *words))
    medians = {name: statistics.median(values) for name, values in measured.items()}
    figures = {
        "help_s": round(medians["help"], 3),
        "slowest_stage_help_s": round(max(medians.values()), 3),
        "python_pass_s": round(statistics.median(bare), 3),
        "heavy_imports": sum(heavy_imports(*words) for words in commands.values()),
        "runs": RUNS,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
