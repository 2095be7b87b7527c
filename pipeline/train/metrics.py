"""One JSON line per optimizer step, written by rank 0 and read by whoever started the run."""

import json
import math
import time
from pathlib import Path
from typing import Any


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines written so far; a line that is being written is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def keep_steps(path: Path, last: int) -> None:
    """Drop the lines of steps after `last`, which a resumed run takes again."""
    lines = [json.dumps(line) + "\n" for line in read_metrics(path) if line["step"] <= last]
    path.write_text("".join(lines), encoding="utf-8")


class StepMetrics:
    """Append a line per step. `trained_tokens` holds the tokens with loss of each step, in order."""

    def __init__(self, path: Path, tokens: list[int], trained_tokens: list[int]) -> None:
        self._path, self._tokens, self._trained = path, tokens, trained_tokens
        self._since = time.monotonic()

    def start(self) -> None:
        """Take the time from here."""
        self._since = time.monotonic()

    def add(self, step: int, loss: float, learning_rate: float, grad_norm: float) -> None:
        """Write the line of a step. Raises RuntimeError when the loss is no number: nothing good follows."""
        if not math.isfinite(loss):
            raise RuntimeError(f"step {step}: the loss is {loss}; lower the learning rate or train in float32")
        now = time.monotonic()
        line = {
            "step": step,
            "loss": loss,
            "learning_rate": learning_rate,
            "grad_norm": grad_norm,
            "tokens": self._tokens[step - 1],
            "trained_tokens": self._trained[step - 1],
            "seconds": round(now - self._since, 4),
        }
        self._since = now
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
