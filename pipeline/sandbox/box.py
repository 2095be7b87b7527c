"""Run one program in a fresh box and tell how it ended.

    run_boxed(python_argv("print(1 + 1)"), b"", BoxLimits()) -> BoxResult(status="exited", code=0, stdout=b"2\\n", ...)

Nothing outlives the call: the box ends with its first process, and that one with us.
"""

import contextlib
import json
import math
import os
import selectors
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.sandbox.cgroup import BoxCgroup, box_cgroup
from pipeline.sandbox.limits import BoxLimits, Passed
from pipeline.sandbox.tiers import BoxSetup, Running
from pipeline.sandbox.usage import over_limit

BoxStatus = Literal["exited", "failed"] | Passed
DRAIN_S = 10.0
SAMPLE_S = 0.1
CHANNEL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class BoxResult:
    """How a boxed program ended."""

    status: BoxStatus
    """`exited` by itself (any code), ended at a limit, or `failed`: the box could not be built or was ended by
    something else. With a control group `memory_limit` is also told of a program that outlived a child which the
    kernel killed for it."""
    code: int
    """Exit code; 128 + n when ended by signal n."""
    stdout: bytes
    stderr: bytes
    cpu_s: float
    """CPU seconds of all its processes: exact with a control group or the fork server, else when last looked at, ten
    times a second, 0 for a short program."""
    tier: str = "A"
    """How strong the box was: A, B, C or `unsafe`."""


@dataclass(slots=True)
class _Watch:
    """What is known so far of a running box."""

    running: Running
    limits: BoxLimits
    group: BoxCgroup | None
    caps: dict[str, int]
    data: dict[str, bytearray] = field(default_factory=dict)
    first: int | None = None
    """The first process of the box, as seen from here."""
    cpu_s: float = 0.0
    ended_by: Passed | None = None

    def add(self, name: str, piece: bytes) -> bool:
        """Keep a piece up to the stream's cap. Returns False when the cap is passed."""
        kept = self.data.setdefault(name, bytearray())
        kept += piece[: self.caps[name] - len(kept)]
        return len(kept) < self.caps[name]

    def of(self, name: str) -> bytes:
        return bytes(self.data.get(name, b""))

    def told(self) -> dict[str, Any]:
        """What the box's first process said: `child-pid`, `exit-code`, `cpu-s`, `error`."""
        events: dict[str, Any] = {}
        for line in self.of("channel").replace(b"}", b"}\n").splitlines():
            with contextlib.suppress(ValueError):
                events.update(json.loads(line))
        return events

    def begin(self, selector: selectors.BaseSelector) -> None:
        """Once the first process is known: put it in its group, let it begin, and watch its end.

        The kernel ends the first process of a namespace only after every other one.
        """
        first = self.told().get("child-pid")
        if self.first is not None or first is None:
            return
        self.first = int(first)
        with contextlib.suppress(ProcessLookupError):
            if self.group and not self.running.in_group:
                self.group.add(self.first)
            selector.register(os.pidfd_open(self.first), selectors.EVENT_READ, "first")
        self.running.go()

    def sample(self) -> Passed | None:
        """Look at what the box uses. Returns the limit that it has passed."""
        if self.first is None:
            return None
        limit, cpu_s = over_limit(self.first, self.group, self.running.folder, self.limits)
        self.cpu_s = max(self.cpu_s, cpu_s)
        return limit


def run_in(setup: BoxSetup, argv: Sequence[str], stdin: bytes, limits: BoxLimits) -> BoxResult:
    """Run a program in a box of its own, built as `setup` says. A machine out of processes or memory gives `failed`."""
    cap = limits.output_kb << 10
    out_of_memory = False
    try:
        with box_cgroup(setup.cgroups, limits) as group, setup.start(argv, stdin, limits, group) as running:
            watch = _Watch(running, limits, group, {"stdout": cap, "stderr": cap, "channel": CHANNEL_BYTES})
            _follow(watch)
            if group:
                watch.cpu_s, out_of_memory = group.cpu_s(), group.out_of_memory()
    except OSError as error:
        return BoxResult("failed", 128 + signal.SIGKILL, b"", str(error).encode(), 0.0, setup.tier.name)
    return _result(watch, out_of_memory, setup.tier.name)


def _result(watch: _Watch, out_of_memory: bool, tier: str) -> BoxResult:
    told = watch.told()
    cpu_s = told.get("cpu-s", watch.cpu_s)
    code = int(told.get("exit-code", 128 + signal.SIGKILL))
    status: BoxStatus = watch.ended_by or "exited"
    if watch.ended_by is None:
        if out_of_memory:
            status = "memory_limit"
        elif "exit-code" not in told or "error" in told:
            status = "failed"
        elif code == 128 + signal.SIGXCPU or (code == 128 + signal.SIGKILL and cpu_s >= watch.limits.cpu_s):
            status = "cpu_limit"
    stderr = watch.of("stderr") + str(told.get("error", "")).encode()
    return BoxResult(status, code, watch.of("stdout"), stderr, cpu_s, tier)


def _follow(watch: _Watch) -> None:
    """Read until every pipe is closed and the last process of the box is gone, or until a limit."""
    running = watch.running
    deadline, next_sample = time.monotonic() + watch.limits.wall_s, time.monotonic() + SAMPLE_S
    with selectors.DefaultSelector() as selector:
        for descriptor, name in ((running.stdout, "stdout"), (running.stderr, "stderr"), (running.channel, "channel")):
            selector.register(descriptor, selectors.EVENT_READ, name)
        while selector.get_map():
            events = selector.select(max(0.0, min(deadline, next_sample) - time.monotonic()))
            now = time.monotonic()
            limit: Passed | None = None
            for key, _ in events:
                piece = b"" if key.data == "first" else _read(key.fd)
                if piece and not watch.add(key.data, piece):
                    limit = "output_limit"
                if key.data == "channel":
                    watch.begin(selector)
                if not piece:
                    selector.unregister(key.fileobj)
                    if key.data == "first":
                        os.close(key.fd)
            if now >= deadline:
                limit = "wall_limit"
            if watch.ended_by is None and (limit or now >= next_sample):
                limit, next_sample = watch.sample() or limit, time.monotonic() + SAMPLE_S
            if limit and watch.ended_by is None:
                watch.ended_by, deadline, next_sample = limit, now + DRAIN_S, math.inf
                running.kill()
            elif limit == "wall_limit":
                break


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except ConnectionResetError:  # the fork server ended
        return b""
