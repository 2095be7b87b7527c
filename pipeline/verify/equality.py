"""Compare two expressions with math-verify, in processes that can be killed.

math-verify's own timeout is an alarm signal that model text such as `9^{9^{9}}` keeps waiting for the full time, and
that works in main threads only. Here each comparison has a CPU limit set by the kernel and a wall-clock backstop.
"""

import math
import multiprocessing
import re
import signal
import time
from collections.abc import Sequence
from typing import Any

from pipeline.verify.limits import MathLimits
from pipeline.verify.numbers import tidy

OUTCOMES = (
    "equal",
    "different",
    "unparsable_answer",
    "unparsable_reference",
    "memory_limit",
    "cpu_limit",
    "wall",
    "crash",
)
RELATIVE_TOLERANCE = 1e-6


def differs_in_form(gold: str, answer: str) -> bool:
    """Whether two expressions differ in what math-verify 0.9 does not see: brackets of another kind, or a base.

    It calls `\\{1,2\\}` and `(1,2)` equal, `[0,1)` and `(0,1)` not, and drops the base of `11_2`.
    """
    forms = [(_bracket(tidy(text)), bool(re.search(r"\d_\{?\d", text))) for text in (gold, answer)]
    (gold_bracket, gold_base), (bracket, base) = forms
    return gold_base != base or ("{" in (gold_bracket, bracket) and "(" in (gold_bracket, bracket))


def _bracket(text: str) -> str:
    text = text.replace("\\{", "{")
    return text[0] if text and text[0] in "{(" and "," in text else ""


def compare_expressions(pairs: Sequence[tuple[str, str]], limits: MathLimits) -> list[str]:
    """One of OUTCOMES for each pair (reference, answer), in order."""
    from pebble import ProcessExpired, ProcessPool

    # Not `fork`: the caller may be a Dask worker with threads. The server imports math-verify once, so that a new
    # process after a kill costs milliseconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["math_verify", "pipeline.verify.equality"])
    outcomes = []
    arguments: dict[str, Any] = {"initializer": _start_worker, "initargs": (limits.memory_mb,)}
    with ProcessPool(max_workers=1, context=context, **arguments) as pool:
        for gold, answer in pairs:
            future = pool.schedule(compare, args=(gold, answer, limits.cpu_s), timeout=limits.wall_s)
            try:
                outcomes.append(future.result())
            except TimeoutError:
                outcomes.append("wall")
            except MemoryError:
                outcomes.append("memory_limit")
            except ProcessExpired as error:
                outcomes.append("cpu_limit" if error.exitcode == -signal.SIGXCPU else "crash")
    return outcomes


def _start_worker(memory_mb: int) -> None:
    import logging
    import resource

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call that its own timeout is off
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def compare(gold: str, answer: str, cpu_s: int) -> str:
    """Compare two expressions in this process, which the kernel ends after `cpu_s` more CPU seconds."""
    import resource

    from math_verify import verify

    used = math.ceil(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + cpu_s, resource.RLIM_INFINITY))
    wanted = _parse(gold)
    if not wanted:
        return "unparsable_reference"
    got = _parse(answer)
    if not got:
        return "unparsable_answer"
    try:
        same = verify(wanted, got, timeout_seconds=None, raise_on_error=True)
    except MemoryError:
        return "memory_limit"
    except Exception:  # noqa: BLE001 - sympy raises anything on model text
        return "crash"
    return "equal" if same and not _far_apart(wanted[0], got[0]) else "different"


def _parse(text: str) -> list[Any]:
    """Parse as LaTeX only: math-verify's plain-expression parser ends in Python's `eval` of model text."""
    from math_verify import LatexExtractionConfig, parse

    text = re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    try:
        found = parse(
            f"$\\boxed{{{text}}}$",
            extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,
            raise_on_error=True,
        )
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the parser raises anything on model text
        return []
    return list(found)


def _far_apart(wanted: Any, got: Any) -> bool:  # noqa: ANN401 - sympy objects
    """Whether two numbers differ by more than a millionth part; math-verify rounds to six decimals, so that it calls
    2^{-99} and 2^{-98} equal."""
    try:
        if not (wanted.is_number and got.is_number):
            return False
        first, second = wanted.evalf(30), got.evalf(30)
        if not (first.is_Float and second.is_Float):
            return False
        return bool(abs(first - second) > RELATIVE_TOLERANCE * max(abs(first), abs(second)))
    except (AttributeError, TypeError, ValueError):
        return False
