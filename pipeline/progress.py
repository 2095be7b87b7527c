"""Progress with rates and ETA: a live bar in a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType

PLAIN_INTERVAL_S = 10.0


class Progress:
    """Count work done. `with Progress("generate", total, "samples") as p: p.advance(1, note="312 tok/s")`."""

    def __init__(self, label: str, total: int, unit: str, done: int = 0) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._resumed = self._done = done
        self._started = self._printed = time.monotonic()
        self._note = ""
        self._live = sys.stderr.isatty()

    def __enter__(self) -> "Progress":
        if self._live:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[unit]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(
                self._label, total=self._total, completed=self._done, unit=self._unit, note=""
            )
        return self

    def advance(self, count: int = 1, note: str = "") -> None:
        """Report `count` more units done and an optional short note (rates, outcomes)."""
        self._done += count
        self._note = note or self._note
        if self._live:
            self._bar.update(self._task, completed=self._done, note=self._note)
        elif time.monotonic() - self._printed >= PLAIN_INTERVAL_S:
            self._printed = time.monotonic()
            print(self._line(), file=sys.stderr, flush=True)

    def _line(self) -> str:
        elapsed = time.monotonic() - self._started
        rate = (self._done - self._resumed) / elapsed if elapsed > 0 else 0.0
        eta = f", about {(self._total - self._done) / rate:.0f} s left" if rate > 0 and self._done < self._total else ""
        note = f", {self._note}" if self._note else ""
        return f"{self._label}: {self._done}/{self._total} {self._unit}, {rate:.1f}/s{eta}{note}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._bar.stop()
        print(f"{self._line()} after {time.monotonic() - self._started:.0f} s", file=sys.stderr, flush=True)


def say(text: str) -> None:
    """One line of what happens now, on stderr."""
    print(text, file=sys.stderr, flush=True)
