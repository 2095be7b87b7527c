"""Nothing that a stage starts outlives it, not even when the stage is killed with SIGKILL.

The stage starts one guard process in a session of its own and holds a pipe to it. Every program started through
`Guard.popen` gets its own session, whose id is sent down the pipe; every process also inherits WARMSTART_RUN, a
token unique to the run. When the pipe closes, the guard ends those sessions and every process with the token:
SIGTERM, a grace period, SIGKILL. The same list lies in a file, so the next start can reap what is left if the guard
was killed as well. A vLLM engine process survives its SIGKILLed API server otherwise (still there after 20 s).

Run as a script, `guard.py TOKEN RECORD`; needs only the standard library and Linux's /proc.
"""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

TOKEN_NAME = "WARMSTART_RUN"
GRACE_S = 8.0
DEAF_GRACE_S = 0.5
"""For what ignores SIGTERM, as multiprocessing's resource tracker does: it ends with its parent or not at all."""


def _session_and_start(pid: int) -> tuple[int, int] | None:
    """(session id, start time in clock ticks since boot) of a live process, None for gone ones and zombies."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] == "Z" else (int(fields[3]), int(fields[19]))


def _has_token(pid: int, token: str) -> bool:
    try:
        return f"{TOKEN_NAME}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def is_deaf(pid: int) -> bool:
    """Whether a process ignores SIGTERM, or is gone."""
    try:
        ignored = Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split(maxsplit=1)[0]
    except (OSError, IndexError):
        return True
    return bool(int(ignored, 16) & 1 << signal.SIGTERM - 1)


def find_members(token: str, sessions: Mapping[int, int]) -> list[int]:
    """Live processes of a run: in one of its sessions ({session id: start of its leader}) or with its token.

    A session id is reused only after every member is gone; if its leader lives, its start time must match.
    """
    members = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        pid = int(entry)
        found = _session_and_start(pid)
        if found is None:
            continue
        leader = _session_and_start(found[0])
        ours = found[0] in sessions and (leader is None or leader[1] == sessions[found[0]])
        if ours or _has_token(pid, token):
            members.append(pid)
    return members


def end_members(token: str, sessions: Mapping[int, int], grace_s: float = GRACE_S) -> int:
    """SIGTERM, wait, SIGKILL until no member is left. Returns how many were found."""
    found = find_members(token, sessions)
    _signal_all(found, signal.SIGTERM)
    started = time.monotonic()
    while left := find_members(token, sessions):
        if time.monotonic() - started > (min(DEAF_GRACE_S, grace_s) if all(map(is_deaf, left)) else grace_s):
            break
        time.sleep(0.05)
    for _ in range(40):
        if not left:
            break
        _signal_all(left, signal.SIGKILL)
        time.sleep(0.05)
        left = find_members(token, sessions)
    return len(found)


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap_leftovers(record: Path) -> int:
    """End what an earlier, killed run left behind, by its record file. Returns how many processes were found."""
    try:
        value = json.loads(record.read_text())
    except (OSError, ValueError):
        return 0
    found = end_members(value["token"], {int(k): v for k, v in value["sessions"].items()}, grace_s=2.0)
    record.unlink(missing_ok=True)
    return found


class GuardedProcess:
    """A program in its own session, ended with everything it started."""

    def __init__(self, process: "subprocess.Popen[bytes]", guard: "Guard") -> None:
        self.process, self._guard = process, guard

    def stop(self, grace_s: float = GRACE_S) -> None:
        """SIGTERM the whole session, wait, SIGKILL what is left."""
        session = {self.process.pid: self._guard.sessions.get(self.process.pid, -1)}
        deadline = time.monotonic() + grace_s
        _signal_all(find_members("-", session), signal.SIGTERM)
        while find_members("-", session) and time.monotonic() < deadline:
            self.process.poll()
            time.sleep(0.05)
        _signal_all(find_members("-", session), signal.SIGKILL)
        self.process.wait()
        self._guard.forget(self.process.pid)


class Guard:
    """Start programs that end with this process. One per stage run; a context manager."""

    def __init__(self, record: Path) -> None:
        self.token = uuid.uuid4().hex
        self.sessions: dict[int, int] = {}
        self._record = record

    def __enter__(self) -> "Guard":
        global _current
        self._record.parent.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self.token, str(self._record.resolve())],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            env={key: value for key, value in os.environ.items() if key != TOKEN_NAME},
        )
        # A worker forked from this process would hold the pipe open after our death.
        os.set_inheritable(self._pipe.fileno(), False)
        os.register_at_fork(after_in_child=self._drop_pipe)
        os.environ[TOKEN_NAME] = self.token
        _current = self
        return self

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _drop_pipe(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._pipe.fileno())

    def popen(
        self, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path | None = None
    ) -> GuardedProcess:
        """Start a program in its own session with stdout and stderr appended to `log`."""
        with log.open("ab") as file:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**env, TOKEN_NAME: self.token},
                cwd=cwd,
            )
        found = _session_and_start(process.pid)
        if found is not None:
            self.sessions[process.pid] = found[1]
            self._send(f"+{process.pid} {found[1]}\n")
        return GuardedProcess(process, self)

    def forget(self, session: int) -> None:
        """A session has ended: its id may be given to strangers from now on."""
        if self.sessions.pop(session, None) is not None:
            self._send(f"-{session}\n")

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._pipe.write(line.encode())
            self._pipe.flush()

    def __exit__(self, *_: object) -> None:
        global _current
        _current = None
        os.environ.pop(TOKEN_NAME, None)
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait()


_current: Guard | None = None


def current_guard() -> Guard:
    """The guard of the running stage; outside a stage (a test, a notebook) one is started for this process."""
    if _current is None:
        guard = Guard(Path(f".work/guard-{os.getpid()}.json"))
        guard.__enter__()
        atexit.register(guard.__exit__)
    assert _current is not None
    return _current


def _watch(token: str, record: Path) -> None:
    """Read session ids until the pipe closes, then end everything."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the pipe decides
    sessions: dict[int, int] = {}

    def write() -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the guard; it knows the sessions by itself
            record.write_text(json.dumps({"token": token, "sessions": sessions}))

    write()
    for line in sys.stdin:
        sign, rest = line[0], line[1:].split()
        if sign == "+":
            sessions[int(rest[0])] = int(rest[1])
        else:
            sessions.pop(int(rest[0]), None)
        write()
    end_members(token, sessions)
    record.unlink(missing_ok=True)


if __name__ == "__main__":
    _watch(sys.argv[1], Path(sys.argv[2]))
