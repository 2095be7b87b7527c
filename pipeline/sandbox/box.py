"""Run one program in a fresh box and tell how it ended.

    run_boxed(python_argv("print(1 + 1)"), b"", BoxLimits()) -> BoxResult(status="exited", code=0, stdout=b"2\\n", ...)

Nothing outlives the call: the box is a process namespace that ends with its first process, and that one ends with
bubblewrap, which ends with us.
"""

import contextlib
import fcntl
import math
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pipeline.sandbox.limits import BoxLimits
from pipeline.sandbox.setup import box_setup, unprivileged

BoxStatus = Literal["exited", "cpu_limit", "wall_limit", "output_limit", "failed"]
DRAIN_S = 10.0
SAMPLE_S = 0.5
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class BoxResult:
    """How a boxed program ended."""

    status: BoxStatus
    """`exited` by itself (any code), ended at a limit, or `failed`: the box could not be built."""
    code: int
    """Exit code; 128 + n when ended by signal n."""
    stdout: bytes
    stderr: bytes
    cpu_s: float
    """CPU seconds of all its processes when last looked at, twice a second: 0 for a short program."""


@dataclass(slots=True)
class _Streams:
    """What has been read so far from the three pipes of a box."""

    caps: dict[str, int]
    data: dict[str, bytearray] = field(default_factory=dict)

    def add(self, name: str, piece: bytes) -> bool:
        """Keep a piece up to the stream's cap. Returns False when the cap is passed."""
        kept = self.data.setdefault(name, bytearray())
        kept += piece[: self.caps[name] - len(kept)]
        return len(kept) < self.caps[name]

    def of(self, name: str) -> bytes:
        return bytes(self.data.get(name, b""))


def run_boxed(argv: Sequence[str], stdin: bytes, limits: BoxLimits) -> BoxResult:
    """Run a program in a box of its own. Raises UserError where this machine cannot build one."""
    setup = box_setup()
    status_read, status_write = os.pipe()
    source = _sealed(stdin)
    try:
        process = subprocess.Popen(
            setup.command(argv, limits, status_write),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(status_write,),
            **unprivileged(),
        )
    finally:
        os.close(status_write)
        os.close(source)
    cap = limits.output_kb << 10
    streams = _Streams({"stdout": cap, "stderr": cap, "status": 4096})
    try:
        ended_by, cpu_s = _watch(process, status_read, streams, limits.wall_s)
    except BaseException:
        os.kill(process.pid, signal.SIGKILL)
        raise
    finally:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        os.close(status_read)
        process.wait()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    status: BoxStatus = ended_by or "exited"
    if ended_by is None and b'"exit-code"' not in streams.of("status"):
        status = "failed"  # bubblewrap reports an exit code only for a program that it started
    elif code == 128 + signal.SIGXCPU or (code == 128 + signal.SIGKILL and cpu_s >= limits.cpu_s):
        status = "cpu_limit"
    return BoxResult(status, code, streams.of("stdout"), streams.of("stderr"), cpu_s)


def _sealed(data: bytes) -> int:
    """A descriptor to read `data` from. Sealed: the program cannot use it as memory outside its limits."""
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(
        descriptor,
        fcntl.F_ADD_SEALS,
        fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL,
    )
    return descriptor


def _watch(
    process: "subprocess.Popen[bytes]", status_fd: int, streams: _Streams, wall_s: float
) -> tuple[BoxStatus | None, float]:
    """Read until every pipe is closed and the last process of the box is gone, or until a limit.

    Returns the limit that ended it and the CPU seconds last seen: bubblewrap does not wait for its box, so that the
    kernel adds them to nobody.
    """
    deadline, next_sample, cpu_s = time.monotonic() + wall_s, time.monotonic() + SAMPLE_S, 0.0
    ended_by: BoxStatus | None = None
    with selectors.DefaultSelector() as selector:
        for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr"), (status_fd, "status")):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, name)
        while selector.get_map():
            events = selector.select(max(0.0, min(deadline, next_sample) - time.monotonic()))
            now = time.monotonic()
            limit: BoxStatus | None = None
            for key, _ in events:
                piece = b"" if key.data == "init" else os.read(key.fd, 1 << 16)
                if key.data == "status" and not streams.of("status"):
                    _register_init(selector, piece)
                if not piece:
                    selector.unregister(key.fileobj)
                    if key.data == "init":
                        os.close(key.fd)
                elif not streams.add(key.data, piece):
                    limit = "output_limit"
            if now >= deadline:
                limit = "wall_limit"
            if ended_by is None and (limit or now >= next_sample):
                cpu_s, next_sample = max(cpu_s, _tree_cpu_s(process.pid)), now + SAMPLE_S
            if limit and ended_by is None:
                ended_by, deadline, next_sample = limit, now + DRAIN_S, math.inf
                os.kill(process.pid, signal.SIGKILL)
            elif limit == "wall_limit":
                break
    return ended_by, cpu_s


def _register_init(selector: selectors.BaseSelector, status: bytes) -> None:
    """Watch the end of the box's first process, named in bubblewrap's first status line.

    The kernel ends it only after every other process of the box. Bubblewrap itself leaves a little earlier.
    """
    found = re.search(rb'"child-pid"\s*:\s*(\d+)', status)
    if found:
        with contextlib.suppress(ProcessLookupError):
            selector.register(os.pidfd_open(int(found[1])), selectors.EVENT_READ, "init")


def _tree_cpu_s(root: int) -> float:
    """CPU seconds of a process, its living descendants and those they have waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry))
        ticks[int(entry)] = sum(int(value) for value in fields[11:15])
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting.extend(children.get(pid, []))
    return total / TICKS
