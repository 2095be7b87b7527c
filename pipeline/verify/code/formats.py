"""Read the tests of a task from the formats of the field.

A reference is {"tests", "function"?, "private_tests"?, "setup"?, "comparator"?}; its tests show their format:

own            [{"args": [1, 2], "expected": 3}, ...]
SYNTHETIC-1/2  {"language": "python", "test_cases": [{"type", "fn_name"?, "input", "output"}, ...]} with the types
               stdin_stdout and function_call
APPS, TACO     {"inputs": [...], "outputs": [...], "fn_name"?} of texts, lists of lines or arguments, or those in a list
LiveCodeBench  [{"input", "output", "testtype": "stdin" or "functional", "metadata"?: {"func_name"}}, ...], its private
and DeepCoder  tests packed
MBPP           ["assert f(1) == 2", ...]
HumanEval      a text that defines check(candidate)

Each may also be the JSON text of that.
"""

import json
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.verify.code.asserts import called_name, read_asserts
from pipeline.verify.code.compare import NAMES, Comparator
from pipeline.verify.code.packed import unpack_text
from pipeline.verify.code.suite import BadReference, Call, Stdin, Suite, Test

Json = Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def read_suite(reference: Mapping[str, Json] | None) -> Suite:
    """The tests of a reference. Raises BadReference, which says what is wrong with which test."""
    if reference is None or reference.get("tests") is None:
        raise BadReference("there are no tests; a code reference is an object with `tests`")
    function = entry_name(reference.get("function"))
    tests: list[Test] = []
    for field in ("tests", "private_tests"):
        if reference.get(field) is not None:
            tests += _read_tests(_parsed(reference[field], field), function, field)
    setup = reference.get("setup") or ""
    if not isinstance(setup, str):
        raise BadReference(f"setup is {_found(setup)}; it is Python source")
    setup = setup if setup.strip() else ""
    called = [test.function for test in tests if isinstance(test, Call)]
    if any(isinstance(test, Stdin) for test in tests):
        if not all(isinstance(test, Stdin) for test in tests):
            raise BadReference("tests mix whole programs and functions; an answer can only be one of them")
        if not any(test.expected.strip() for test in tests if isinstance(test, Stdin)):
            raise BadReference("no test expects any output, so that every program that prints nothing would pass")
        function = None
    elif function is None:
        function = called[0] if called else next(filter(None, map(called_name, tests)), None)
    default = Comparator("exact" if is_own(reference["tests"]) else "tokens")
    rule = reference.get("comparator")
    return Suite(function, setup, tuple(tests), default if rule is None else _comparator(rule))


def is_own(tests: Json) -> bool:
    """Whether tests are in our own format, judged by its first one."""
    return isinstance(tests, list) and bool(tests) and isinstance(tests[0], dict) and "args" in tests[0]


def entry_name(value: Json) -> str | None:
    """A function's name, given as such or as LiveCodeBench's metadata. Raises BadReference for no name."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _parsed(value, "function")
    if isinstance(value, dict):
        value = value.get("func_name") or value.get("fn_name")
    if value is None:
        return None
    if not isinstance(value, str) or not value.isidentifier():
        raise BadReference(f"function is {_found(value)}; it is the name of the function that the tests call")
    return value


def _comparator(rule: Json) -> Comparator:
    settings = rule if isinstance(rule, dict) else {"name": rule}
    if settings.get("name") not in NAMES or not settings.keys() <= {"name", "relative", "absolute"}:
        raise BadReference(
            f"comparator is {_found(rule)}; it is one of {', '.join(NAMES)}, or an object with that name"
        )
    tolerances = [settings.get(name, 0.0) for name in ("relative", "absolute")]
    if any(type(value) not in (int, float) or not 0 <= value < 1 for value in tolerances):
        raise BadReference(f"comparator is {_found(rule)}; relative and absolute are numbers from 0 to below 1")
    if any(tolerances) and settings["name"] != "tokens":
        raise BadReference(f"comparator is {_found(rule)}; only `tokens` takes a tolerance")
    return Comparator(settings["name"], *map(float, tolerances))


def _parsed(value: Json, field: str) -> Json:
    """JSON text as its value and packed tests as theirs; source of tests stays text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    if any(letter in value for letter in "\n ("):
        return value
    try:
        return json.loads(unpack_text(value))
    except (ValueError, RecursionError) as error:
        raise BadReference(
            f"{field}: {_found(value)} is neither JSON nor Python, and as packed tests it {error}"
        ) from None


def _read_tests(tests: Json, function: str | None, field: str) -> list[Test]:
    """The tests of one field, in the format that their first one shows."""
    if isinstance(tests, str):
        return list(_asserts([tests], function, field))
    if isinstance(tests, dict):
        return list(_of_object(tests, function, field))
    if not isinstance(tests, list) or not tests:
        raise BadReference(f"{field} is {_found(tests)}; it is a list with at least one test")
    if all(isinstance(test, str) for test in tests):
        return list(_asserts(tests, function, field))
    found: list[Test] = []
    for index, test in enumerate(tests):
        place = f"{field}[{index}]"
        if not isinstance(test, dict):
            raise BadReference(f"{place} is {_found(test)}; every test is an object, or all are texts")
        found.append(_one(test, function, place))
    return found


def _asserts(texts: list[str], function: str | None, field: str) -> Iterator[Test]:
    for index, text in enumerate(texts):
        try:
            yield from read_asserts(text, function)
        except BadReference as bad:
            raise BadReference(f"{field}[{index}] {bad}") from None


def _of_object(tests: dict[str, Json], function: str | None, field: str) -> Iterator[Test]:
    """SYNTHETIC's verification_info and the input_output of APPS."""
    if "test_cases" in tests:
        language = tests.get("language") or "python"
        if not isinstance(language, str) or language.lower() not in ("python", "python3", "py"):
            raise BadReference(f"{field}: language is {_found(language)}; only python is run")
        yield from _read_tests(tests["test_cases"], function, f"{field}.test_cases")
        return
    given, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(given, list) or not isinstance(outputs, list) or not given or len(given) != len(outputs):
        raise BadReference(f"{field} has neither `test_cases` nor as many `inputs` as `outputs`, found {_found(tests)}")
    name = entry_name(tests.get("fn_name") or None) or function
    for index, (before, after) in enumerate(zip(given, outputs, strict=True)):
        yield _pair(before, after, name, f"{field}[{index}]")


def _one(test: dict[str, Json], function: str | None, place: str) -> Test:
    """One test that is an object."""
    if "args" in test:
        if function is None:
            raise BadReference(f"{place} calls a function, but no `function` is named")
        if not isinstance(test["args"], list) or "expected" not in test:
            raise BadReference(f"{place} is {_found(test)}; it is an object with a list `args` and a value `expected`")
        return Call(function, test["args"], (test["expected"],))
    kind = test.get("testtype") or test.get("type")
    if kind not in ("stdin", "stdin_stdout", "functional", "function_call") or not {"input", "output"} <= test.keys():
        raise BadReference(f"{place} is {_found(test)}; no known format has such a test")
    if kind in ("stdin", "stdin_stdout"):
        return _pair(test["input"], test["output"], None, place)
    name = entry_name(test.get("fn_name") or None) or entry_name(test.get("metadata") or None) or function
    if name is None:
        raise BadReference(f"{place} calls a function, but names none")
    return _pair(test["input"], test["output"], name, place)


def _pair(given: Json, output: Json, function: str | None, place: str) -> Test:
    """An input and its output, for the function or, without one, for a whole program."""
    if function is None:
        return Stdin(_text(given, f"{place}: input"), _text(output, f"{place}: output"))
    if isinstance(given, list):
        wrapped = [output[0]] if isinstance(output, list) and len(output) == 1 else []
        return Call(function, given, (output, *wrapped))
    if not isinstance(given, str):
        raise BadReference(f"{place}: input is {_found(given)}; it is a list of arguments, or one JSON text a line")
    try:
        arguments = [json.loads(line) for line in given.split("\n") if line.strip()]
        return Call(function, arguments, (json.loads(output) if isinstance(output, str) else output,))
    except (ValueError, RecursionError):
        raise BadReference(f"{place}: {_found([given, output])}; the arguments and the output are JSON texts") from None


def _text(value: Json, place: str) -> str:
    """Text as it is, or lines in a list, or such a list in a list."""
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if isinstance(value, str):
        return value
    lines = value if isinstance(value, list) else [value]
    if not all(isinstance(line, str | int | float) and not isinstance(line, bool) for line in lines):
        raise BadReference(f"{place} is {_found(value)}; it is text, or a list of lines")
    return "\n".join(map(str, lines))


def _found(value: Json) -> str:
    """A value short enough for a message."""
    return _SHORT.repr(value).encode("ascii", "backslashreplace").decode()
