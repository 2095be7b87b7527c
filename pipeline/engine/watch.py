"""Bring servers up, see that they make tokens, and start them again when they do not.

A health endpoint answers 200 over a dead engine (vllm-project/vllm#39863), so tokens alone count: those under /metrics,
and where a server has none, those of the stream.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from pipeline.config import Serving
from pipeline.engine.lane import LONGEST_PAUSE_S, READ_EVERY_S, Lane
from pipeline.engine.replica import RunningServer
from pipeline.errors import UserError
from pipeline.progress import say

MAX_TRIES = 8
"""Failures after which a request, or a server without an answer in between, is given up."""


@dataclass(frozen=True, slots=True)
class Watcher:
    """Looks at servers time and again: a task of `watch` for each."""

    _session: aiohttp.ClientSession
    _patience: Serving
    _vllm: bool
    """Whether the servers are vLLM's, which count their tokens."""
    _requeue: Callable[[Lane], int]
    """Queues once more what a server was working on."""
    _changed: asyncio.Event
    """Set whenever a server takes requests, or takes none any more."""

    async def watch(self, lane: Lane) -> None:
        """Bring a server up, see that it makes tokens, and start it again when it does not."""
        told = time.monotonic()
        while True:
            try:
                told = await self._look_at(lane, told)
            except UserError as error:  # it could not be started again
                lane.gone, lane.open_at = str(error), math.inf
                self._changed.set()
            await asyncio.sleep(self._patience.poll_s)

    async def _look_at(self, lane: Lane, told: float) -> float:
        """One look at a server; `told` is when the user last heard of its loading."""
        now, given = time.monotonic(), isinstance(lane.replica, RunningServer)
        if lane.gone is None and not lane.replica.alive():
            await self._died(lane, "ended" if lane.was_ready else "ended while loading")
        elif lane.gone is None and not given and lane.failures >= MAX_TRIES:
            await self._died(lane, f"failed {MAX_TRIES} times in a row, last with {lane.problem}")
        elif lane.in_flight:
            # An answer is progress enough; only a server that has given none for a while is asked for its tokens.
            patience = min(READ_EVERY_S, self._patience.stall_s / 4)
            if now - lane.progress_at > patience and now - lane.read_at > patience:
                await lane.read_counters(self._session)
            if lane.in_flight and time.monotonic() - lane.progress_at > self._patience.stall_s:
                await self._died(lane, f"made no token for {self._patience.stall_s:.0f} s (serving.stall_s)")
        elif lane.gone is not None:
            if given and now - lane.open_at > LONGEST_PAUSE_S:
                lane.open_at = now
                if await lane.answers(self._session):
                    lane.gone, lane.failures, lane.limit, lane.ready = None, 0, 1.0, True
        elif not lane.ready:
            if given or await lane.answers(self._session):
                await self._is_ready(lane)
            elif now - lane.started_at > self._patience.ready_timeout_s:
                await self._died(lane, f"is not ready after {now - lane.started_at:.0f} s (serving.ready_timeout_s)")
            elif now - told > 10:
                say(f"{lane.replica.name}: still loading after {now - lane.started_at:.0f} s")
                return now
        return told

    async def _is_ready(self, lane: Lane) -> None:
        if self._vllm:
            await lane.read_counters(self._session)
        lane.metrics = bool(lane.metrics)
        if not isinstance(lane.replica, RunningServer):
            say(f"{lane.replica.name}: ready after {time.monotonic() - lane.started_at:.0f} s")
        lane.ready = lane.was_ready = True
        self._changed.set()

    async def _died(self, lane: Lane, why: str) -> None:
        """Queue its requests once more and start it again, or give it up."""
        lane.ready = False
        queued = self._requeue(lane)
        tail = lane.replica.log_tail()
        problem = why + (f"; the end of its log:\n{tail}" if tail else "")
        if isinstance(lane.replica, RunningServer):
            lane.gone, lane.open_at = lane.gone or problem, max(lane.open_at, time.monotonic())
        elif lane.gone is None and lane.was_ready and lane.restarts < self._patience.max_restarts:
            lane.restarts += 1
            say(f"{lane.replica.name}: {why}; starting it again, {queued} of its requests are queued once more")
            await asyncio.to_thread(lane.replica.stop)
            await asyncio.to_thread(lane.replica.start)
            lane.reset()
        else:
            lane.gone = problem
            await asyncio.to_thread(lane.replica.stop)
            say(f"{lane.replica.name}: given up: {why}")
        self._changed.set()
