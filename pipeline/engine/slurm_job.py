"""The program of one Slurm job: starts a model server, registers it once it answers, and ends with it.

Run as `slurm_job.py FOLDER` in a job of an array, FOLDER being on a disk that the stage sees as well. It reads
spec.json (the server's command and environment, `linger_s`, `ready_timeout_s`), watches `heartbeat`, whose text
changes while a stage wants the server, and writes server-INDEX.json, say

    {"url": "http://node7:41213/v1", "host": "node7", "job": "1234_0", "index": 0, "pid": 812, "started": 1.7e9}

Needs only the standard library and Linux's /proc.
"""

import contextlib
import http.client
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

TICK_S = 0.5
GRACE_S = 20.0
"""Below Slurm's KillWait (30 s), after which a cancelled job is killed together with this program."""
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")

# No proxy: what answers must be the server itself.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Ended(Exception):
    """Why the job ends, and whether that is a failure."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


class Watch:
    """Raises `Ended` once the job shall end: cancelled, no heartbeat, or the server gone."""

    def __init__(self, heartbeat: Path, linger_s: float) -> None:
        self._heartbeat, self._linger_s = heartbeat, linger_s
        self._cancelled = False
        self._text = self._read()
        self._changed = time.monotonic()
        signal.signal(signal.SIGTERM, self._cancel)

    def _cancel(self, *_: object) -> None:
        self._cancelled = True

    def _read(self) -> str | None:
        # The text and not the file's time: network file systems cache times for a minute, clocks of nodes differ.
        try:
            return self._heartbeat.read_text()
        except OSError:
            return None

    def tick(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait a moment, then look."""
        time.sleep(TICK_S)
        if self._cancelled:
            raise Ended("cancelled", 0)
        if (code := process.poll()) is not None:
            raise Ended(f"the server ended with exit code {code}", 1)
        text = self._read()
        if text is not None and text != self._text:
            self._text, self._changed = text, time.monotonic()
        if time.monotonic() - self._changed > self._linger_s:
            raise Ended(f"no stage has asked for this server for {self._linger_s:g} s", 0)


def find_host() -> str:
    """The address of this node as Slurm knows it, else its name."""
    node = os.environ.get("SLURMD_NODENAME", "")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = subprocess.run(["scontrol", "show", "node", node], capture_output=True, text=True, timeout=60)
        found = re.search(r"\bNodeAddr=(\S+)", asked.stdout)
        if found:
            return found[1]
    return socket.gethostname()


def address_to_bind(host: str) -> str:
    """The host if it is an IPv4 address of this node, else every interface.

    A name will not do: Debian resolves a machine's own name to 127.0.1.1, where no other node finds it.
    """
    with contextlib.suppress(ValueError, OSError), socket.socket() as probe:
        ipaddress.IPv4Address(host)
        probe.bind((host, 0))
        return host
    return "0.0.0.0"


def find_free_port(address: str) -> int:
    """A port of this node that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """Whether a server is there and lists its models."""
    try:
        with _OPENER.open(f"{url}/models", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def server_environment(named: dict[str, str]) -> dict[str, str]:
    """What Slurm gives and what the stage names; which devices are the job's is for Slurm to say."""
    return {**os.environ, **named, **{name: os.environ[name] for name in _DEVICES if name in os.environ}}


def members_of(session: int) -> list[int]:
    """Live processes of a session."""
    members = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
                if fields[0] != "Z" and int(fields[3]) == session:
                    members.append(int(entry))
    return members


def end_session(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM the server and all that it started, wait, SIGKILL what is left.

    By session: vLLM's engine process outlives an API server that was killed.
    """
    deadline = time.monotonic() + GRACE_S
    number = signal.SIGTERM
    signalled: set[int] = set()
    while left := members_of(process.pid):
        if number == signal.SIGTERM and time.monotonic() > deadline:
            number, signalled = signal.SIGKILL, set()
        for pid in set(left) - signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        signalled.update(left)
        process.poll()
        time.sleep(0.05)
    process.wait()


def serve(spec: dict[str, Any], folder: Path, job: str, index: int) -> int:
    """Run the server until something ends it. Returns the job's exit code."""
    watch = Watch(folder / "heartbeat", spec["linger_s"])
    host = find_host()
    address = address_to_bind(host)
    port = find_free_port(address)
    command = [{"{host}": address, "{port}": str(port)}.get(word, word) for word in spec["command"]]
    environment = server_environment(spec["environment"])
    started = time.time()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
    registration = folder / f"server-{index}.json"
    try:
        own_url = f"http://{'127.0.0.1' if address == '0.0.0.0' else address}:{port}/v1"
        while not answers(own_url):
            watch.tick(process)
            if time.time() - started > spec["ready_timeout_s"]:
                raise Ended(f"the server is not ready after {spec['ready_timeout_s']:g} s", 1)
        url = f"http://{host}:{port}/v1"
        found = {"url": url, "host": host, "job": job, "index": index, "pid": process.pid, "started": started}
        fresh = registration.with_suffix(f".{job}.part")
        fresh.write_text(json.dumps(found))
        fresh.replace(registration)
        print(f"slurm_job: {job} serves {url}", flush=True)
        while True:
            watch.tick(process)
    except Ended as end:
        print(f"slurm_job: {job} ends: {end}", flush=True)
        return end.code
    finally:
        unregister(registration, job)
        end_session(process)


def unregister(registration: Path, job: str) -> None:
    """Remove this job's registration; a job that took its place keeps its own."""
    with contextlib.suppress(OSError, ValueError):
        if json.loads(registration.read_text())["job"] == job:
            registration.unlink()


def main() -> int:
    """The job named by Slurm's variables, on the folder named by the first argument."""
    folder = Path(sys.argv[1])
    index = int(os.environ["SLURM_ARRAY_TASK_ID"])
    job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{index}"
    return serve(json.loads((folder / "spec.json").read_text()), folder, job, index)


if __name__ == "__main__":
    sys.exit(main())
