"""Witnesses: one program tries every way out of a box, and the same program outside shows that it can tell.

A probe that cannot succeed proves nothing, so what fails outside as well is no evidence, and where a way is open on
every machine its failure outside makes the whole probe void.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.sandbox.box import run_in
from pipeline.sandbox.limits import BoxLimits
from pipeline.sandbox.tiers import PYTHON_OPTIONS, BoxSetup, unprivileged

CANARY = "WARMSTART_CANARY"
LIMITS = BoxLimits(wall_s=10)
FORKS = LIMITS.processes + 8
NEEDED_OUTSIDE = {
    *("the network", "an abstract unix socket", "a host file", "writing outside", "a secret of the environment"),
    *("a process outside", "an orphan left behind", "more processes than allowed"),
}
"""Open on every machine. Two more ways are tried: a small machine has no GiB to give, a hardened one no namespaces."""

PROGRAM = """
import ctypes, json, mmap, os, signal, socket, sys, time
a = json.loads(sys.argv[1])
def works(action):
    try: return bool(action())
    except (OSError, MemoryError): return False
def writes(path):
    with open(path, "w") as file: return file.write("x")
def reads(path):
    with open(path, "rb") as file: return file.read()
def abstract():
    with socket.socket(socket.AF_UNIX) as one: return not one.connect(a["abstract"])
def orphan():
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            os.dup2(os.open("/dev/null", os.O_RDWR), 1)
            time.sleep(60)
        os._exit(0)
    return int(os.read(read, 20))
def forks():
    hold, let_go = os.pipe()
    count = 0
    try:
        for _ in range(a["forks"]):
            if os.fork() == 0:
                os.close(let_go)
                os.read(hold, 1)
                os._exit(0)
            count += 1
        time.sleep(a["linger_s"])
    except OSError: pass
    return count
secret = a["canary"].encode()
environments = [f"/proc/{pid}/environ" for pid in ("self", 1, os.getppid(), a["caller"])]
found = {
    "the network": works(lambda: socket.create_connection(("127.0.0.1", a["port"]), 2)),
    "an abstract unix socket": works(abstract),
    "a host file": works(lambda: reads(a["file"])),
    "writing outside": any(works(lambda: writes(path)) for path in a["outside"]),
    "a secret of the environment": secret in str(dict(os.environ)).encode()
        or any(works(lambda: secret in reads(path)) for path in environments),
    "1 GiB of memory": works(lambda: mmap.mmap(-1, 1 << 30)),
}
try: os.kill(a["target"], signal.SIGTERM)
except OSError: pass
try: left = orphan()
except OSError: left = 0
print(json.dumps({"found": found, "orphan": left}), flush=True)
print(json.dumps({"forks": forks()}), flush=True)
print(json.dumps({"userns": ctypes.CDLL(None).unshare(0x10000000) == 0}), flush=True)
"""


@dataclass(slots=True)
class Witness:
    """The things of this machine that a program should not reach, set up to be reached for."""

    port: int
    abstract: str
    folder: Path
    canary: str = field(default_factory=lambda: secrets.token_hex(16))

    def arguments(self, target: int, linger_s: float) -> str:
        """What the program is given."""
        outside = [str(self.folder / f"written-{target}"), "/written", "/dev/written", "/usr/lib/written"]
        places = {"port": self.port, "abstract": self.abstract, "file": str(self.folder / "file"), "outside": outside}
        numbers = {"target": target, "caller": os.getpid(), "forks": FORKS, "linger_s": linger_s}
        return json.dumps({**places, **numbers, "canary": self.canary})


@contextlib.contextmanager
def witness() -> Iterator[Witness]:
    """Set up a listener, an abstract socket, a file, a folder that anyone may write to and a secret."""
    with (
        tempfile.TemporaryDirectory() as name,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "file").write_text("x")
        (folder / "file").chmod(0o644)
        abstract = f"\0warmstart-{secrets.token_hex(8)}"
        unix.bind(abstract)
        unix.listen()
        ready = Witness(listener.getsockname()[1], abstract, folder)
        os.environ[CANARY] = ready.canary
        try:
            yield ready
        finally:
            os.environ.pop(CANARY, None)


@contextlib.contextmanager
def _target() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of the user that programs run as, to be signalled."""
    with subprocess.Popen(["sleep", "60"], **unprivileged()) as process:
        try:
            yield process
        finally:
            process.kill()


def _reached(lines: list[dict[str, Any]], hit: bool, orphan_lives: bool) -> set[str]:
    """Names of what a program reached, from what it printed and what was seen from outside."""
    said: dict[str, Any] = {key: value for line in lines for key, value in line.items()}
    reached = {name for name, open_ in said.get("found", {}).items() if open_}
    seen = {"a process outside": hit, "an orphan left behind": orphan_lives}
    seen |= {
        "more processes than allowed": said.get("forks", 0) >= FORKS,
        "a user namespace": said.get("userns", False),
    }
    return reached | {name for name, open_ in seen.items() if open_}


def _lines(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]


@contextlib.contextmanager
def outside(python: str, ready: Witness) -> Iterator[Callable[[], set[str]]]:
    """Start the program outside of any box, as the user that boxes run as. The function yielded waits for its end and
    returns what it reached."""
    start = unprivileged()
    start["env"] = {**start["env"], CANARY: ready.canary}
    with _target() as target:
        line = [python, *PYTHON_OPTIONS, "-c", PROGRAM, ready.arguments(target.pid, 0)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **start) as process:
            yield lambda: _reached_outside(process, target)


def _reached_outside(process: "subprocess.Popen[bytes]", target: "subprocess.Popen[bytes]") -> set[str]:
    lines = _lines(process.communicate()[0])
    orphan, lives = next((line["orphan"] for line in lines if "orphan" in line), 0), False
    if orphan:
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)
            lives = True
    return _reached(lines, _ended(target), lives)


def _ended(process: "subprocess.Popen[bytes]") -> bool:
    try:
        return process.wait(0.01) == -signal.SIGTERM
    except subprocess.TimeoutExpired:
        return False


def reached_inside(setup: BoxSetup, ready: Witness) -> tuple[set[str], str]:
    """What the program reached from a box, and why it did not run, if it did not."""
    with _target() as target:
        argv = [*setup.python_argv(PROGRAM), ready.arguments(target.pid, 2.0)]
        result = run_in(setup, argv, b"", LIMITS)
        lines = _lines(result.stdout)
        if not lines or result.status not in ("exited", "process_limit", "wall_limit"):
            return set(), f"{result.status}, {result.stderr.decode(errors='replace').strip()[-300:] or 'no message'}"
        # An orphan keeps stderr open, so that a box which it outlives is told by the wall limit alone.
        return _reached(lines, _ended(target), result.status == "wall_limit"), ""
