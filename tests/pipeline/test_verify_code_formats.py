"""Tests in every format of the field are read into one shape, bad ones named, and outputs compared by named rules."""

import base64
import json
import pickle
import subprocess
import sys
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sandbox import BoxResult
from pipeline.verify import Item, Judgement, Limits, judge_once
from pipeline.verify.code import packed, run
from pipeline.verify.code.asserts import read_asserts
from pipeline.verify.code.boxed import data as boxed_data
from pipeline.verify.code.compare import NAMES, Comparator, texts_equal, values_equal
from pipeline.verify.code.extract import NoProgram, extract_program
from pipeline.verify.code.formats import read_suite
from pipeline.verify.code.packed import pickled_text, unpack_text
from pipeline.verify.code.suite import BadReference, Call, Expression, Script, Stdin
from pipeline.verify.code.values import decode, show

LIMITS = Limits.model_validate({"code": {"cpu_s": 1, "wall_s": 20, "memory_mb": 384}})


def judge(source: str, reference: dict) -> Judgement:
    return judge_once([Item("k", "code", f"```python\n{source}\n```", "complete", reference)], LIMITS)[0]


def packed_tests(tests: list) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


PUBLIC = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
PRIVATE = [{"input": "4 5\n", "output": "9\n", "testtype": "stdin"}]
SYNTHETIC_CALL = {"type": "function_call", "fn_name": "f", "input": [1, [2]], "output": [3]}


@pytest.mark.parametrize(
    ("reference", "tests"),
    [
        ({"function": "f", "tests": [{"args": [1], "expected": None}]}, [Call("f", [1], (None,))]),
        ({"tests": {"test_cases": [{"type": "stdin_stdout", "input": "1", "output": "2"}]}}, [Stdin("1", "2")]),
        ({"tests": {"language": "python", "test_cases": [SYNTHETIC_CALL]}}, [Call("f", [1, [2]], ([3], 3))]),
        ({"tests": json.dumps({"test_cases": [SYNTHETIC_CALL]})}, [Call("f", [1, [2]], ([3], 3))]),
        ({"tests": {"inputs": ["1\n"], "outputs": ["2\n"]}}, [Stdin("1\n", "2\n")]),
        ({"tests": {"inputs": [["1", "2"]], "outputs": [["3", "4"]]}}, [Stdin("1\n2", "3\n4")]),
        ({"tests": {"inputs": [[["1", "2"]]], "outputs": [[[3]]]}}, [Stdin("1\n2", "3")]),
        ({"tests": {"inputs": [[1, 2]], "outputs": [3], "fn_name": "f"}}, [Call("f", [1, 2], (3,))]),
        ({"tests": {"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "f"}}, [Call("f", [1, 2], ([3], 3))]),
        ({"tests": {"inputs": ['"a"\n[1]'], "outputs": ["true"], "fn_name": "f"}}, [Call("f", ["a", [1]], (True,))]),
        ({"tests": json.dumps(PUBLIC)}, [Stdin("1 2\n", "3\n")]),
        ({"tests": PUBLIC, "private_tests": packed_tests(PRIVATE)}, [Stdin("1 2\n", "3\n"), Stdin("4 5\n", "9\n")]),
        ({"tests": PUBLIC, "function": "{}"}, [Stdin("1 2\n", "3\n")]),
        (
            {"tests": [{"input": "1\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "f"}}]},
            [Call("f", [1, 2], (3,))],
        ),
        (
            {"function": {"func_name": "f"}, "tests": [{"input": "1", "output": "3", "testtype": "functional"}]},
            [Call("f", [1], (3,))],
        ),
        ({"tests": ["assert f(1) == 2", "assert f(2) == 4"]}, [Expression("f(1)", (2,)), Expression("f(2)", (4,))]),
        (
            {"function": "f", "tests": "def check(candidate):\n    assert candidate(1) == 2\n\ncheck(f)\n"},
            [Expression("f(1)", (2,))],
        ),
    ],
)
def test_every_format_is_read_into_one_shape(reference: dict, tests: list):
    assert list(read_suite(reference).tests) == tests


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (None, "no tests"),
        ({}, "no tests"),
        ({"tests": []}, "at least one test"),
        ({"tests": 7}, "at least one test"),
        ({"tests": [7]}, "tests[0] is 7"),
        ({"tests": [{"args": [1], "expected": 2}]}, "no `function` is named"),
        ({"function": "a b", "tests": [{"args": [1], "expected": 2}]}, "function is 'a b'"),
        ({"function": "f", "tests": [{"args": 1, "expected": 2}]}, "a list `args`"),
        ({"tests": [{"input": "1"}]}, "no known format"),
        ({"tests": {"test_cases": [SYNTHETIC_CALL], "language": "cpp"}}, "only python is run"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "as many `inputs` as `outputs`"),
        ({"tests": {"inputs": ["1"], "outputs": [{"a": 1}]}}, "output is {'a': 1}"),
        ({"tests": {"inputs": ["1", "2"], "outputs": [" ", "\n"]}}, "prints nothing would pass"),
        ({"tests": {"inputs": ["nonsense"], "outputs": ["1"], "fn_name": "f"}}, "are JSON texts"),
        ({"tests": {"inputs": [7], "outputs": ["1"], "fn_name": "f"}}, "list of arguments"),
        ({"tests": [*PUBLIC, {**SYNTHETIC_CALL}]}, "mix whole programs and functions"),
        ({"tests": PUBLIC, "private_tests": "QUJD"}, "is not zlib"),
        ({"tests": "not.base64!"}, "is not base64"),
        ({"tests": ["assert f(1) =="]}, "is not Python"),
        ({"tests": ["f(1)"]}, "holds no assert"),
        ({"tests": ["((((" * 4000]}, "is not Python"),
        ({"tests": ["assert f(1) == " + "-" * 5000 + "1"]}, "is not Python"),
        ({"tests": ["assert f(1) == " + "+".join(["x"] * 5000)]}, "is not Python"),
        ({"tests": "def check(candidate):\n    assert candidate(1)"}, "the name of the function to check"),
        ({"tests": PUBLIC, "comparator": "fuzzy"}, "comparator is 'fuzzy'"),
        ({"tests": PUBLIC, "comparator": {"name": "exact", "absolute": 0.1}}, "only `tokens` takes a tolerance"),
        ({"tests": PUBLIC, "comparator": {"name": "tokens", "absolute": 2}}, "from 0 to below 1"),
        ({"tests": PUBLIC, "setup": 7}, "setup is 7"),
    ],
)
def test_a_bad_reference_is_unknown_and_says_what_is_wrong(reference: dict | None, said: str):
    [judgement] = judge_once([Item("k", "code", "```python\nprint(3)\n```", "complete", reference)], LIMITS)
    assert (judgement.verdict, judgement.score, judgement.reason) == ("unknown", None, "bad_reference")
    assert said in judgement.evidence["error"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "args",
                    "expected",
                    "input",
                    "output",
                    "type",
                    "testtype",
                    "inputs",
                    "outputs",
                    "fn_name",
                    "test_cases",
                ]
            ),
            inner | st.sampled_from(["stdin", "functional", "function_call", "stdin_stdout"]),
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(
    st.fixed_dictionaries(
        {"tests": JSON_VALUES},
        optional=dict.fromkeys(("function", "private_tests", "setup", "comparator"), JSON_VALUES),
    )
)
def test_any_reference_is_read_or_refused(reference: dict):
    try:
        assert read_suite(reference).tests
    except BadReference as bad:
        assert str(bad)


class Harmful:
    def __reduce__(self) -> tuple:
        raise_it: tuple = (exec, ("raise SystemExit('unpickled')",))
        return raise_it


@pytest.mark.parametrize("value", [Harmful(), ["a", "b"], {"a": "b"}, 7, None, ("a",), ["[]"], bytearray(b"x")])
@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_of_anything_but_one_text_is_refused_unread(value: object, protocol: int):
    with pytest.raises(ValueError, match=r"opcode|exactly one"):
        pickled_text(pickle.dumps(value, protocol))


@given(st.text(), st.integers(2, 5))
def test_packed_text_is_read_whatever_the_pickle_protocol(text: str, protocol: int):
    text = text.encode(errors="ignore").decode()
    assert unpack_text(base64.b64encode(zlib.compress(pickle.dumps(text, protocol))).decode()) == text


@given(st.binary(max_size=200))
def test_any_bytes_are_text_or_refused(data: bytes):
    for packed_form in (base64.b64encode(data), base64.b64encode(zlib.compress(data))):
        try:
            unpack_text(packed_form.decode())
        except ValueError as error:
            assert str(error)


def test_packed_tests_that_unpack_to_too_much_or_are_cut_are_refused(monkeypatch: pytest.MonkeyPatch):
    whole = packed_tests([{"input": "0" * 100_000, "output": "", "testtype": "stdin"}])
    assert len(unpack_text(whole)) > 100_000
    with pytest.raises(ValueError, match=r"is cut short|is not base64"):
        unpack_text(whole[: len(whole) // 8 * 4])
    monkeypatch.setattr(packed, "MAX_UNPACKED", 1000)
    with pytest.raises(ValueError, match="unpacks to more than"):
        unpack_text(whole)


@pytest.mark.parametrize(
    ("text", "tests"),
    [
        ("assert f(2) == [1, 2], 'why'", [Expression("f(2)", ([1, 2],))]),
        ("assert 5 == f(2)", [Expression("f(2)", (5,))]),
        ("assert f(2) is None", [Expression("f(2)", (None,))]),
        ("assert set(f(2)) == set((1, 2))", [Expression("set(f(2))", ({1, 2},))]),
        ("assert len(f(2)) == 3", [Expression("len(f(2))", (3,))]),
        ("assert f(2) == -(10 ** 9 + 7)", [Expression("f(2)", (-1000000007,))]),
        ("assert f(2) == float('inf')", [Expression("f(2)", (float("inf"),))]),
        ("assert f([1] * 3)[0] == 1", [Expression("f([1] * 3)[0]", (1,))]),
        ("assert f(2)", [Expression("bool(f(2))", (True,))]),
        ("assert not f(2)", [Expression("bool(f(2))", (False,))]),
        ("assert Stack().push(1) == 1", [Expression("Stack().push(1)", (1,))]),
        ("assert abs(f(2) - 0.5) < 1e-6", [Expression("f(2)", (0.5,), Comparator("tokens", 0.0, 1e-6))]),
        (
            "import math\nassert math.isclose(f(2), 0.5, rel_tol=1e-3)",
            [Expression("f(2)", (0.5,), Comparator("tokens", 1e-3, 0.0))],
        ),
        ("assert f(2) == 4\nassert True, 'done'", [Expression("f(2)", (4,))]),
    ],
)
def test_an_assert_becomes_an_expression_and_its_value(text: str, tests: list):
    assert read_asserts(text, None) == tests


@pytest.mark.parametrize(
    "text",
    [
        "assert f(2) == g(2)",
        "assert f(2) != 4",
        "assert f(2) in (1, 2)",
        "assert f(2) > 1 and f(3) > 2",
        "assert all(f(i) == i for i in range(5))",
        "assert isinstance(f(2), int)",
        "assert [f(2) == 4] == [True]",
        "assert (f(2) == 4) == True",
        "assert eval(f(2)) == 4",
        "assert abs(f(2) - g(2)) < 1e-6",
        "assert (lambda x: x == 4)(f(2)) == True",
        "x = [1]\nassert f(x) == [1]",
        "for i in range(5):\n    assert f(i) == i",
        "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError",
    ],
)
def test_what_compares_inside_stays_a_script(text: str):
    [test] = read_asserts(text, None)
    assert isinstance(test, Script) and "f" in test.names


SCRIPT = """
import random

def check(candidate):
    for _ in range(20):
        n = random.randint(1, 100)
        assert candidate(n, by=2) == [n, n * 2], "doubled"
    try:
        candidate(-1)
    except ValueError as error:
        assert "negative" in str(error)
    else:
        raise AssertionError("no error")
    assert candidate(3)[0] == 3
"""


def test_asserts_that_run_in_the_box_are_called_weak():
    reference = {"function": "f", "tests": SCRIPT}
    right = "def f(n, by=3):\n    if n < 0: raise ValueError('negative')\n    return [n, n * by]"
    assert judge(right, reference) == Judgement("pass", 1.0, "equal", {"passed": 2, "tests": 2, "weak": 1})
    no_error = judge("def f(n, by=3): return [n, n * by]", reference)
    assert (no_error.reason, no_error.score, no_error.evidence["got"]) == ("wrong_answer", 0.5, "False")
    assert judge(right.replace("by]", "by, 0]"), reference).reason == "wrong_answer"
    assert judge(right.replace("n * by", "object()"), reference).reason == "bad_type"


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("def f(xs): xs.sort()", "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]"),
        ("def f(d, s):\n    d['a'] = 1\n    s.add(2)", "d, s = {}, set()\nf(d, s)\nassert d == {'a': 1} and s == {2}"),
        ("seen = []\ndef f(n): seen.append(n)\ndef g(): return seen", "f(5)\nassert g() == [5]"),
    ],
)
def test_what_a_call_changes_is_seen_by_the_asserts_after_it(source: str, tests: str):
    assert judge(source, {"tests": [tests]}).verdict == "pass"
    assert judge("def f(*a): pass\ndef g(): return []", {"tests": [tests]}).reason == "wrong_answer"


def test_a_program_cannot_change_what_it_is_compared_with():
    tests = "for n in range(4):\n    xs = [n, 2, 1]\n    assert f(xs) == sorted(xs)"
    assert judge("def f(xs): return sorted(xs)", {"tests": [tests]}).verdict == "pass"
    assert judge("def f(xs):\n    xs.clear()\n    return []", {"tests": [tests]}).reason == "wrong_answer"


def test_a_helper_of_the_setup_is_called_beside_the_asserts_and_the_program_behind_them():
    reference = {
        "function": "undo",
        "setup": "def twice(n):\n    return 2 * n\n\ndef undo(n):\n    '''To be written.'''\n",
        "tests": "def check(candidate):\n    for n in range(9):\n        assert candidate(twice(n)) == n\n",
    }
    assert judge("def undo(n): return n // 2", reference).verdict == "pass"
    assert judge("def twice(n): return n\ndef undo(n): return n", reference).verdict == "fail"


@pytest.mark.parametrize("setup", ["import nowhere", "def f(:", "while True: pass", "raise SystemExit"])
def test_a_setup_that_fails_alone_is_not_the_programs_fault(setup: str):
    judgement = judge("def f(n): return n", {"tests": ["assert f(1) == 1"], "setup": setup})
    assert (judgement.verdict, judgement.reason) == ("unknown", "bad_reference")
    assert judgement.evidence["error"].startswith("setup: ")


def test_a_program_cannot_blame_the_setup():
    blame = 'import os\nos.write(3, b\'{"status": "bad_setup"}\')\nos._exit(0)'
    assert judge(blame, {"tests": ["assert f(1) == 1"], "setup": "import math"}).reason == "no_result"


@pytest.mark.parametrize(
    ("got", "expected", "names"),
    [
        ("a b\n", "a b", ("exact", "tokens", "unordered_lines")),
        ("a  b \n\n", "a b\n", ("tokens", "unordered_lines")),
        ("a\nb\n", "b\na\n", ("unordered_lines",)),
        ("a\nb", "a b", ("tokens",)),
        ("1.50", "1.5", ("tokens", "unordered_lines")),
        ("1e3 007 +5", "1000 7 5", ("tokens", "unordered_lines")),
        ("100000000000000000001", "100000000000000000000", ()),
        ("9007199254740993.0", "9007199254740992.0", ()),
        ("0.3333330001", "0.333333", ()),
        ("YES", "yes", ()),
        ("NaN inf -Infinity", "nan INF -inf", ("tokens",)),
        ("nan", "0", ()),
        ("inf", "-inf", ()),
        ("1_000", "1000", ()),
        ("٣", "3", ()),
        ("0x10", "16", ()),
        ("", "0", ()),
        ("3 3", "3", ()),
        ("a\na", "a", ()),
        ("1e999999", "1e999998", ()),
        ("  a", "a", ("tokens", "unordered_lines")),
    ],
)
def test_texts_are_compared_by_the_rule_that_is_named(got: str, expected: str, names: tuple[str, ...]):
    assert tuple(name for name in NAMES if texts_equal(got, expected, Comparator(name))) == names  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("0.3333330001", "0.333333", True),
        ("0.34", "0.333333", False),
        ("1", "1.0000001", True),
        ("1000000", "1000001", False),
        ("1000000.0", "1000001", True),
        ("nan", "1.0", False),
        ("inf", "1e300", False),
        ("1e999999", "2e999999", False),
        ("word", "word", True),
    ],
)
def test_a_tolerance_is_for_numbers_and_never_for_two_integers(got: str, expected: str, same: bool):
    assert texts_equal(got, expected, Comparator("tokens", relative=1e-5)) is same


@pytest.mark.parametrize(
    ("got", "expected", "name", "same"),
    [
        (1.0, 1, "tokens", True),
        (1.5, 1, "tokens", False),
        (True, 1, "tokens", True),
        (2**53 + 1, float(2**53), "exact", True),
        (float(2**53), 2**53 + 1, "tokens", False),
        (float("nan"), float("nan"), "tokens", True),
        (float("nan"), 0.0, "tokens", False),
        (float("inf"), float("inf"), "exact", True),
        (float("-inf"), float("inf"), "exact", False),
        (float("inf"), 10**400, "tokens", False),
        (10**400, 1.0, "tokens", False),
        ((1, 2), [1, 2], "exact", True),
        ([1, 2], (1, 2), "tokens", False),
        ({1: 2}, {"1": 2}, "exact", True),
        ({1: 2, 3: 4}, {"1": 2}, "exact", False),
        (frozenset({1}), {1}, "tokens", True),
        ([2, [1], 1], [1, 2, [1]], "unordered_lines", True),
        ([2, 2, 1], [1, 2, 1], "unordered_lines", False),
        ("1", 1, "tokens", False),
        (b"a", "a", "tokens", False),
    ],
)
def test_values_are_compared_by_the_rule_that_is_named(got: object, expected: object, name: Any, same: bool):
    assert values_equal(got, expected, Comparator(name)) is same


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**600), 2**600) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(st.integers() | st.text(), max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_what_the_box_encodes_is_read_back_equal(value: object):
    sent = json.loads(json.dumps(boxed_data.encode(value)))
    assert values_equal(decode(sent), value, Comparator("exact")) and show(sent)
    assert boxed_data.decode(sent) == value


@given(
    JSON_VALUES | st.lists(st.sampled_from(["d", "l", "i", "f", "b", "s", "x", [], 7, [["l", []]], "zz"]), max_size=3)
)
def test_whatever_a_box_sends_is_a_value_or_refused(sent: object):
    try:
        value = decode(sent)
    except ValueError:
        return
    assert value is None or type(value) in (bool, int, float, str, bytes, list, tuple, frozenset, dict)


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\nprint(1)\n```\nThis prints:\n```\n1\n```", "print(1)\n"),
        ("```python\nprint(1)\n```\nor\n```Python3\nprint(2)\n```", "print(2)\n"),
        ("```cpp\nint main() {}\n```\n```py\nprint(1)\n```", "print(1)\n"),
        ("~~~python\nprint('```')\n~~~", "print('```')\n"),
        ("````python\nprint('''\n```\n''')\n````", "print('''\n```\n''')\n"),
        ("1. So:\n   ```python\n   if 1:\n       print(1)\n   ```", "if 1:\n    print(1)\n"),
        ("```python title=a.py\nprint(1)\n```", "print(1)\n"),
        ("I think\n```python\nprint(0)\n```\n</think>\n```python\nprint(1)\n```", "print(1)\n"),
        ("```python\nprint(0)\n```\n</think>\nDone.", "no_code"),
        ("```python\nprint(0)", "truncated"),
        ("```python\nprint(0)\n```\nBetter:\n```python\nprint(1", "truncated"),
        ("```python\nprint(0)\n```\n```json\n{", "print(0)\n"),
        ("```cpp\nint main() {}\n```", "no_code"),
        ("print(1)", "no_code"),
    ],
)
def test_a_whole_program_is_the_last_closed_python_block_after_the_thinking(answer: str, program: str):
    try:
        assert extract_program(answer, None) == program
    except NoProgram as none:
        assert str(none) == program


def test_expected_values_never_enter_the_box(monkeypatch: pytest.MonkeyPatch):
    """Canaries in every expected value of every format but scripts; none is in what the box is given."""
    given_to_boxes: list[bytes] = []
    boxed = run.run_boxed

    def spy(argv: list[str], stdin: bytes, limits: object) -> object:
        given_to_boxes.append(" ".join(argv).encode() + stdin)
        return boxed(argv, stdin, limits)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "run_boxed", spy)
    references: list[dict] = [
        {"function": "f", "tests": [{"args": [1], "expected": "canary"}]},
        {"tests": {"inputs": ["1"], "outputs": ["canary"]}},
        {"tests": ["assert f(1) == 'canary'", "assert 'canary' == f(2)"]},
        {"tests": [{"input": "1", "output": '"canary"', "testtype": "functional", "metadata": {"func_name": "f"}}]},
    ]
    for reference in references:
        assert judge("def f(n): return 'other'", reference).reason == "wrong_answer"
    assert len(given_to_boxes) == 4
    assert not any(b"canary" in given for given in given_to_boxes)
    judge("def f(n): return 'other'", {"tests": ["for i in range(3):\n    assert f(i) == 'canary'"]})
    assert b"canary" in given_to_boxes[-1], "a script holds what it expects, so the search does find it"


def test_many_tests_and_large_outputs_are_judged_in_several_boxes():
    inputs = [f"{n}\n" for n in range(40)]
    reference = {"tests": {"inputs": inputs, "outputs": ["x" * 100_000 + f" {n}" for n in range(40)]}}
    assert judge("print('x' * 100_000, int(input()))", reference).evidence == {"passed": 40, "tests": 40}
    late = judge("n = int(input())\nprint('x' * 100_000, min(n, 38))", reference)
    assert (late.score, late.evidence["test"]) == (39 / 40, 39)


@given(st.lists(st.text(max_size=8), max_size=40))
def test_batches_hold_all_tests_in_order_and_stay_small(tests: list[str]):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "BATCH_BYTES", 20)
        found = list(run.batches(tests))
    assert [test for batch in found for test in batch] == tests
    assert all(0 < len(batch) <= run.BATCH_TESTS and sum(map(len, batch)) <= 20 for batch in found)


def test_a_program_cannot_take_the_drivers_files_away():
    starve = "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))"
    judgement = judge(f"{starve}\ndef f(n): return n", {"tests": ["assert f(1) == 1", "assert f(2) == 2"]})
    assert (judgement.verdict, judgement.reason) == ("fail", "raised")  # the box refuses the call


def test_a_driver_that_finds_no_way_on_makes_the_verdict_unknown(monkeypatch):
    ended = BoxResult("exited", 1, b"", b"OSError: too many open files", 0.1)
    monkeypatch.setattr("pipeline.verify.code.run.run_boxed", lambda argv, stdin, limits: ended)
    judgement = judge("def f(n): return n", {"tests": ["assert f(1) == 1", "assert f(2) == 2"]})
    assert (judgement.verdict, judgement.reason) == ("unknown", "box_failed")
    assert "OSError" in judgement.evidence["error"]


def test_time_is_counted_a_test_and_not_in_all():
    reference = {"tests": {"inputs": ["1"] * 4, "outputs": ["1"] * 4}}
    source = "import time\nwhile time.process_time() < 0.6: pass\nprint(input())"
    assert judge(source, reference).verdict == "pass"


def test_the_driver_refuses_to_run_outside_a_box(tmp_path):
    (tmp_path / "kept").touch()
    line = [sys.executable, "-I", "-c", run.driver_source()]
    # No job is given: should it go on, it fails at once, before it kills or empties anything.
    done = subprocess.run(line, cwd=tmp_path, env={}, input=b"", capture_output=True, check=False)
    assert (done.returncode, (tmp_path / "kept").exists()) == (1, True)
    assert b"in a box only" in done.stderr
