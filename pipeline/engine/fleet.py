"""One queue of requests over many servers that may be slow, busy, stuck or dead.

Each request goes to the free server with the fewest outstanding tokens. A server that asks for patience is left alone
for a while and then tried with less; one that ends or makes no token is started again, and what it was working on is
queued once more. A health endpoint answers 200 over a dead engine (vllm-project/vllm#39863), so tokens alone count:
those under /metrics, and where a server has none, those of the stream.
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
from pipeline.engine.lane import LONGEST_PAUSE_S, READ_EVERY_S, Lane
from pipeline.engine.replica import Replica, RunningServer
from pipeline.errors import UserError
from pipeline.ledger import Answer
from pipeline.progress import say

MAX_TRIES = 8
"""Failures after which a request, or a server without an answer in between, is given up."""
EVERYTHING_REFUSED = 20
"""So many refusals in a row, without one answer ever, leave a server out: no request of the run will do."""
GATHER_S = 0.03
"""Answers that arrive within so many seconds are handed on together: a thread, a sync and a line each were a quarter of
the client's CPU."""
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
        self._results: asyncio.Queue[tuple[bytes, Answer] | None] = asyncio.Queue()
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
        self._watchers = [asyncio.create_task(self._watch(lane)) for lane in self.lanes]
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
        # A queue of its own: the mark at the end of an earlier one would end this one before its answers.
        results = self._results = asyncio.Queue()
        dispatcher = self._dispatcher = asyncio.create_task(self._dispatch(asks))
        dispatcher.add_done_callback(lambda _: results.put_nowait(None))
        try:
            while (first := await results.get()) is not None:
                await asyncio.wait({dispatcher}, timeout=GATHER_S)
                batch = [first]
                while not results.empty() and (more := results.get_nowait()) is not None:
                    batch.append(more)
                yield batch
                if dispatcher.done() and results.empty():
                    break
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
            self._results.put_nowait((wanted.key, answer))

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

    async def _cancel_requests(self) -> None:
        tasks = [task for lane in self.lanes for task in lane.in_flight]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, lane: Lane) -> None:
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
        if self._target.vllm:
            await lane.read_counters(self._session)
        lane.metrics = bool(lane.metrics)
        if not isinstance(lane.replica, RunningServer):
            say(f"{lane.replica.name}: ready after {time.monotonic() - lane.started_at:.0f} s")
        lane.ready = lane.was_ready = True
        self._changed.set()

    async def _died(self, lane: Lane, why: str) -> None:
        """Queue its requests once more and start it again, or give it up."""
        lane.ready = False
        # One that has just been answered is still listed until its task's callbacks have run.
        asks = [(task, wanted) for task, wanted in lane.in_flight.items() if not task.done()]
        for task, wanted in asks:
            task.cancel()
            lane.left(wanted, task)
            self._again.append(wanted)
        for key in (*lane.broken, *(wanted.key for _, wanted in asks)):
            self._deaths.setdefault(key, set()).add((lane, lane.restarts))
        tail = lane.replica.log_tail()
        problem = why + (f"; the end of its log:\n{tail}" if tail else "")
        if isinstance(lane.replica, RunningServer):
            lane.gone, lane.open_at = lane.gone or problem, max(lane.open_at, time.monotonic())
        elif lane.gone is None and lane.was_ready and lane.restarts < self._patience.max_restarts:
            lane.restarts += 1
            say(f"{lane.replica.name}: {why}; starting it again, {len(asks)} of its requests are queued once more")
            await asyncio.to_thread(lane.replica.stop)
            await asyncio.to_thread(lane.replica.start)
            lane.reset()
        else:
            lane.gone = problem
            await asyncio.to_thread(lane.replica.stop)
            say(f"{lane.replica.name}: given up: {why}")
        self._changed.set()
