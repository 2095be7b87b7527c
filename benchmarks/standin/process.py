"""The stand-in as a process of its own, for benches: its work must not slow the client that is measured."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class RunningStandIn:
    """A served stand-in."""

    address: str
    """http://HOST:PORT"""
    pid: int

    @property
    def url(self) -> str:
        """Base address of the API."""
        return f"{self.address}/v1"

    def counts(self) -> dict[str, Any]:
        """Its record so far."""
        return self._call("/standin", None)

    def reset(self) -> None:
        """Forget the record; the next request is number 0."""
        self._call("/standin/reset", b"")

    def kill_core(self) -> None:
        """Requests hang from now on."""
        self._call("/standin/kill", b"")

    def revive(self) -> None:
        """Requests are answered again."""
        self._call("/standin/revive", b"")

    def _call(self, path: str, data: bytes | None) -> dict[str, Any]:
        with urllib.request.urlopen(self.address + path, data, timeout=30) as reply:
            value: dict[str, Any] = json.load(reply)
            return value


@contextlib.contextmanager
def standin_process(*flags: str) -> Iterator[RunningStandIn]:
    """Start `python -m benchmarks.standin` on a free port with these flags; it ends with the caller."""
    command = [sys.executable, "-m", "benchmarks.standin", "--port", "0", "--until-stdin-closes", *flags]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address.startswith("http"):
                raise RuntimeError(f"the stand-in did not start: {' '.join(command)}")
            yield RunningStandIn(address, process.pid)
        finally:
            process.stdin.close()
