"""Judge a program: run its tests in the box, compare what comes out of it here.

The score is the fraction of tests passed; only a program that passes all of them is right.

An exit code or a printed marker can be forged in one line (`os._exit(0)`), an `==` inside the program's process as
well (`__eq__`). So the box gets inputs alone and returns data, and what is equal is decided here.
"""

import base64
import re
from collections.abc import Sequence

from pipeline.sandbox import BoxLimits
from pipeline.verify.code.compare import Comparator, texts_equal, values_equal
from pipeline.verify.code.extract import NoProgram, extract_program
from pipeline.verify.code.formats import read_suite
from pipeline.verify.code.run import BoxFailed, Event, run_tests
from pipeline.verify.code.suite import BadReference, Expression, Script, Stdin, Suite, Test
from pipeline.verify.code.values import decode, show
from pipeline.verify.judgement import SNIPPET, WALL_TIMEOUT, Item, Judgement, failed, passed, snippet, unknown
from pipeline.verify.limits import Limits

VERSION = "2"

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def judge(items: Sequence[Item], limits: Limits) -> list[Judgement]:
    """One judgement an item, in order."""
    return [judge_program(item, limits.code) for item in items]


def judge_program(item: Item, limits: BoxLimits) -> Judgement:
    """Run one program against its tests."""
    try:
        suite = read_suite(item.reference)
    except BadReference as bad:
        return unknown("bad_reference", error=snippet(str(bad)))
    try:
        source = extract_program(item.answer, suite.function)
    except NoProgram as none:
        return failed(str(none))
    try:
        events = run_tests(source, suite, limits)
    except BoxFailed as box:
        if box.result.status == "wall_limit":
            return unknown(WALL_TIMEOUT)
        return unknown(
            "box_failed", error=snippet(box.result.stderr.decode(errors="replace")[-SNIPPET:] or box.result.status)
        )
    return _compare(events, suite)


def _compare(events: list[Event], suite: Suite) -> Judgement:
    """Count the tests passed and name the first one that was not."""
    first: tuple[str, dict[str, object]] | None = None
    num_passed = 0
    for index, test in enumerate(suite.tests):
        event = events[index] if index < len(events) else {"status": "no_result"}
        reason = _reason(event, test, suite.comparator)
        if reason == "equal":
            num_passed += 1
        elif first is None:
            first = (reason, {"test": index, **_details(event)})
    counts = {"passed": num_passed, "tests": len(suite.tests)}
    weak = sum(isinstance(test, Script) for test in suite.tests)
    if weak:
        counts["weak"] = weak
    if first is None:
        return passed("equal", **counts)
    reason, details = first
    if reason == "bad_setup":
        return unknown("bad_reference", error=snippet(f"setup: {details.get('error', 'runs out of its limits')}"))
    if reason == "wall_limit":
        return unknown(WALL_TIMEOUT, **counts, **details)
    return failed(reason, num_passed / len(suite.tests), **counts, **details)


def _reason(event: Event, test: Test, rule: Comparator) -> str:
    """`equal`, or why a test was not passed."""
    status = str(event["status"])
    if status != "value":
        return status
    try:
        if isinstance(test, Stdin):
            printed = base64.b64decode(event["printed"], validate=True).decode(errors="replace")
            return "equal" if texts_equal(printed, test.expected, rule) else "wrong_answer"
        value = decode(event["value"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return "no_result"
    if isinstance(test, Expression) and test.comparator is not None:
        rule = test.comparator
    return "equal" if any(values_equal(value, expected, rule) for expected in test.expected) else "wrong_answer"


def _details(event: Event) -> dict[str, object]:
    """Evidence of a failed test; memory addresses are masked, so that it repeats."""
    try:
        if "value" in event:
            return {"got": snippet(show(event["value"]))}
        if "printed" in event:
            return {"got": snippet(base64.b64decode(event["printed"]).decode(errors="replace"))}
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return {}
    return {"error": snippet(_ADDRESS.sub("0x", str(event["error"])))} if "error" in event else {}
