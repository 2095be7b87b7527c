"""Runs inside the box, where it runs an untrusted program against the inputs of many tests.

In, on stdin: the length of the job in ten digits, the job, a nonce. The job is JSON: {"source", "setup", "function",
"tests", "cpu_s", "wall_s", "output_bytes"}. Out, on stdout: the line `ready`, and at the end one line a test: nonce,
space, JSON. Expected values never come in here: whatever a program forges, it has to know the value to forge it.

Each test has a process of its own, forked from this one, and an empty folder. It has no descriptor of ours but the pipe
that it answers through, and cannot look into our memory, where the nonce is not yet: it is read when all have ended.
"""

from __future__ import annotations

import binascii
import contextlib
import ctypes
import json
import math
import os
import resource
import select
import signal
import sys
import time

from pipeline.verify.code.boxed.work import ANSWER, answer, call, load, run_script, serve

TYPE_CHECKING = False
if TYPE_CHECKING:  # each import counts: they are half of a box's time
    from collections.abc import Callable
    from typing import Any

    Job = dict[str, Any]
    Outcome = dict[str, Any]

FORK_TRIES = 200
STDERR_BYTES = 1 << 12
SELF_TOLD = ("value", "raised", "syntax_error", "no_function", "bad_type", "too_large", "memory_limit")
"""What a test's process may say of itself."""


def fork() -> int:
    """A fork, tried again while what an earlier test left behind is still ending."""
    for _ in range(FORK_TRIES):
        with contextlib.suppress(BlockingIOError):
            return os.fork()
        time.sleep(0.01)
    return os.fork()


def enter(job: Job, places: dict[int, int]) -> None:
    """Make this process a test's: limits of its own, and no descriptor but those put into `places`."""
    seconds = max(1, math.ceil(job["cpu_s"]))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    for place, descriptor in places.items():
        os.dup2(descriptor, place, inheritable=place < ANSWER)
    os.closerange(max(places) + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def begin(job: Job, places: dict[int, int], work: Callable[[], None]) -> int:
    """Do some work in a process of its own. Returns the process."""
    child = fork()
    if child == 0:
        try:
            enter(job, places)
            work()
        finally:
            os._exit(1)
    return child


def begin_program(job: Job, places: dict[int, int]) -> int:
    """Run the program as a script with standard input and output. It ends as the interpreter ends: after its threads
    and exit handlers, with its output flushed. Returns the process."""
    child = fork()
    if child == 0:
        enter(job, places)
        sys.stdin = sys.__stdin__ = os.fdopen(0, "r", encoding="utf-8", errors="surrogateescape")  # type: ignore[misc]
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape")  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace")  # type: ignore[misc]
        sys.argv = ["solution.py"]
        load(job, "__main__")
        sys.exit()
    return child


def collect(child: int, source: int, job: Job) -> tuple[bytes, Outcome | None]:
    """Read what comes until the child has ended, then end all that it left. Returns that, and what went wrong."""
    data, deadline = bytearray(), time.monotonic() + job["wall_s"]
    ended_by = ""
    poll, life = select.poll(), os.pidfd_open(child)
    poll.register(source, select.POLLIN)
    poll.register(life, select.POLLIN)
    while not ended_by:
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000)}
        if not ready or time.monotonic() > deadline:
            ended_by = "wall_limit"
        elif source in ready:
            piece = os.read(source, 1 << 16)
            data += piece
            if not piece:
                poll.unregister(source)
            if len(data) > job["output_bytes"]:
                ended_by = "output_limit"
        else:
            break
    os.close(life)
    os.close(source)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # every process of the box but its first and this one
    _, status, usage = os.wait4(child, 0)
    signalled = os.WIFSIGNALED(status)
    if (ended_by or signalled) and over_time(status, usage, job):
        return bytes(data), {"status": "cpu_limit"}
    if ended_by:
        return bytes(data), {"status": ended_by}
    if signalled:
        return bytes(data), {"status": "crashed", "error": f"signal {os.WTERMSIG(status)}"}
    code = os.WEXITSTATUS(status)
    return bytes(data), {"status": "raised", "error": f"exit code {code}"} if code else None


def over_time(status: int, usage: resource.struct_rusage, job: Job) -> bool:
    """Whether a process that was ended had used up its CPU seconds."""
    by_signal = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
    return bool(by_signal or usage.ru_utime + usage.ru_stime >= job["cpu_s"])


def run_test(job: Job, test: Job) -> Outcome:
    """Run one test in processes of its own."""
    out, into = os.pipe()
    if test["kind"] == "stdin":
        given, errors = os.memfd_create("stdin"), os.memfd_create("stderr")
        with open(given, "wb", closefd=False) as file:
            file.write(test["given"].encode(errors="surrogatepass"))
        os.lseek(given, 0, os.SEEK_SET)
        child = begin_program(job, {0: given, 1: into, 2: errors})
        os.close(into)
        printed, problem = collect(child, out, job)
        said = os.pread(errors, STDERR_BYTES, max(0, os.fstat(errors).st_size - STDERR_BYTES))
        os.close(given)
        os.close(errors)
        if problem is None:
            return {"status": "value", "printed": binascii.b2a_base64(printed, newline=False).decode()}
        return name_error(problem, said.decode(errors="replace").strip().rpartition("\n")[2])
    server = 0
    if test["kind"] == "script":
        import socket

        ours, theirs = socket.socketpair()
        server = begin(job, {ANSWER: theirs.fileno()}, lambda: serve(job))
        theirs.close()
        link = os.dup(ours.fileno())
        ours.close()
        places = {ANSWER: into, ANSWER + 1: link}
        child = begin(job, places, lambda: answer(job, lambda: run_script(job, test, ANSWER + 1)))
        os.close(link)
    else:
        child = begin(job, {ANSWER: into}, lambda: answer(job, lambda: call(job, test)))
    os.close(into)
    said, problem = collect(child, out, job)
    if server:
        _, status, usage = os.wait4(server, 0)
        if os.WIFSIGNALED(status) and over_time(status, usage, job):
            return {"status": "cpu_limit"}
    if problem is not None:
        return {"status": "no_result"} if problem["status"] == "raised" else problem
    return told_outcome(said)


def told_outcome(said: bytes) -> Outcome:
    """What a test's process says of itself. The program may have written it, so it cannot say what only we can see."""
    try:
        outcome = json.loads(said)
    except (ValueError, RecursionError):
        outcome = None
    if not isinstance(outcome, dict) or outcome.get("status") not in SELF_TOLD:
        return {"status": "no_result"}
    return outcome


def name_error(problem: Outcome, last_line: str) -> Outcome:
    """A program's end, told by the last line of its traceback where it has one."""
    if problem["status"] != "raised" or not last_line:
        return problem
    for start, status in (("MemoryError", "memory_limit"), ("SyntaxError", "syntax_error")):
        if last_line.startswith(start):
            return {"status": status, "error": last_line[:200]}
    return {"status": "raised", "error": last_line[:200]}


def read_exactly(size: int) -> bytes:
    """So many bytes of stdin and not one more."""
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            break
        data += piece
    return data


def empty(folder: str) -> None:
    """Remove what a test left in the folder that programs may write to."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            os.unlink(path)
        except OSError:
            import shutil

            shutil.rmtree(path, ignore_errors=True)


def run_tests(job: Job) -> list[Outcome]:
    """Run every test, stopping at the first that ran out of time."""
    outcomes: list[Outcome] = []
    folder = os.getcwd()
    if job["setup"]:  # alone first: where it fails without the program, the program is not to blame
        outcome = run_test({**job, "source": ""}, {"kind": "expression", "text": "None"})
        if outcome["status"] != "value":
            return [{**outcome, "status": "bad_setup"}]
    for test in job["tests"]:
        outcomes.append(run_test(job, test))
        empty(folder)
        if outcomes[-1]["status"] in ("cpu_limit", "wall_limit"):
            break
    return outcomes


def main() -> None:
    """Read the job, run its tests, tell what came of them. Ends with exit code 1 if this file is at fault."""
    if "WARMSTART_BOX" not in os.environ:
        sys.exit("this runs in a box only: it kills every process that it may, and empties its folder")
    job = json.loads(read_exactly(int(read_exactly(10))))
    rest, channel, errors = os.dup(0), os.dup(1), os.dup(2)
    os.write(channel, b"ready\n")
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no other process may trace or read this one
    driver = os.getpid()
    try:
        outcomes = run_tests(job)
    except Exception:
        if os.getpid() == driver:
            os.dup2(errors, 2)
        raise
    nonce = os.read(rest, 64).decode()
    for outcome in outcomes:
        line = memoryview(f"{nonce} {json.dumps(outcome)}\n".encode())
        while line:
            line = line[os.write(channel, line) :]
