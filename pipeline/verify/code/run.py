"""Run a program's tests in boxes and read what the driver says of them."""

import inspect
import json
import secrets
from collections.abc import Iterator
from functools import cache
from typing import Any, NoReturn

from pipeline.sandbox import BoxLimits, BoxResult, python_argv, run_boxed
from pipeline.verify.code.boxed import data, driver, work
from pipeline.verify.code.suite import Suite

BATCH_TESTS, BATCH_BYTES = 16, 32 << 20
"""Tests a box, and bytes of their inputs: the driver holds both, and 16 times `output_kb`, in the memory of the box."""
BOX_WALLS = 4
"""A box may take so many times `wall_s`: a program can stop the driver with a signal, which then minds no clock."""

STATUSES = frozenset(
    {"value", "raised", "syntax_error", "no_function", "bad_type", "too_large", "memory_limit", "cpu_limit"}
    | {"wall_limit", "output_limit", "crashed", "no_result", "bad_setup"}
)
"""What the driver says of a test. No other word becomes a reason."""
LAST = frozenset({"cpu_limit", "wall_limit", "bad_setup"})
"""After these no further test is run."""

SIGNALLED = 128
"""Exit codes from here on are signals, which a program can send to the driver; below them the driver failed itself."""

Event = dict[str, Any]


class BoxFailed(Exception):
    """A box in which not even the driver spoke, which runs before the program does, or in which it found no way on."""

    def __init__(self, result: BoxResult) -> None:
        super().__init__(result.status)
        self.result = result


def run_tests(source: str, suite: Suite, limits: BoxLimits) -> list[Event]:
    """What the driver says of each test, in order; it ends early at a test that ran out of time.

    `cpu_s`, `wall_s` and `output_kb` are limits of one test. Raises BoxFailed.
    """
    events: list[Event] = []
    for batch in batches([json.dumps(test.job()) for test in suite.tests]):
        found = _run_batch(source, suite, batch, limits)
        events += found
        if len(found) < len(batch) or found[-1]["status"] in LAST:
            break
    return events


def batches(tests: list[str]) -> Iterator[list[str]]:
    """Tests in groups for one box each, in order."""
    batch: list[str] = []
    for test in tests:
        if batch and (len(batch) == BATCH_TESTS or sum(map(len, batch)) + len(test) > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(test)
    if batch:
        yield batch


def _run_batch(source: str, suite: Suite, tests: list[str], limits: BoxLimits) -> list[Event]:
    nonce = secrets.token_hex(16)
    job = {
        "source": source,
        "setup": suite.setup,
        "function": suite.function,
        "cpu_s": limits.cpu_s,
        "wall_s": limits.wall_s,
        "output_bytes": limits.output_kb << 10,
    }
    text = f'{json.dumps(job)[:-1]}, "tests": [{", ".join(tests)}]}}'.encode()
    whole_box = limits.model_copy(
        update={
            "cpu_s": (limits.cpu_s + 1) * len(tests) + 1,
            "wall_s": limits.wall_s * BOX_WALLS,
            "output_kb": limits.output_kb * len(tests) * 2 + 64,
        }
    )
    result = run_boxed(python_argv(driver_source()), b"%010d%b%b" % (len(text), text, nonce.encode()), whole_box)
    if not result.stdout.startswith(b"ready\n") or (result.status == "exited" and 0 < result.code < SIGNALLED):
        raise BoxFailed(result)
    if result.status == "wall_limit":
        return [{"status": "wall_limit"}]
    return read_events(result.stdout.removeprefix(b"ready\n"), nonce)[: len(tests)]


@cache
def driver_source() -> str:
    """The driver as one text: its modules under their own names, then `main`."""
    modules = [(module.__name__, inspect.getsource(module)) for module in (data, work, driver)]
    return (
        "import sys, types\n"
        f"for name, text in {modules!r}:\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(text, name, 'exec'), module.__dict__)\n"
        "module.main()\n"
    )


def read_events(stdout: bytes, nonce: str) -> list[Event]:
    """The driver's lines in order, up to the first that is not whole, not strict JSON or without the nonce."""
    events: list[Event] = []
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
