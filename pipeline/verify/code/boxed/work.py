"""What a test's process does: load the untrusted program, call it, or run asserts that call it from next door."""

from __future__ import annotations

import builtins
import json
import math
import os
import sys
import types

from pipeline.verify.code.boxed.data import Refused, decode, describe, encode

TYPE_CHECKING = False
if TYPE_CHECKING:  # each import counts: they are half of a box's time
    from collections.abc import Callable
    from typing import Any

    Job = dict[str, Any]
    Outcome = dict[str, Any]

ANSWER = 3
"""The descriptor that a test's process answers through."""
OUR_FRAMES = 20
"""Calls that stand below the program's own, which may use as many as anywhere else."""
PRELUDE = "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string\n" + "".join(
    f"from {name} import *\n" for name in ("bisect", "collections", "functools", "heapq", "itertools", "math", "typing")
)
"""What LeetCode, whose `class Solution` this is, and LiveCodeBench import for a program."""


def execute(source: str, name: str, space: dict[str, Any]) -> None:
    """Run source in a namespace, without the `from __future__` of this module."""
    exec(compile(source, name, "exec", dont_inherit=True), space)  # noqa: S102 - this is the box


def fix_randomness(source: str) -> None:
    """Make what uses `random` repeat; importing it costs more than most programs."""
    if "random" in source:
        import random

        random.seed(0)


def load(job: Job, name: str) -> types.ModuleType:
    """Run the setup and the program as a module of this name."""
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    sys.set_int_max_str_digits(0)
    source = str(job["source"])
    sys.setrecursionlimit(sys.getrecursionlimit() + OUR_FRAMES)
    fix_randomness(source)
    for leave in ("exit", "quit"):  # which only `site` defines, and it would bring the machine's packages
        setattr(builtins, leave, sys.exit)
    module.__dict__["__builtins__"] = builtins
    if "class Solution" in source:
        execute(PRELUDE, "prelude.py", module.__dict__)
    execute(str(job["setup"]), "setup.py", module.__dict__)
    execute(source, "solution.py", module.__dict__)
    return module


def find(module: types.ModuleType, name: str) -> Any:  # noqa: ANN401 - any value
    """The function of this name, or the method of `class Solution`."""
    found = module.__dict__.get(name)
    if found is None and isinstance(module.__dict__.get("Solution"), type):
        found = getattr(module.__dict__["Solution"](), name, None)
    return found


def call(job: Job, test: Job) -> Outcome:
    """Load the program and call its function or evaluate an expression."""
    module = load(job, "solution")
    if test["kind"] == "expression":
        module.__dict__.setdefault("math", math)
        return {"status": "value", "value": encode(eval(str(test["text"]), module.__dict__))}  # noqa: S307 - the box
    function = find(module, str(test["function"]))
    if not callable(function):
        return {"status": "no_function"}
    return {"status": "value", "value": encode(function(*test["arguments"]))}


def answer(job: Job, work: Callable[[], Outcome]) -> None:
    """Tell what came of the work and leave, before any exit handler of the program."""
    dump, write, leave = json.dumps, os.write, os._exit
    try:
        outcome = work()
    except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt are results as well
        outcome = describe(error)
    data = dump(outcome).encode()
    if len(data) > job["output_bytes"]:
        data = b'{"status": "too_large"}'
    while data:
        data = data[write(ANSWER, data) :]
    leave(0)


def serve(job: Job) -> None:
    """Load the program and call its functions as a script asks for them, line by line."""
    import socket

    module = load(job, "solution")
    with socket.socket(fileno=ANSWER) as link, link.makefile("rw") as lines:
        for line in lines:
            name, arguments, keywords = decode(json.loads(line))
            try:
                value = find(module, name)(*arguments, **keywords)
                reply: Outcome = {"value": encode(value), "arguments": encode(arguments)}
            except BaseException as error:  # noqa: BLE001 - the script may expect any
                reply = {**describe(error), "raised": type(error).__name__}
            lines.write(json.dumps(reply) + "\n")
            lines.flush()


def write_back(mine: object, theirs: object) -> None:
    """Give an argument the content that the program left in its copy: functions may sort a list in place.

    Only those that return nothing: `assert f(xs) == sorted(xs)` would else hold for one that empties the list.
    """
    if isinstance(mine, list) and isinstance(theirs, list):
        mine[:] = theirs
    elif (isinstance(mine, dict) and isinstance(theirs, dict)) or (isinstance(mine, set) and isinstance(theirs, set)):
        mine.clear()
        mine.update(theirs)


def run_script(job: Job, test: Job, link: int) -> Outcome:
    """Run asserts that call the program in its own process. What that sends is data, so no object of it is compared."""
    import socket

    lines = socket.socket(fileno=link).makefile("rw")

    def remote(name: str) -> Callable[..., object]:
        def ask(*arguments: object, **keywords: object) -> object:
            question = json.dumps(encode([name, arguments, keywords]))
            try:
                lines.write(question + "\n")
                lines.flush()
                reply = json.loads(lines.readline())
                if "value" in reply:
                    if reply["value"] is None:
                        for mine, theirs in zip(arguments, decode(reply["arguments"]), strict=True):
                            write_back(mine, theirs)
                    return decode(reply["value"])
                status, error, raised = reply["status"], str(reply.get("error", "")), reply["raised"]
            except (OSError, ValueError, LookupError, TypeError, RecursionError):
                raise Refused("no_result", "the program hung up or sent no reply") from None
            if status != "raised":
                raise Refused(status, error)
            kind = getattr(builtins, raised, None) if isinstance(raised, str) else None
            raise (kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError)(error)

        return ask

    space: dict[str, Any] = {"__name__": "tests"}
    execute(str(job["setup"]), "setup.py", space)
    for name in test["names"]:
        if name not in space or name == job["function"]:
            space[name] = remote(name)
    fix_randomness(str(test["text"]))
    try:
        execute(str(test["text"]), "tests.py", space)
    except AssertionError:
        return {"status": "value", "value": False}
    return {"status": "value", "value": True}
