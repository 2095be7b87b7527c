"""From requests to samples: look each up in the ledger, ask servers for the missing ones, assemble in order."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.chat.parse import special_tokens
from pipeline.config import Machine
from pipeline.engine.assemble import sample_of
from pipeline.engine.prompts import PromptLengths
from pipeline.engine.requests import (
    Request,
    body_of,
    changed_fields,
    key_fields,
    make_requests,
    model_folder,
    shared_body,
)
from pipeline.engine.servers import max_in_flight, replicas_of, target_of
from pipeline.engine.settings import Budget, Teacher
from pipeline.engine.status import Status
from pipeline.ledger import TOO_LONG, Answer, Ledger, choose
from pipeline.progress import say
from pipeline.records import Sample, Task
from pipeline.work import FINGERPRINTS

if TYPE_CHECKING:
    from pipeline.engine.client import Ask
    from pipeline.engine.fleet import Fleet

_LOOKED_UP, _BLOCK = 20_000, 2_000  # requests looked up, and assembled, at a time: bounds what is in memory
_PASSES = 3  # a pass after the first asks for stored answers that turned out to be damaged
Requests = Callable[[], Iterable[Request]]
"""Makes the same requests, in the same order, each time it is called."""


@dataclass(slots=True)
class SamplingCounts:
    """What a sampling run did; the `server_` counters are vLLM's own, read from /metrics.

    `server_requests` and `server_generated_tokens` equal `requests_sent` and `received_tokens` where no server had to
    be started again.
    """

    requested: int = 0
    reused: int = 0
    requests_sent: int = 0
    received_tokens: int = 0
    output_tokens_per_s: float = 0.0
    lost: int = 0
    server_restarts: int = 0
    server_requests: int = 0
    server_prompt_tokens: int = 0
    server_generated_tokens: int = 0


@dataclass(slots=True)
class Sampler:
    """One teacher, its servers and the ledger: `with Sampler(...) as sampler: sampler.ask(...)`, as often as wanted.

    Servers are started for the first sample that the ledger lacks, and ended with the block.
    """

    teacher: Teacher
    given_model: Path | None
    """Model folder given with --in."""
    seed: int
    machine: Machine
    ledger: Ledger
    folder: Path
    """Takes the logs of servers."""
    budget: Budget = field(default_factory=Budget)
    counts: SamplingCounts = field(default_factory=SamplingCounts)
    budget_reached: bool = False
    lost: dict[bytes, str] = field(default_factory=dict)
    """Keys that no server would answer, and why."""
    damaged: int = 0
    """Stored answers that turned out to be damaged when they were read; ask again."""
    fields: dict[str, Any] = field(init=False)
    """The key fields, see `key_fields`."""
    model: Path | None = field(init=False)
    """The folder that is served; None for running servers."""
    _runner: asyncio.Runner | None = None
    _fleet: "Fleet | None" = None
    _waiting: set[bytes] = field(default_factory=set)
    _started: float = 0.0
    _status: Status | None = None

    def __post_init__(self) -> None:
        self.model = model_folder(self.teacher, self.given_model)
        self.fields = key_fields(self.teacher, self.model, FINGERPRINTS, self.seed)

    def __enter__(self) -> "Sampler":
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            try:
                if self._fleet is not None:
                    self._runner.run(self._end_fleet(self._fleet))
            finally:
                self._runner.close()
                self._runner = self._fleet = None

    def requests(self, tasks: Iterable[Task], indices: Iterable[int]) -> Iterator[Request]:
        """The teacher's requests for tasks."""
        return make_requests(tasks, self.fields, indices)

    def ask(self, requests: Requests, total: int, again: bool = False) -> None:
        """Ask for every request that the ledger cannot serve; each answer is on disk before it is counted.

        `again` asks anew for stored answers that turned out to be damaged; the requests are counted already. Raises
        UserError when no server is left. What a server refuses for good stands in `lost`.
        """
        if again:
            self.counts.reused -= self.damaged
        self.damaged = 0
        self.ledger.declare({"teacher": self.teacher.name, **self.fields})
        if self.budget_reached:
            return
        # A sample that was cut is met again by the second pass, with the larger limit.
        for number in range(len(self.teacher.limits)):
            status = self._status = Status(self.teacher.name, total, self._status)
            missing = self._missing(requests(), status)
            first = next((wanted for wanted in missing if wanted is not None), None)
            if first is not None:
                with status:
                    from pipeline.engine.loop import event_loop

                    self._runner = self._runner or event_loop()
                    self._runner.run(self._ask_missing(first, missing, status))
            elif number == 0 and total:
                say(f"ledger: all {total} samples of {self.teacher.name} are there")
            self._count(status, new=number == 0 and not again)

    def _count(self, status: Status, new: bool) -> None:
        counts = self.counts
        counts.requested += status.total if new else 0
        counts.reused += status.reused if new else 0
        counts.requests_sent += status.received
        counts.received_tokens += status.output_tokens
        if status.received:
            counts.output_tokens_per_s = round(status.output_tokens_per_s, 1)
        if self._fleet is not None:
            self.lost |= {wanted.key: why for wanted, why in self._fleet.lost}
        counts.lost = len(self.lost)

    def _missing(self, requests: Iterable[Request], status: Status) -> "Iterator[Ask | None]":
        """What is to be sent, each key once; None after each block, where others may have their turn."""
        from pipeline.engine.client import Ask

        lengths, shared = PromptLengths(self.teacher, self.model), shared_body(self.teacher)
        requests = iter(requests)
        while block := list(islice(requests, _LOOKED_UP)):
            out = frozenset(self._waiting)  # before the look-up: what arrives meanwhile is found by neither otherwise
            needed = self._needed([request.key for request in block])
            status.reused += sum(request.key not in needed for request in block)
            settled = []
            for request in block:
                key, limit = request.key, needed.get(request.key)
                if limit is None:
                    continue
                if key in out or key in self._waiting or key in self.lost:
                    continue
                if lengths.too_long(request, limit):
                    settled.append((key, Answer("", TOO_LONG, None, 0, 0, limit, request.seed)))
                else:
                    self._waiting.add(key)
                    yield Ask(key, body_of(request, shared, limit), len(request.task.messages) // 4 + limit)
            if settled:
                self.ledger.put(settled)
                status.settled += len(settled)
            yield None

    def _needed(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """The token limit to ask with, for those of the keys that have no answer to use."""
        limits = self.teacher.limits
        settled = self.ledger.settled(keys, limits[0])
        needed = {key: limits[0] for key in keys if key not in settled}
        if len(limits) > 1:
            # One that was cut is settled under the first limit, but to be asked for under the second.
            for key, stored in self.ledger.find(list(settled)).items():
                answer, limit = choose(stored, limits)
                if answer is None:
                    needed[key] = limit
        return needed

    async def _ask_missing(self, first: "Ask", missing: "Iterator[Ask | None]", status: Status) -> None:
        if self._fleet is None:
            self._fleet = await self._start_fleet()
        fleet = self._fleet
        status.lanes = fleet.lanes
        fleet.taken += status.reused
        pump = asyncio.create_task(self._store_answers(fleet, _in_turns(first, missing), status))
        try:
            await asyncio.shield(pump)
        except asyncio.CancelledError:
            fleet.drain()
            say(f"stopping: waiting up to {self.machine.serving.drain_s:.0f} s for answers that are on their way")
            await pump
            raise

    async def _store_answers(self, fleet: "Fleet", asks: "AsyncIterator[Ask]", status: Status) -> None:
        async with aclosing(fleet.answers(asks)) as arriving:
            async for pairs in arriving:
                # One sync for all that arrived together: a sync per answer would cap the rate of a fast server.
                await asyncio.to_thread(self.ledger.put, pairs)
                self._waiting.difference_update(key for key, _ in pairs)
                status.add([answer for _, answer in pairs])
                if self._is_spent(status) and not self.budget_reached:
                    self.budget_reached = True
                    say(f"budget: reached after {status.received} samples; ending with what there is")
                    fleet.drain()

    def _is_spent(self, status: Status) -> bool:
        tokens = self.counts.received_tokens + status.output_tokens
        serving = self.machine.serving
        hours = (time.monotonic() - self._started) / 3600 * serving.servers * serving.tensor_parallel
        over_tokens = self.budget.output_tokens is not None and tokens >= self.budget.output_tokens
        return over_tokens or (self.budget.gpu_hours is not None and hours >= self.budget.gpu_hours)

    async def _start_fleet(self) -> "Fleet":
        from pipeline.engine.fleet import Fleet

        self._started = self._started or time.monotonic()
        replicas = replicas_of(self.teacher, self.model, self.machine, self.folder)
        target = target_of(self.teacher, self.machine)
        return await Fleet(
            replicas, target, max_in_flight(self.teacher, self.machine), self.machine.serving
        ).__aenter__()

    async def _end_fleet(self, fleet: "Fleet") -> None:
        totals = await fleet.read_totals()
        self.counts.server_requests = totals.get("vllm:request_success_total", 0)
        self.counts.server_prompt_tokens = totals.get("vllm:prompt_tokens_total", 0)
        self.counts.server_generated_tokens = totals.get("vllm:generation_tokens_total", 0)
        self.counts.server_restarts = sum(lane.restarts for lane in fleet.lanes)
        await fleet.__aexit__()

    def collect(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """The samples of all requests that are not lost, in their order, parsed from the ledger's raw answers.

        A stored answer that turns out to be damaged is left out and counted in `damaged`, until it is asked again.
        """
        markers = special_tokens(self.model) if self.model is not None else ()
        requests = iter(requests)
        while block := list(islice(requests, _BLOCK)):
            found = self.ledger.find([request.key for request in block])
            chosen = [choose(found.get(request.key, ()), self.teacher.limits)[0] for request in block]
            places = [(request.key, place) for request, place in zip(block, chosen, strict=True) if place is not None]
            wanted = (request for request, place in zip(block, chosen, strict=True) if place is not None)
            for request, answer in zip(wanted, self.ledger.read(places), strict=True):
                if answer is None:
                    self.damaged += 1
                else:
                    yield sample_of(request, answer, self.teacher, markers)

    def ask_and_collect(self, tasks: Sequence[Task], indices: Sequence[int]) -> list[Sample]:
        """Samples of a few tasks that fit in memory; damaged ones are asked for anew."""
        for number in range(_PASSES):
            self.ask(lambda: self.requests(tasks, indices), len(tasks) * len(indices), again=number > 0)
            samples = list(self.collect(self.requests(tasks, indices)))
            if not self.damaged:
                break
        return samples

    def note_verdicts(self, judged: int, right: int) -> None:
        """Take up what verifiers said of samples, for those who watch the run."""
        if self._status is not None:
            self._status.judged += judged
            self._status.right += right
            self._status.write()

    def explain_change(self, tasks: Callable[[], Iterable[Task]], indices: Iterable[int]) -> None:
        """Say which key field differs from the teacher's last run, and how many samples that run would have spared."""
        known = [fields for fields in self.ledger.known_fields() if fields.get("teacher") == self.teacher.name]
        now = {"teacher": self.teacher.name, **self.fields}
        if not known or now in known:
            return
        changes = changed_fields(known[-1], now)
        older = {name: value for name, value in known[-1].items() if name != "teacher"}
        requests = make_requests(tasks(), older, list(indices))
        spared = 0
        while block := list(islice(requests, _BLOCK)):
            found = self.ledger.find([request.key for request in block])
            spared += sum(choose(found.get(r.key, ()), self.teacher.limits)[0] is not None for r in block)
        if spared:
            say(
                f"ledger: {spared} stored samples of {self.teacher.name} do not fit any more, since "
                f"{'; '.join(changes)}. They stay stored; as many are asked for anew"
            )


async def _in_turns(first: "Ask", missing: "Iterator[Ask | None]") -> "AsyncIterator[Ask]":
    yield first
    for wanted in missing:
        if wanted is None:
            await asyncio.sleep(0)  # answers are stored while a long stretch is looked up
        else:
            yield wanted
