"""One server as the queue sees it: whether it takes requests, how many, and when it last made progress."""

import asyncio
import re
import time
from dataclasses import dataclass, field

import aiohttp

from pipeline.engine.client import Ask
from pipeline.engine.replica import Replica

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
READ_EVERY_S = 5.0
"""Of a server that gives no answers. vLLM's metrics are a text of a hundred kilobytes: read every second they were half
of the client's CPU."""
_COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")
_COUNTER_LINE = re.compile(rf"^({'|'.join(_COUNTERS)})(?:\{{.*\}})? (\S+)", re.MULTILINE)


@dataclass(slots=True, eq=False)
class Lane:
    """The state of one server. Times are of the monotonic clock, in seconds."""

    replica: Replica
    most: int
    """Requests in flight at most."""
    limit: float
    """Requests in flight now: halved when the server asks for patience, one more with each answer."""
    in_flight: dict["asyncio.Task[None]", Ask] = field(default_factory=dict)
    outstanding: int = 0
    """Tokens that it still has to work on, as far as can be told."""
    ready: bool = False
    was_ready: bool = False
    gone: str | None = None
    """Why it is given up."""
    open_at: float = 0.0
    """No request is sent before."""
    failures: int = 0
    """Pauses in a row without an answer between them."""
    restarts: int = 0
    started_at: float = 0.0
    progress_at: float = 0.0
    """When a token was last seen."""
    metrics: bool | None = None
    """Whether it counts its tokens under /metrics; where it does not, answers are streamed."""
    counters: dict[str, int] = field(default_factory=dict)
    earlier: dict[str, int] = field(default_factory=dict)
    """Counters of its earlier lives."""
    read_at: float = 0.0
    """When its counters were last read."""
    answered: int = 0
    refusals: int = 0
    """Refusals in a row without an answer between them."""
    broken: dict[bytes, float] = field(default_factory=dict)
    """When requests failed on it that it may have died of: it has answered none that was sent afterwards."""
    problem: str = ""
    """What went wrong last."""

    def free(self, now: float) -> bool:
        """Whether it takes one more request."""
        return self.ready and now >= self.open_at and len(self.in_flight) < int(self.limit)

    def took(self, wanted: Ask, task: "asyncio.Task[None]") -> None:
        """A request is on its way."""
        if not self.in_flight:
            self.progress_at = time.monotonic()
        self.in_flight[task] = wanted
        self.outstanding += wanted.tokens

    def left(self, wanted: Ask, task: "asyncio.Task[None]") -> None:
        """A request has ended, one way or the other."""
        if self.in_flight.pop(task, None) is not None:
            self.outstanding -= wanted.tokens

    def succeeded(self, sent_at: float) -> None:
        """An answer came to a request."""
        self.failures, self.refusals, self.problem = 0, 0, ""
        if self.broken:
            self.broken = {key: at for key, at in self.broken.items() if at > sent_at}
        self.answered += 1
        self.progress_at = time.monotonic()
        self.limit = min(self.most, self.limit + 1)

    def pause(self, problem: str, seconds: float | None = None) -> None:
        """Send nothing for a while: as long as the server says, else longer with each pause in a row."""
        now, self.problem = time.monotonic(), problem
        if now < self.open_at:  # one of many that failed together
            return
        self.failures += 1
        grown = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self.failures - 1))
        self.open_at = now + (grown if seconds is None else min(max(seconds, 0.0), 120.0))

    def reset(self) -> None:
        """It starts (again): nothing is known of it."""
        for name, value in self.counters.items():
            self.earlier[name] = self.earlier.get(name, 0) + value
        self.counters, self.metrics, self.ready = {}, None, False
        self.limit, self.failures, self.open_at = float(self.most), 0, 0.0
        self.broken = {}
        self.started_at = time.monotonic()

    def totals(self) -> dict[str, int]:
        """The server's own counters over all its lives, as far as they were seen."""
        names = {*self.counters, *self.earlier}
        return {name: self.counters.get(name, 0) + self.earlier.get(name, 0) for name in names}

    async def answers(self, session: aiohttp.ClientSession) -> bool:
        """Whether it lists its models."""
        url = self.replica.url
        if url is None:
            return False
        try:
            async with session.get(f"{url}/models", timeout=aiohttp.ClientTimeout(total=5)) as reply:
                return reply.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def read_counters(self, session: aiohttp.ClientSession) -> None:
        """Take over the server's counters; tokens that were added are progress."""
        url = self.replica.url
        self.read_at = time.monotonic()
        if url is None or self.metrics is False:
            return
        try:
            address = url.removesuffix("/v1") + "/metrics"
            async with session.get(address, timeout=aiohttp.ClientTimeout(total=10)) as reply:
                text = await reply.text() if reply.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, OSError):
            return
        found = parse_counters(text)
        if self.metrics is None:
            self.metrics = bool(found)
        if found and found != self.counters:
            self.counters = found
            self.progress_at = time.monotonic()


def parse_counters(text: str) -> dict[str, int]:
    """vLLM's totals of finished requests, prompt and generated tokens in Prometheus' text format."""
    totals: dict[str, int] = {}
    for name, value in _COUNTER_LINE.findall(text):
        totals[name] = totals.get(name, 0) + int(float(value))
    return totals
