"""Tiers B, C and `unsafe`: boxes forked by a warm interpreter, see `forkserver.py`. One server a setup and process.

Python source that would run as `python -c` runs in the fork itself; anything else is executed there.
"""

import atexit
import contextlib
import functools
import inspect
import json
import os
import secrets
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import UserError
from pipeline.sandbox import confine, forkserver
from pipeline.sandbox.cgroup import BoxCgroup
from pipeline.sandbox.limits import BoxLimits
from pipeline.sandbox.tiers import (
    ENVIRONMENT,
    PYTHON_OPTIONS,
    BoxSetup,
    Running,
    closing,
    libraries,
    sealed,
    unprivileged,
)

START_TIMEOUT_S = 30.0
BOOTSTRAP = """
import json, sys, types
config = json.loads(sys.argv[1])
for name in ("pipeline", "pipeline.sandbox", "pipeline.sandbox.confine"): sys.modules[name] = types.ModuleType(name)
exec(config.pop("confine"), sys.modules["pipeline.sandbox.confine"].__dict__)
exec(config.pop("forkserver"), globals())
for name in ("pipeline", "pipeline.sandbox", "pipeline.sandbox.confine"): del sys.modules[name]
main(config)
"""
"""Our modules are out of reach of the server's interpreter, so they come as text."""


@dataclass(slots=True)
class ForkServer:
    """Starts boxes; the server is started with the first one, and again should it have ended."""

    namespaces: bool
    landlock: bool
    lock: threading.Lock = field(default_factory=threading.Lock)
    control: socket.socket | None = None
    process: "subprocess.Popen[bytes] | None" = None
    owner: int = 0
    """The process that started it: a fork of us gets a server of its own."""

    @contextlib.contextmanager
    def __call__(
        self, setup: BoxSetup, argv: Sequence[str], stdin: bytes, limits: BoxLimits, group: BoxCgroup | None
    ) -> Iterator[Running]:
        """Start one box. It ends when its channel closes, so with us as well."""
        ours, theirs = socket.socketpair()
        stdout, stdout_write = os.pipe()
        stderr, stderr_write = os.pipe()
        folder = None
        if not self.namespaces:
            folder = f"{tempfile.gettempdir()}/warmstart-box-{secrets.token_hex(8)}"
        job = sealed(json.dumps(_job(setup, argv, limits, folder)).encode())
        source = sealed(stdin)
        doors = group.doors() if group else []
        inside = [job, source, stdout_write, stderr_write]
        with closing(stdout, stderr), ours:
            with closing(*inside, *doors), theirs:
                self._send(setup, [*inside, theirs.fileno(), *doors])
            go, kill = functools.partial(_say, ours, b"g"), functools.partial(_close, ours)
            yield Running(stdout, stderr, ours.fileno(), go, kill, bool(doors), folder)

    def _send(self, setup: BoxSetup, descriptors: list[int]) -> None:
        with self.lock:
            for last in (False, True):
                if self.control is None or self.owner != os.getpid():
                    self.control, self.owner = self._start(setup), os.getpid()
                try:
                    socket.send_fds(self.control, [b"b"], descriptors)
                    return
                except (BrokenPipeError, ConnectionResetError):
                    self.control = None
                    if last:
                        raise

    def _start(self, setup: BoxSetup) -> socket.socket:
        """Start the server and wait until it serves. Raises UserError with what it said."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = {
            "control": theirs.fileno(),
            "namespaces": self.namespaces,
            "landlock": self.landlock,
            "binds": [*setup.binds],
            "links": libraries()[1],
            "seccomp": setup.seccomp.hex(),
            "confine": inspect.getsource(confine),
            "forkserver": inspect.getsource(forkserver),
        }
        line = [setup.python, *PYTHON_OPTIONS, "-c", BOOTSTRAP, json.dumps(config)]
        start: dict[str, Any] = {**unprivileged(), "env": ENVIRONMENT}
        with theirs, tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[theirs.fileno()],
                **start,
            )
            theirs.close()
            ours.settimeout(START_TIMEOUT_S)
            with contextlib.suppress(OSError):
                if ours.recv(1):
                    ours.settimeout(None)
                    atexit.register(_reap, process, ours)
                    self.process = process
                    return ours
            process.kill()
            process.wait()
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines() or ["no answer"]
        ours.close()
        raise UserError(f"sandbox: the fork server did not start: {lines[-1]}")


def _job(setup: BoxSetup, argv: Sequence[str], limits: BoxLimits, folder: str | None) -> dict[str, Any]:
    """What the box needs to know, as JSON."""
    disk = limits.disk_mb << 20
    resources = {
        "RLIMIT_CPU": (limits.cpu_s, limits.cpu_s + 1),
        "RLIMIT_FSIZE": (disk, disk),
        "RLIMIT_NOFILE": (limits.open_files, limits.open_files),
        "RLIMIT_CORE": (0, 0),
    }
    if limits.address_space:
        resources["RLIMIT_AS"] = (limits.memory_mb << 20, limits.memory_mb << 20)
    python = setup.python_argv("")[:-1]
    is_python = list(argv[: len(python)]) == python
    return {
        "source": argv[len(python)] if is_python else None,
        "argv": list(argv[len(python) + 1 :] if is_python else argv),
        "folder": folder,
        "limits": {"processes": limits.processes, "files": limits.files, "disk": disk, "resources": resources},
    }


def _say(channel: socket.socket, word: bytes) -> None:
    with contextlib.suppress(OSError):
        channel.send(word)


def _close(channel: socket.socket) -> None:
    """The keeper takes the end of our side for the word to end the box."""
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_WR)


def _reap(process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
    control.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
