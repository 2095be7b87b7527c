"""Compare what holds real expressions, in processes that can be killed.

math-verify reads the LaTeX. Its own time limit is an alarm signal that model text such as `9^{9^{9}}` keeps waiting for
the full time, and that works in main threads only; here each comparison has a CPU limit set by the kernel and a
wall-clock backstop. Its `verify` rounds to six decimals, so equality is decided by exact or 500-digit arithmetic, and
`verify` is asked only where a formula has no value, such as one with an unknown function.
"""

import multiprocessing
import os
import re
import signal
from collections.abc import Sequence
from multiprocessing.util import Finalize
from typing import Any

from pipeline.verify.judgement import WALL_TIMEOUT
from pipeline.verify.limits import MathLimits
from pipeline.verify.math.decide import Unparsable, decide
from pipeline.verify.math.notation import without_grouping
from pipeline.verify.math.policy import Policy

LIMIT_OUTCOMES = ("memory_limit", "cpu_limit", WALL_TIMEOUT, "crash")

PATIENCE_S = 0.02
"""How often pebble looks for expired processes; its own 0.1 s ends a comparison 0.15 s later."""

DIGITS = 20
MAX_WORKING_DIGITS = 500
"""Two numbers are equal when their difference is still nothing at so many digits."""


MAX_COMPARISONS = 2_000
"""After so many a process is replaced, lest what the libraries hold counts against the memory of an answer."""


def compare_expressions(pairs: Sequence[tuple[str, str, Policy]], limits: MathLimits) -> list[str]:
    """What `decide` says, or one of LIMIT_OUTCOMES, for each (reference, answer, policy), in order."""
    from pebble import ProcessExpired

    outcomes, pool = [], _pool(limits.memory_mb)
    for gold, answer, policy in pairs:
        future = pool.schedule(compare, args=(gold, answer, policy, limits.cpu_s), timeout=limits.wall_s)
        try:
            outcomes.append(future.result())
        except TimeoutError:
            outcomes.append(WALL_TIMEOUT)
        except MemoryError:
            outcomes.append("memory_limit")
        except ProcessExpired as error:
            outcomes.append("cpu_limit" if error.exitcode == -signal.SIGPROF else "crash")
    return outcomes


_pools: dict[tuple[int, int], Any] = {}


def _pool(memory_mb: int) -> Any:  # noqa: ANN401 - pebble is not typed
    """The process that compares, kept until `close`: its start and first formula take a second, each other 8 ms."""
    from pebble import CONSTS, ProcessPool

    key = os.getpid(), memory_mb  # a fork of this process needs one of its own
    if key not in _pools:
        CONSTS.sleep_unit = PATIENCE_S
        # Not `fork`: the caller may be a Dask worker with threads. The server imports math-verify once, so that a new
        # process after a kill costs milliseconds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["math_verify", "pipeline.verify.math.equality"])
        _pools[key] = ProcessPool(1, MAX_COMPARISONS, _start_worker, (memory_mb,), context)
        Finalize(None, close, exitpriority=10)  # `atexit` comes too late in a worker: it waits for its children
    return _pools[key]


def close() -> None:
    """End the processes that compare. A run does so before its guard ends their server, without which they hang."""
    for (owner, _), pool in _pools.items():
        if owner == os.getpid():
            pool.stop()
            pool.join()  # a process that is still starting would fail aloud
    _pools.clear()


def _start_worker(memory_mb: int) -> None:
    import logging
    import resource

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call that its own timeout is off
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def compare(gold: str, answer: str, policy: Policy, cpu_s: float) -> str:
    """Compare two answers in this process, which the kernel ends after `cpu_s` more CPU seconds."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)  # RLIMIT_CPU knows whole seconds only
    try:
        return decide(gold, answer, policy, Symbols(policy))
    except MemoryError:
        return "memory_limit"
    except Exception:  # noqa: BLE001 - sympy raises anything on model text
        return "crash"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class Symbols:
    """Compares formulas under a task's policy; called as a `Same` of the comparators."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __call__(self, kind: str, gold: tuple[str, ...], answer: tuple[str, ...]) -> bool:
        """Raises Unparsable for a formula that cannot be read."""
        letters = set(re.findall(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", " ", "".join(gold))))
        wanted = [parse_expression(text, None) for text in gold]
        got = [parse_expression(text, letters) for text in answer]
        if kind == "value":
            return self._same_value(wanted[0], got[0])
        return _proportional(wanted[0] - wanted[1], got[0] - got[1], positive=kind == "inequality")

    def _same_value(self, wanted: Any, got: Any) -> bool:  # noqa: ANN401 - sympy objects
        if wanted == got:
            return True
        if not wanted.free_symbols and not got.free_symbols:
            zero = _vanishes(wanted - got)
            if zero is False and (self.policy.decimals is not None or self.policy.relative is not None):
                return self._near(wanted, got)
            return _library_says_equal(wanted, got) if zero is None else zero
        compared = [same for point in _points(wanted, got) if (same := _agree_at(point, wanted, got)) is not None]
        if len(compared) >= 3:
            return all(compared)
        return _library_says_equal(wanted, got)

    def _near(self, wanted: Any, got: Any) -> bool:  # noqa: ANN401
        difference, size = abs((wanted - got).evalf(DIGITS)), abs(wanted.evalf(DIGITS))
        allowed = 0.0 if self.policy.decimals is None else 0.5 * 10.0**-self.policy.decimals
        if self.policy.relative is not None:
            allowed = max(allowed, self.policy.relative * size)
        return bool(difference <= allowed)


_COMMANDS = frozenset(
    re.findall(
        r"\w+",
        "frac sqrt cdot pi sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp binom sum prod infty "
        "lfloor rfloor lceil rceil max min gcd alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa "
        "lambda mu nu xi rho sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Sigma Phi Psi Omega to",
    )
)
_TOKENS = re.compile(r"(?:\\[a-zA-Z]+|\\\\|[\s\d.a-zA-Z+\-*/^_(){}\[\]!|,=&])*")

_MISREAD = re.compile(r"(?:[-+]\s*){3}|!\s*!|\d\s+\d|\d\.\d*\.|\.\s*$")
_NAMES = re.compile(r"\\[a-zA-Z]+|([a-zA-Z]+)(_\{[^{}]*\})?|_\{[^{}]*\}")
_BOUND = re.compile(r"\\(?:sum|prod)(?![a-zA-Z])")


def parse_expression(text: str, letters: set[str] | None) -> Any:  # noqa: ANN401 - sympy object
    r"""A formula as a sympy expression, with exact numbers and capital letters kept apart from small ones.

    `letters`: those of the reference, None for the reference itself; a row of letters is a product only of these.
    Raises Unparsable for what is not understood to its last sign: math-verify drops primes and percent signs, reads
    `2 3` as 5 and `n!!` as (n!)!, and takes any command or word for a variable.
    """
    import sympy
    from math_verify import LatexExtractionConfig, parse

    refused = Unparsable(reference=letters is None)
    commands = set(re.findall(r"\\([a-zA-Z]+)", text)) - {"lg", "degree"}
    text = re.sub(r"(\d+(?:\.\d+)?)\s*\\degree(?![a-zA-Z])", r"{(\1\\cdot\\frac{\\pi}{180})}", text)
    text = re.sub(r"\\lg(?![a-zA-Z])", r"\\log_{10}", text)
    if not commands <= _COMMANDS or not _TOKENS.fullmatch(text) or _MISREAD.search(text):
        raise refused
    bare = re.sub(r"\\[a-zA-Z]+|_\s*\{[^{}]*\}", " ", text)
    for word in re.findall(r"[a-zA-Z]{2,}", bare):
        if len(word) > 4 or (letters is not None and not set(word) <= letters):
            raise refused
    text = without_grouping(text)
    text = re.sub(r"(\d*)\.(\d+)", lambda m: rf"{{\frac{{{m[1]}{m[2]}}}{{1{'0' * len(m[2])}}}}}", text)
    text = re.sub(r"(?<![\w}^_.])(\d+)/(\d+)(?=\s*[\\a-zA-Z(])", r"\\frac{\1}{\2}", text)
    text = _NAMES.sub(_spell_names, text)
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
        raise refused from None
    value = found[0] if found else None
    if not isinstance(value, sympy.Expr) or not _names_kept(text, value):
        raise refused
    if not _BOUND.search(text):
        value = value.subs({symbol: sympy.I for symbol in value.free_symbols if symbol.name == "i"})
    return value.doit()


def _spell_names(found: re.Match[str]) -> str:
    """Letters in a row as a product, since math-verify drops some; capitals under a name that it does not lower."""
    if not found[1]:
        return found[0]
    subscript = re.sub(r"[\W_]", "", found[2] or "")
    names = [f"z_{{9{ord(letter)}}}" if letter.isupper() else letter for letter in found[1]]
    if subscript:
        names[-1] = names[-1][:-1] + subscript + "}" if found[1][-1].isupper() else f"{names[-1]}_{{{subscript}}}"
    return r" \cdot ".join(names)


def _names_kept(text: str, value: Any) -> bool:  # noqa: ANN401
    """Whether every variable of a formula is one of the parsed expression."""
    import sympy

    if _BOUND.search(text):
        return True
    wanted = {re.sub(r"[\W_]", "", found[0]) for found in _NAMES.finditer(text) if found[1]} - {"e"}
    names = {symbol.name for symbol in value.free_symbols} | {str(f.func) for f in value.atoms(sympy.Function)}
    return wanted <= {re.sub(r"[^a-z0-9]", "", name.lower()) for name in names}


def _vanishes(difference: Any) -> bool | None:  # noqa: ANN401
    """Whether a number is zero; None where it has no value."""
    import sympy

    if difference.is_zero:
        return True
    if isinstance(difference, sympy.Rational):
        return bool(difference == 0)
    value = difference.evalf(DIGITS, maxn=MAX_WORKING_DIGITS)
    parts = value.as_real_imag() if value.is_number else (None,)
    if not all(isinstance(part, sympy.Float | sympy.Rational) for part in parts):
        return None
    # A part whose digits all cancelled has one bit of precision left.
    return all(part == 0 or (isinstance(part, sympy.Float) and part._prec <= 1) for part in parts)


def _points(*expressions: Any) -> list[dict[Any, Any]]:  # noqa: ANN401
    """Values for the variables: rationals without meaning, five times positive, four times of mixed sign."""
    import sympy

    symbols = sorted(set().union(*(e.free_symbols for e in expressions)), key=lambda symbol: symbol.name)
    points = []
    for row in range(9):
        values = [
            sympy.Rational(sympy.prime(4 + 3 * row + 2 * i), sympy.prime(9 + row + i)) for i in range(len(symbols))
        ]
        if row >= 5:
            values = [-value if (i + row) % 2 or row >= 7 else value for i, value in enumerate(values)]
        points.append(dict(zip(symbols, values, strict=True)))
    return points


def _value_at(point: dict[Any, Any], expression: Any) -> Any:  # noqa: ANN401
    """The value of an expression at a point, None where it has none."""
    value = expression.subs(point)
    return value if value.is_number and value.is_finite is not False else None


def _agree_at(point: dict[Any, Any], wanted: Any, got: Any) -> bool | None:  # noqa: ANN401
    """Whether two expressions agree at a point; None where one has no value or, at negative values, no real one.

    Variables under a root or a logarithm are meant to be positive: `\\sqrt{1/n}` is `1/\\sqrt{n}`, but |x| is not x.
    """
    first, second = _value_at(point, wanted), _value_at(point, got)
    if first is None or second is None:
        return None
    if any(value < 0 for value in point.values()) and not (_is_real(first) and _is_real(second)):
        return None
    return _vanishes(first - second)


def _is_real(value: Any) -> bool:  # noqa: ANN401
    import sympy

    _, imaginary = value.evalf(DIGITS).as_real_imag()
    return isinstance(imaginary, sympy.Number) and abs(imaginary) < 1e-15


def _proportional(wanted: Any, got: Any, positive: bool) -> bool:  # noqa: ANN401
    """Whether one side is the other times a constant that is not zero (`positive`: above zero)."""
    factors = []
    for point in _points(wanted, got):
        first, second = _value_at(point, wanted), _value_at(point, got)
        if first is None or second is None:
            continue
        if _vanishes(first) is not False or _vanishes(second) is not False:
            return False
        factors.append(first / second)
    if len(factors) < 3 or not wanted.free_symbols:
        return False
    if not _is_real(factors[0]) or (positive and factors[0].evalf(DIGITS) <= 0):
        return False
    return all(_vanishes(factor - factors[0]) for factor in factors[1:])


def _library_says_equal(wanted: Any, got: Any) -> bool:  # noqa: ANN401
    from math_verify import verify

    return bool(verify(wanted, got, timeout_seconds=None, raise_on_error=True))
