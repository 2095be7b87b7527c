"""Runs inside the box, where it calls one function of an untrusted program with many arguments.

In, as JSON on stdin: {"nonce", "source", "function", "calls": [JSON list of arguments, ...], "cpu_s"}. Out, one line an
event on the first stdout: nonce, space, JSON. Expected values never come in here: whatever a program forges, it has
to know the value to forge it. Each call has a process of its own, forked from this one, so no call sees another's
traces; its result lies in a file descriptor read after its end, so it cannot block us either.
Needs only the standard library; it is passed to the interpreter as text.
"""

import contextlib
import json
import math
import os
import resource
import signal
import sys
import types

MAX_RESULT_BYTES = 1 << 16
PLAIN = (bool, int, float, str, type(None))


def is_plain(value: object) -> bool:
    """Whether a value is exactly of JSON's types (a tuple counts as a list): no subclass, no object."""
    kind = type(value)
    if kind in (list, tuple):
        return all(is_plain(part) for part in value)  # type: ignore[attr-defined]
    if kind is dict:
        return all(type(k) is str and is_plain(v) for k, v in value.items())  # type: ignore[attr-defined]
    return kind in PLAIN


def call_function(source: str, name: str, arguments: str) -> dict[str, object]:
    """Load the program, call the function, and describe what came of it."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module  # dataclasses look their module up
    sys.set_int_max_str_digits(0)
    if "random" in source:
        import random

        random.seed(0)
    try:
        program = compile(source, "solution.py", "exec")
    except (SyntaxError, ValueError) as error:
        return {"status": "syntax_error", "error": f"{type(error).__name__}: {error}"}
    exec(program, module.__dict__)  # noqa: S102 - this is the box
    function = module.__dict__.get(name)
    if not callable(function):
        return {"status": "no_function"}
    value = function(*json.loads(arguments))
    if not is_plain(value):
        return {"status": "bad_type", "error": type(value).__name__}
    return {"status": "value", "value": value}


def describe(error: BaseException) -> dict[str, object]:
    """What an exception says, without its traceback."""
    if isinstance(error, MemoryError):
        return {"status": "memory_limit"}
    try:
        text = f"{type(error).__name__}: {error}"[:200]
    except BaseException:  # noqa: BLE001 - an exception of the program may raise when printed
        text = type(error).__name__
    return {"status": "raised", "error": text}


def run_child(source: str, name: str, arguments: str, result: int) -> None:
    """The whole life of one call's process; writes one JSON object to `result`."""
    dump, write, leave = json.dumps, os.write, os._exit
    try:
        outcome = call_function(source, name, arguments)
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt are results as well
        outcome = describe(error)
    try:
        data = dump(outcome, allow_nan=False).encode()
    except (ValueError, RecursionError, MemoryError) as error:
        data = dump({"status": "bad_value", "error": type(error).__name__}).encode()
    if len(data) > MAX_RESULT_BYTES:
        data = dump({"status": "too_large"}).encode()
    while data:
        data = data[write(result, data) :]
    leave(0)  # before any exit handler of the program


def run_call(source: str, name: str, arguments: str, cpu_s: float) -> tuple[dict[str, object], float]:
    """Run one call in a fork. Returns its result and the CPU seconds that it took."""
    result = os.memfd_create("result")
    child = os.fork()
    if child == 0:
        seconds = max(1, math.ceil(cpu_s))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        os.closerange(3, result)  # the way out belongs to this process's parent alone
        try:
            run_child(source, name, arguments, result)
        finally:
            os._exit(1)
    _, status, usage = os.wait4(child, 0)
    end_strays()
    used = usage.ru_utime + usage.ru_stime
    data = os.pread(result, MAX_RESULT_BYTES + 1, 0)
    os.close(result)
    if os.WIFSIGNALED(status):
        over = os.WTERMSIG(status) == signal.SIGXCPU or used >= cpu_s
        return {"status": "cpu_limit"} if over else {"status": "crashed", "error": str(os.WTERMSIG(status))}, used
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if os.WEXITSTATUS(status) or not isinstance(value, dict):
        return {"status": "no_result"}, used
    return value, used


def end_strays() -> None:
    """End whatever the call left running: every process of the box but its first and this one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def main() -> None:
    """Run every call, stopping at the first that ran out of time."""
    job = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)

    def tell(event: dict[str, object]) -> None:
        line = memoryview(f"{job['nonce']} {json.dumps(event)}\n".encode())
        while line:
            line = line[os.write(channel, line) :]

    tell({"status": "ready"})
    left = float(job["cpu_s"])
    for arguments in job["calls"]:
        outcome, used = run_call(job["source"], job["function"], arguments, left)
        left -= used
        tell({"status": "cpu_limit"} if left <= 0 else outcome)
        if left <= 0 or outcome["status"] == "cpu_limit":
            break


if __name__ == "__main__":
    main()
