"""One queue of requests over many servers that may be slow, busy, stuck or dead.

Each request goes to the free server with the fewest outstanding tokens. A server that asks for patience is left alone
for a while and then tried with less; what a server that died was working on is queued once more (see watch.py).
"""

import asyncio
import contextlib
import math
import random
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial

import aiohttp

from pipeline.config import Serving
from pipeline.engine.client import REQUEST_TIMEOUT_S, Ask, Busy, Failed, Refused, Target, Unreached, ask
from pipeline.engine.lane import LONGEST_PAUSE_S, Lane
from pipeline.engine.replica import Replica, RunningServer
from pipeline.engine.watch import MAX_TRIES, Watcher
from pipeline.errors import UserError
from pipeline.ledger import Answer

EVERYTHING_REFUSED = 20
"""So many refusals in a row, without one answer ever, leave a server out: no request of the run will do."""
GATHER_SHARE, GATHER_LEAST_S, GATHER_MOST_S, GATHER_MOST = 0.05, 0.02, 1.0, 32
"""An answer waits for others to be handed on with: a twentieth of the time that it took to make, within these seconds,
or until so many are there. A thread, a sync and a line each were a quarter of the client's CPU, and what a kill costs
is the answers in flight in any case."""
_OF_THE_SERVER = (401, 403, 404)
"""Refusals for the key or the model's name: another server may take the request."""
_LONGEST_LINE = 16 << 20  # bytes
Pairs = list[tuple[bytes, Answer]]


class Fleet:
    """`async with Fleet(...) as fleet: async for pairs in fleet.answers(asks)`."""

    def __init__(self, replicas: Sequence[Replica], target: Target, max_in_flight: int, patience: Serving) -> None:
        self.lanes = [Lane(replica, max_in_flight, float(max_in_flight)) for replica in replicas]
        self._target, self._patience = target, patience
        self._again: deque[Ask] = deque()
        self._delayed = 0
        self._tries: Counter[bytes] = Counter()
        self._deaths: dict[bytes, set[tuple[Lane, int]]] = {}
        """Servers, and which of their lives, that ended while they worked on a request."""
        self._arrived: Pairs = []
        self._enough = asyncio.Event()
        """Set when what has arrived is to be handed on."""
        self._changed = asyncio.Event()
        self._draining = False
        self._dispatcher: asyncio.Task[None] | None = None
        self._defects: list[BaseException] = []
        """Errors that nobody foresaw; they end the run, where a request or a server would be forgotten in silence."""
        self.lost: list[tuple[Ask, str]] = []
        """Requests that were refused or given up, and why."""
        self.taken = 0
        """Requests that were answered, in this run or, as far as the ledger told, before."""

    async def __aenter__(self) -> "Fleet":
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=30)
        connector, cookies = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
        # A line of a stream may hold a whole answer; aiohttp refuses lines of more than twice the buffer.
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=connector, cookie_jar=cookies, read_bufsize=_LONGEST_LINE
        )
        for lane in self.lanes:
            lane.reset()
            await asyncio.to_thread(lane.replica.start)
        look = Watcher(self._session, self._patience, self._target.vllm, self._requeue, self._changed)
        self._watchers = [asyncio.create_task(look.watch(lane)) for lane in self.lanes]
        for watcher in self._watchers:
            watcher.add_done_callback(self._note_defect)
        return self

    async def __aexit__(self, *_: object) -> None:
        # After a second signal the dispatcher still runs; without it `answers` ends as well.
        tasks = [*self._watchers, *([self._dispatcher] if self._dispatcher is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._cancel_requests()
        await self._session.close()
        await asyncio.gather(*(asyncio.to_thread(lane.replica.stop) for lane in self.lanes))

    async def answers(self, asks: AsyncIterator[Ask]) -> AsyncGenerator[Pairs, None]:
        """Yield what has arrived since the last time, until everything is answered or lost.

        Raises UserError when no server is left, or no request of the run will ever be taken.
        """
        self._arrived.clear()
        dispatcher = self._dispatcher = asyncio.create_task(self._dispatch(asks))
        dispatcher.add_done_callback(lambda _: self._enough.set())
        try:
            while self._arrived or not dispatcher.done():
                await self._enough.wait()
                self._enough.clear()
                batch, self._arrived = self._arrived, []
                if batch:
                    yield batch
            await dispatcher  # raises what ended it
        finally:
            dispatcher.cancel()
            with contextlib.suppress(BaseException):
                await dispatcher

    def drain(self) -> None:
        """Send nothing more; what is on its way may still arrive for `drain_s` seconds."""
        self._draining = True
        self._changed.set()

    async def read_totals(self) -> dict[str, int]:
        """The servers' own counters, summed."""
        await asyncio.gather(*(lane.read_counters(self._session) for lane in self.lanes if lane.ready))
        total: Counter[str] = Counter()
        for lane in self.lanes:
            total.update(lane.totals())
        return dict(total)

    async def _dispatch(self, asks: AsyncIterator[Ask]) -> None:
        exhausted = False
        while not self._draining:
            if self._again:
                wanted = self._again.popleft()
            elif not exhausted:
                try:
                    wanted = await anext(asks)
                except StopAsyncIteration:
                    exhausted = True
                    continue
            elif self._delayed or self._defects or any(lane.in_flight for lane in self.lanes):
                await self._wait(1.0)
                continue
            else:
                return
            lane = await self._free_lane()
            if lane is None:
                break
            if len(self._deaths.get(wanted.key, ())) > 1:
                self.lost.append((wanted, "two servers ended while they worked on it"))
                continue
            task = asyncio.create_task(self._one(lane, wanted))
            lane.took(wanted, task)
            task.add_done_callback(partial(self._ended, lane, wanted))
        deadline = time.monotonic() + self._patience.drain_s
        while any(lane.in_flight for lane in self.lanes) and time.monotonic() < deadline:
            await self._wait(0.2)
        await self._cancel_requests()

    async def _free_lane(self) -> Lane | None:
        """The free server with the least to do, waiting for one; None when draining has begun."""
        while not self._draining:
            now = time.monotonic()
            free = [lane for lane in self.lanes if lane.free(now)]
            if free:
                return min(free, key=lambda lane: lane.outstanding)
            if all(lane.gone and not lane.in_flight for lane in self.lanes):
                raise UserError("; ".join(f"{lane.replica.name}: {lane.gone}" for lane in self.lanes))
            soonest = min((lane.open_at - now for lane in self.lanes if lane.open_at > now), default=1.0)
            await self._wait(min(1.0, soonest))
        return None

    async def _wait(self, seconds: float) -> None:
        self._changed.clear()
        if not self._defects:
            # No timeout object a wait: this is passed once an answer or so.
            timer = asyncio.get_running_loop().call_later(seconds, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                timer.cancel()
            await asyncio.sleep(0)  # what a task that ended just now has to tell is noted after it woke us
        for defect in self._defects:
            raise defect

    def _note_defect(self, task: "asyncio.Task[None]") -> None:
        defect = None if task.cancelled() else task.exception()
        if defect is not None:
            self._defects.append(defect)
            self._changed.set()

    async def _one(self, lane: Lane, wanted: Ask) -> None:
        url, sent_at = lane.replica.url, time.monotonic()
        streamed = None if lane.metrics else lambda: setattr(lane, "progress_at", time.monotonic())
        try:
            if url is None:
                raise Unreached("the server has no address any more")
            answer = await ask(self._session, url, self._target, wanted, streamed)
        except Refused as refusal:
            self._refuse(lane, wanted, refusal)
        except Busy as busy:
            lane.limit = max(1.0, lane.limit / 2)
            lane.pause(str(busy), busy.retry_after_s)
            self._again.append(wanted)
            self._give_up_if_hopeless(lane)
        except Failed as failure:
            self._failed(lane, wanted, failure)
        else:
            lane.succeeded(sent_at)
            self.taken += 1
            self._arrived.append((wanted.key, answer))
            if len(self._arrived) == 1:
                wait = GATHER_SHARE * (time.monotonic() - sent_at)
                wait = min(max(wait, GATHER_LEAST_S), GATHER_MOST_S)
                asyncio.get_running_loop().call_later(wait, self._enough.set)
            elif len(self._arrived) >= GATHER_MOST:
                self._enough.set()

    def _ended(self, lane: Lane, wanted: Ask, task: "asyncio.Task[None]") -> None:
        self._note_defect(task)
        lane.left(wanted, task)
        self._changed.set()

    def _refuse(self, lane: Lane, wanted: Ask, refusal: Refused) -> None:
        lane.progress_at = time.monotonic()
        lane.refusals += 1
        of_the_server, many = refusal.status in _OF_THE_SERVER, lane.refusals >= EVERYTHING_REFUSED
        if (of_the_server and (many or not lane.answered)) or (many and not self.taken):
            lane.gone, lane.ready = f"refused every request, last with {refusal}; mend the teacher's settings", False
            lane.open_at = math.inf
        if of_the_server and lane.gone:
            self._again.append(wanted)
        else:
            self.lost.append((wanted, f"{lane.replica.name} refused it with {refusal}"))

    def _failed(self, lane: Lane, wanted: Ask, failure: Failed) -> None:
        problem, unseen = str(failure), isinstance(failure, Unreached)
        lane.pause(problem)
        lane.limit = 1.0 if lane.failures > 1 else lane.limit
        if self._give_up_if_hopeless(lane) or unseen:
            self._again.append(wanted)
            return
        lane.broken[wanted.key] = time.monotonic()
        self._tries[wanted.key] += 1
        if self._tries[wanted.key] >= MAX_TRIES:
            self.lost.append((wanted, f"failed {MAX_TRIES} times, last on {lane.replica.name}: {problem}"))
            return
        # The request waits, not the server: one that fails by itself must not slow the others.
        self._delayed += 1
        pause = min(LONGEST_PAUSE_S, 0.25 * 2 ** self._tries[wanted.key]) * random.uniform(0.5, 1.0)
        asyncio.get_running_loop().call_later(pause, self._queue_again, wanted)

    def _queue_again(self, wanted: Ask) -> None:
        self._delayed -= 1
        self._again.append(wanted)
        self._changed.set()

    def _give_up_if_hopeless(self, lane: Lane) -> bool:
        """A server of others that fails time after time is left out until it answers again."""
        if lane.failures < MAX_TRIES or not isinstance(lane.replica, RunningServer):
            return False
        lane.ready = False
        lane.gone = f"no answer after {MAX_TRIES} tries, last {lane.problem}; what finished is kept, run again"
        return True

    def _requeue(self, lane: Lane) -> int:
        """Queue once more what a server that died was working on; how many requests that are."""
        # One that has just been answered is still listed until its task's callbacks have run.
        asks = [(task, wanted) for task, wanted in lane.in_flight.items() if not task.done()]
        for task, wanted in asks:
            task.cancel()
            lane.left(wanted, task)
            self._again.append(wanted)
        for key in (*lane.broken, *(wanted.key for _, wanted in asks)):
            self._deaths.setdefault(key, set()).add((lane, lane.restarts))
        return len(asks)

    async def _cancel_requests(self) -> None:
        tasks = [task for lane in self.lanes for task in lane.in_flight]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
