"""Claim: durability of every answer costs a small part of what a fast server needs, because what arrives together is
synced together.

Peers in the same run: one SQLite transaction an answer, and JSON lines with a sync an answer.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.ledger import Answer, Ledger

ANSWERS, TOGETHER, RUNS = 2_000, 64, 3
TEXT = "The answer is 42. " * 60  # about 1 KB


def answers() -> list[tuple[bytes, Answer]]:
    """Answers as a server gives them."""
    return [(n.to_bytes(16, "big"), Answer(TEXT, "stop", None, 100, 250, 512, n)) for n in range(ANSWERS)]


def grouped(folder: Path) -> None:
    """The ledger as `generate` uses it: one transaction for what arrived together."""
    rows = answers()
    with Ledger(folder) as ledger:
        for start in range(0, ANSWERS, TOGETHER):
            ledger.put(rows[start : start + TOGETHER])


def one_by_one(folder: Path) -> None:
    """The same ledger, one transaction an answer."""
    with Ledger(folder) as ledger:
        for row in answers():
            ledger.put([row])


def json_lines(folder: Path) -> None:
    """JSON lines, synced after each."""
    folder.mkdir()
    with (folder / "answers.jsonl").open("w") as file:
        for key, answer in answers():
            file.write(json.dumps([key.hex(), answer.text, answer.seed]) + "\n")
            file.flush()
            os.fsync(file.fileno())


def rate_of(store: Callable[[Path], None]) -> float:
    """Durable answers a second."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        started = time.perf_counter()
        store(Path(folder) / "ledger")
        return ANSWERS / (time.perf_counter() - started)


def main() -> None:
    """Measure in turns and print."""
    stores = {"grouped": grouped, "one_by_one": one_by_one, "json_lines": json_lines}
    rates: dict[str, list[float]] = {name: [] for name in stores}
    for _ in range(RUNS):
        for name, store in stores.items():
            rates[name].append(rate_of(store))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    figures = {f"{name}_per_s": round(rate) for name, rate in medians.items()}
    ratio = medians["grouped"] / medians["one_by_one"]
    print(json.dumps({**figures, "grouped_to_one_by_one": round(ratio, 1), "answers": ANSWERS, "runs": RUNS}))


if __name__ == "__main__":
    main()
