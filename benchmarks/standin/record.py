"""What a stand-in counts: requests as they came in, and vLLM's own metrics."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.standin.faults import Body

_REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass
class Record:
    """Counts at the server, the only ones that a client cannot get wrong."""

    received: int = 0
    """Completion requests so far; the next one has this number."""
    answered: int = 0
    """Whole answers given."""
    bodies: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    """Requests by the HTTP status they ended with; 0 for closed connections and requests that the client left."""
    concurrent: int = 0
    max_concurrent: int = 0
    """Most completion requests that were open at once; only a delay lets them overlap."""
    first_request_at: float | None = None
    """`time.monotonic()` of the first request: one clock for all processes of a machine."""
    last_answer_at: float | None = None
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    """Requests by finish reason, as in vLLM's metrics."""

    def open_request(self, body: Body, headers: dict[str, str], keep: bool) -> int:
        """Count a new request and give its number."""
        number = self.received
        self.received += 1
        if self.first_request_at is None:
            self.first_request_at = time.monotonic()
        if keep:
            self.bodies.append(body)
            self.headers.append(headers)
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        return number

    def close_request(self, status: int) -> None:
        """Count the end of a request."""
        self.concurrent -= 1
        self.statuses[status] += 1

    def close_answer(self, finish_reason: str, is_whole: bool) -> None:
        """Count a generated answer; only a whole one is of use to a client."""
        self.finished[finish_reason] += 1
        if is_whole:
            self.answered += 1
            self.last_answer_at = time.monotonic()

    def reset(self) -> None:
        """Forget everything; the next request is number 0. Only between loads: open requests are forgotten too."""
        vars(self).update(vars(Record()))

    def counts(self) -> dict[str, Any]:
        """All of it but bodies and headers, for JSON."""
        return {name: value for name, value in vars(self).items() if name in _COUNTS}

    def metrics(self, model: str) -> str:
        """vLLM's names in Prometheus text."""
        label = f'engine="0",model_name="{model}"'
        lines = []
        for name, value in (("num_requests_running", self.running), ("num_requests_waiting", self.waiting)):
            lines += [f"# HELP vllm:{name} Requests now.", f"# TYPE vllm:{name} gauge"]
            lines += [f"vllm:{name}{{{label}}} {float(value)}"]
        for name, value in (("prompt_tokens", self.prompt_tokens), ("generation_tokens", self.generation_tokens)):
            lines += [f"# HELP vllm:{name}_total Tokens processed.", f"# TYPE vllm:{name}_total counter"]
            lines += [f"vllm:{name}_total{{{label}}} {float(value)}"]
        lines += ["# HELP vllm:request_success_total Finished.", "# TYPE vllm:request_success_total counter"]
        for reason in _REASONS:
            labels = f'engine="0",finished_reason="{reason}",model_name="{model}"'
            lines.append(f"vllm:request_success_total{{{labels}}} {float(self.finished[reason])}")
        return "\n".join([*lines, ""])


_COUNTS = frozenset(vars(Record())) - {"bodies", "headers"}
