"""Judge a program: call its function in the box, compare the returned values outside.

Reference: {"function": "add", "tests": [{"args": [1, 2], "expected": 3}, ...]}. The score is the fraction of tests
passed; only a program that passes all of them is right.

An exit code or a printed marker can be forged in one line (`os._exit(0)`), an `==` inside the program's process as
well (`__eq__`). So the box gets arguments alone and returns data, and what is equal is decided here.
"""

import inspect
import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pipeline.sandbox import BoxLimits, BoxResult, python_argv, run_boxed
from pipeline.verify import driver
from pipeline.verify.judgement import WALL_TIMEOUT, Item, Judgement, failed, passed, snippet, unknown
from pipeline.verify.limits import Limits

VERSION = "1"

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-9

STATUSES = (
    *("ready", "value", "raised", "syntax_error", "no_function", "bad_type", "bad_value", "too_large"),
    *("memory_limit", "cpu_limit", "crashed", "no_result"),
)
"""What the driver may say of a call. A program can forge its own line, so no other word becomes a reason."""

_PYTHON = ("", "python", "python3", "py")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def judge(items: Sequence[Item], limits: Limits) -> list[Judgement]:
    """One judgement an item, in order."""
    return [judge_program(item, limits.code) for item in items]


def judge_program(item: Item, limits: BoxLimits) -> Judgement:
    """Run one program against its tests."""
    if not is_reference(item.reference):
        return unknown("bad_reference")
    reference: Mapping[str, Any] = item.reference or {}
    source = extract_program(item.answer, reference["function"])
    if source is None:
        return failed("no_code")
    tests = reference["tests"]
    nonce = secrets.token_hex(16)
    job = {
        "nonce": nonce,
        "source": source,
        "function": reference["function"],
        "calls": [json.dumps(test["args"]) for test in tests],
        "cpu_s": limits.cpu_s,
    }
    result = run_boxed(python_argv(inspect.getsource(driver)), json.dumps(job).encode(), limits)
    events = read_events(result.stdout, nonce)
    if not events:  # not even the driver spoke, which runs before the program does
        message = result.stderr.decode(errors="replace") or result.status
        if result.status == "wall_limit":
            return unknown(WALL_TIMEOUT)
        return unknown("box_failed", error=snippet(message))
    return _compare(events[1:], [test["expected"] for test in tests], result, limits)


def is_reference(value: Mapping[str, Any] | None) -> bool:
    """Whether a reference has a function name and at least one test with arguments and an expected value."""
    if value is None or not isinstance(value.get("function"), str) or not value["function"].isidentifier():
        return False
    tests = value.get("tests")
    return (
        isinstance(tests, list)
        and bool(tests)
        and all(isinstance(t, dict) and isinstance(t.get("args"), list) and "expected" in t for t in tests)
    )


def extract_program(answer: str, function: str) -> str | None:
    """The last complete Python block that defines the function, else the last one, else a bare definition.

    Models like to add a block that only shows how the function is called. A block without its closing fence was cut.
    """
    blocks = python_blocks(answer)
    defining = re.compile(rf"^(?:async\s+)?(?:def\s+{function}\b|{function}\s*[=:])", re.MULTILINE)
    for block in reversed(blocks):
        if defining.search(block):
            return block
    if blocks:
        return blocks[-1]
    bare = answer.strip()
    if "```" not in bare and re.match(r"(?:async|def|import|from|class)\b|@", bare) and defining.search(bare):
        return bare + "\n"
    return None


def python_blocks(answer: str) -> list[str]:
    """The closed fenced blocks marked as Python or not marked; line by line, as a regex would take quadratic time."""
    blocks: list[str] = []
    language: str | None = None
    lines: list[str] = []
    for line in answer.splitlines():
        mark = line.strip()
        if language is None:
            if mark.startswith("```"):
                language, lines = (mark.strip("`").split() or [""])[0].lower(), []
        elif mark == "```":
            if language in _PYTHON:
                blocks.append("\n".join(lines) + "\n")
            language = None
        else:
            lines.append(line)
    return blocks


def read_events(stdout: bytes, nonce: str) -> list[dict[str, Any]]:
    """The driver's lines in order, up to the first that is not whole, not strict JSON or without the nonce."""
    events: list[dict[str, Any]] = []
    for line in stdout.split(b"\n")[:-1]:
        mark, _, text = line.partition(b" ")
        if mark != nonce.encode():
            break
        try:
            event = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            break
        if not isinstance(event, dict) or event.get("status") not in STATUSES:
            break
        events.append(event)
    return events


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _compare(events: list[dict[str, Any]], expected: list[Any], result: BoxResult, limits: BoxLimits) -> Judgement:
    """Count the tests passed and name the first one that was not."""
    first: tuple[str, dict[str, Any]] | None = None
    num_passed = 0
    for index, value in enumerate(expected):
        event = events[index] if index < len(events) else {"status": "no_result"}
        status = event["status"]
        if status == "value" and values_equal(event.get("value"), value):
            num_passed += 1
        elif first is None:
            first = ("wrong_answer" if status == "value" else status, {"test": index, **_details(event)})
    counts = {"passed": num_passed, "tests": len(expected)}
    if first is None:
        return passed("equal", **counts)
    reason, details = first
    if reason == "no_result" and result.status == "wall_limit":
        if result.cpu_s < limits.cpu_s:
            return unknown(WALL_TIMEOUT, **counts, **details)
        reason = "cpu_limit"
    return failed(reason, num_passed / len(expected), **counts, **details)


def _details(event: dict[str, Any]) -> dict[str, str]:
    """Evidence of a failed test; memory addresses are masked, so that it repeats."""
    if event["status"] == "value":
        return {"got": snippet(json.dumps(event.get("value"), ensure_ascii=False))}
    if "error" in event:
        return {"error": snippet(_ADDRESS.sub("0x", str(event["error"])))}
    return {}


def values_equal(got: object, expected: object) -> bool:
    """Equality of JSON values with strict types: True is not 1, 1.0 is not 1; where a float is expected, an integer
    of that value will do, and floats may differ by a millionth part."""
    if isinstance(expected, bool) or isinstance(got, bool) or expected is None:
        return got is expected
    if isinstance(expected, float):
        return isinstance(got, int | float) and _close(got, expected)
    if isinstance(expected, list):
        return isinstance(got, list) and len(got) == len(expected) and all(map(values_equal, got, expected))
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and got.keys() == expected.keys()
            and all(values_equal(got[key], expected[key]) for key in expected)
        )
    return type(got) is type(expected) and got == expected


def _close(got: float, expected: float) -> bool:
    try:
        return math.isclose(got, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
    except OverflowError:  # an integer beyond every float
        return False
