"""What a sampling run looks like while it runs: a progress line, and a Prometheus text file for scraping."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pipeline.ledger import Answer
from pipeline.progress import Progress

if TYPE_CHECKING:
    from pipeline.engine.lane import Lane

METRICS = Path(".work/metrics")
"""One file a teacher, `TEACHER.prom`, for node_exporter's textfile collector or any other reader."""
_EVERY_S = 15.0  # as often as Prometheus asks; node_exporter reads the file each time


class Status:
    """Counts of one sampling pass. A context manager while requests are out."""

    def __init__(self, teacher: str, total: int, last: "Status | None" = None) -> None:
        self.teacher, self.total = teacher, total
        self.judged: int = last.judged if last else 0
        self.right: int = last.right if last else 0
        """Samples that verifiers have looked at, and passed, over all passes of a run."""
        self.reused = self.settled = self.received = 0
        self.prompt_tokens = self.output_tokens = 0
        self.outcomes: Counter[str] = Counter()
        self.lanes: Sequence[Lane] = ()
        self._shown = 0
        self._started = self._written = time.monotonic()

    def __enter__(self) -> "Status":
        self._started = time.monotonic()
        self._shown = self.reused
        self._bar = Progress(f"samples of {self.teacher}", self.total, "samples", done=self.reused)
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._advance()
        self._bar.__exit__(kind, error, _)
        self.write()

    @property
    def output_tokens_per_s(self) -> float:
        """Since the first request."""
        return self.output_tokens / max(time.monotonic() - self._started, 1e-9)

    def add(self, answers: Sequence[Answer]) -> None:
        """Take up answers that are on disk."""
        self.received += len(answers)
        for answer in answers:
            self.prompt_tokens += answer.num_prompt_tokens
            self.output_tokens += answer.num_output_tokens
            self.outcomes[answer.finish_reason] += 1
        self._advance()
        if time.monotonic() - self._written > _EVERY_S:
            self.write()

    def _advance(self) -> None:
        done = self.reused + self.settled + self.received
        note = f"{self.output_tokens_per_s:.0f} output tokens/s"
        cut = self.outcomes["length"]
        if cut:
            note += f", {cut} cut"
        if self.judged:
            note += f", {self.right / self.judged:.0%} passed so far"
        if len(self.lanes) > 1:
            note += f", {sum(lane.ready for lane in self.lanes)} of {len(self.lanes)} servers"
        self._bar.advance(done - self._shown, note)
        self._shown = done

    def write(self) -> None:
        """Replace the Prometheus file, so that no reader sees half of it."""
        self._written = time.monotonic()
        METRICS.mkdir(parents=True, exist_ok=True)
        path = METRICS / f"{self.teacher}.prom"
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(self.text(), encoding="utf-8")
        temporary.replace(path)

    def text(self) -> str:
        """All figures in Prometheus' text format."""
        figures = [
            ("samples_requested", "gauge", self.total),
            ("samples_reused", "gauge", self.reused),
            ("samples_received_total", "counter", self.received),
            ("prompt_tokens_total", "counter", self.prompt_tokens),
            ("output_tokens_total", "counter", self.output_tokens),
            ("output_tokens_per_second", "gauge", round(self.output_tokens_per_s, 1)),
            ("samples_judged_total", "counter", self.judged),
            ("samples_passed_total", "counter", self.right),
        ]
        lines = []
        for name, kind, value in figures:
            lines += [
                f"# TYPE warmstart_{name} {kind}",
                f'warmstart_{name}{{teacher="{self.teacher}"}} {value}',
            ]
        lines.append("# TYPE warmstart_answers_total counter")
        for reason, count in sorted(self.outcomes.items()):
            label = f'teacher="{self.teacher}",finish_reason="{_escaped(reason)}"'
            lines.append(f"warmstart_answers_total{{{label}}} {count}")
        for name in ("server_up", "server_requests_in_flight", "server_restarts_total"):
            lines.append(f"# TYPE warmstart_{name} {'counter' if name.endswith('total') else 'gauge'}")
            for lane in self.lanes:
                value = {
                    "server_up": int(lane.ready),
                    "server_requests_in_flight": len(lane.in_flight),
                    "server_restarts_total": lane.restarts,
                }[name]
                label = f'teacher="{self.teacher}",server="{_escaped(lane.replica.name)}"'
                lines.append(f"warmstart_{name}{{{label}}} {value}")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
