"""Programs that cheat are never accepted, honest ones that look odd always are."""

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.verify import Item, Judgement, Limits, judge_items, judge_once
from pipeline.verify.code import extract_program, read_events, values_equal

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits.model_validate({"code": {"cpu_s": 1, "wall_s": 15, "memory_mb": 256}})
ADD = {
    "function": "add",
    "tests": [{"args": [1, 2], "expected": 3}, {"args": [-4, 4], "expected": 0}, {"args": [7, 5], "expected": 12}],
}


def judge(answer: str, reference: dict | None = ADD, limits: Limits = LIMITS) -> Judgement:
    return judge_once([Item("k", "code", answer, "complete", reference)], limits)[0]


def fenced(source: str) -> str:
    return f"Here it is:\n```python\n{source}\n```\nDone."


CHEATS = {
    "exits": "import sys\ndef add(a, b): sys.exit(0)",
    "exits while loading": "def add(a, b): return a + b\nraise SystemExit(0)",
    "exits without cleaning up": "import os\ndef add(a, b): os._exit(0)",
    "returns an object that equals everything": "class E:\n    __eq__ = lambda s, o: True\ndef add(a, b): return E()",
    "returns an int that equals everything": (
        "class E(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\ndef add(a, b): return E(99)"
    ),
    "returns a float that equals everything": (
        "class E(float):\n    __eq__ = lambda s, o: True\n    __repr__ = lambda s: '3'\ndef add(a, b): return E(9)"
    ),
    "returns True for one": "def add(a, b): return True",
    "returns NaN": "def add(a, b): return float('nan')",
    "prints a verdict": "import os\ndef add(a, b):\n    print('passed', flush=True)\n    os._exit(0)",
    "writes to every descriptor": """
import json, os
def add(a, b):
    for fd in range(64):
        for line in (b'ready', json.dumps({"status": "pass"}).encode(), b'{"status": "value", "value": 999}'):
            try: os.write(fd, line + b"\\n")
            except OSError: pass
    os._exit(0)""",
    "walks frames for the expected value": """
import sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for place in (frame.f_locals, frame.f_globals):
            for name, value in list(place.items()):
                if "expected" in str(name) or "expected" in str(value): return value
        frame = frame.f_back""",
    "searches memory for the expected value": """
import gc
def add(a, b):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and "expected" in thing: return thing["expected"]
    return None""",
    "patches json": """
import json
json.dumps = lambda *a, **k: '{"status": "pass", "verdict": "pass"}'
json.JSONEncoder.default = lambda self, o: 3
def add(a, b): return object()""",
    "patches the driver's functions": """
import sys
main = sys.modules["__main__"]
for name in ("is_plain", "call_function", "describe"):
    setattr(main, name, lambda *a: True)
def add(a, b): return object()""",
    "forges a word of its own as the outcome": """
import os
def add(a, b):
    os.pwrite(5, b'{"status": "wall_timeout"}', 0)
    for fd in range(3, 20):
        try: os.write(fd, b'{"status": "wall_timeout"}')
        except OSError: pass
    os._exit(0)""",
    "kills the driver": "import os, signal\ndef add(a, b): os.kill(os.getppid(), signal.SIGKILL)",
    "registers an exit handler": (
        "import atexit, os\natexit.register(lambda: print('3'))\ndef add(a, b): raise KeyboardInterrupt"
    ),
    "loops for ever": "def add(a, b):\n    while True: pass",
    "takes all memory": "def add(a, b):\n    x = []\n    while True: x.append(bytearray(1 << 24))",
    "forks for ever": "import os\ndef add(a, b):\n    while True: os.fork()",
    "floods its output": "def add(a, b):\n    for _ in range(1000): print('x' * 100_000)\n    return 0",
    "returns too much": "def add(a, b): return 'x' * 10_000_000",
    "returns a list inside itself": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "recurses for ever": "def add(a, b): return add(a, b)",
    "crashes": "import ctypes\ndef add(a, b): return ctypes.string_at(0)",
    "knows one test": "def add(a, b): return 3",
    "remembers earlier calls": "seen = [3, 0, 12]\ndef add(a, b): return seen.pop(0)",
    "does not compile": "def add(a, b) return a + b",
    "names another function": "def plus(a, b): return a + b",
    "names no function": "add = 3",
}


@pytest.mark.parametrize("source", CHEATS.values(), ids=CHEATS.keys())
def test_a_cheat_is_not_accepted(source: str):
    judgement = judge(fenced(source))
    assert judgement.verdict == "fail", judgement
    assert judgement.score is not None and judgement.score < 1


HONEST = {
    "plain": "def add(a, b):\n    return a + b",
    "a lambda": "add = lambda a, b: a + b",
    "typed": "from __future__ import annotations\ndef add(a: int, b: int) -> int:\n    return a + b",
    "prints a lot": "def add(a, b):\n    print('adding' * 100_000)\n    return a + b",
    "reads no input and has a main guard": (
        "def add(a, b):\n    return a + b\nif __name__ == '__main__':\n    print(add(int(input()), 2))"
    ),
    "shows its use while loading": "def add(a, b):\n    return a + b\nprint(add(1, 2))\nassert add(1, 2) == 3",
    "imports os and sys": "import os, sys\ndef add(a, b):\n    os.getpid(); sys.getsizeof(a)\n    return a + b",
    "uses a thread": (
        "import threading\ndef add(a, b):\n    out = []\n    t = threading.Thread(target=lambda: out.append(a + b))\n"
        "    t.start(); t.join()\n    return out[0]"
    ),
    "leaves a child running": (
        "import os, time\ndef add(a, b):\n    if os.fork() == 0:\n        time.sleep(100)\n    return a + b"
    ),
    "recurses deeply": (
        "import sys\nsys.setrecursionlimit(100_000)\ndef down(n): return 0 if n == 0 else 1 + down(n - 1)\n"
        "def add(a, b):\n    down(20_000)\n    return a + b"
    ),
    "uses a dataclass": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    a: int\n"
        "    b: int\ndef add(a, b):\n    p = P(a, b)\n    return p.a + p.b"
    ),
    "computes with big numbers": "def add(a, b):\n    return a + b + (10 ** 5000 - 10 ** 5000)",
    "uses a temporary file": (
        "import tempfile\ndef add(a, b):\n    with tempfile.TemporaryFile('w+') as f:\n        f.write(str(a + b))\n"
        "        f.seek(0)\n        return int(f.read())"
    ),
    "keeps a global": "total = 0\ndef add(a, b):\n    global total\n    total += a + b\n    return total",
    "exits afterwards": "import atexit, os\natexit.register(os._exit, 1)\ndef add(a, b):\n    return a + b",
    "sleeps a little": "import time\ndef add(a, b):\n    time.sleep(0.05)\n    return a + b",
    "speaks another alphabet": "def add(a, b):\n    \u03b1, \u03b2 = a, b  # \u52a0\n    return \u03b1 + \u03b2",
}


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST.keys())
def test_an_honest_program_is_accepted(source: str):
    assert judge(fenced(source)) == Judgement("pass", 1.0, "equal", {"passed": 3, "tests": 3})


def test_every_demo_problem_is_solved_by_its_reference_solution_and_not_by_a_constant():
    spec = importlib.util.spec_from_file_location("code_solutions", ROOT / "tests/data/code_solutions.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    problems = [json.loads(line) for line in (ROOT / "sources/demo/code.jsonl").read_text().splitlines()]
    assert len(problems) >= 48
    assert len({problem["prompt"] for problem in problems}) == len(problems)
    assert {problem["function"] for problem in problems} == set(module.SOLUTIONS)
    right, wrong = [], []
    for problem in problems:
        reference = {"function": problem["function"], "tests": problem["tests"]}
        assert f"`{problem['function']}(" in problem["prompt"] and 4 <= len(problem["tests"]) <= 6
        first = problem["tests"][0]["expected"]
        constant = f"def {problem['function']}(*args): return {first!r}"
        right.append(
            Item(problem["function"], "code", fenced(module.SOLUTIONS[problem["function"]]), "complete", reference)
        )
        wrong.append(Item(problem["function"], "code", fenced(constant), "complete", reference))
    assert [j.reason for j in judge_once(right, LIMITS)] == ["equal"] * len(problems)
    assert [j.reason for j in judge_once(wrong[::4], LIMITS)] == ["wrong_answer"] * len(wrong[::4])


def test_the_first_failing_test_and_the_score_are_told():
    judgement = judge(fenced("def add(a, b): return abs(a) + abs(b)"))
    assert judgement.verdict == "fail" and judgement.score == pytest.approx(2 / 3)
    assert judgement.reason == "wrong_answer"
    assert judgement.evidence == {"passed": 2, "tests": 3, "test": 1, "got": "8"}


def test_a_sleeper_is_undecided_and_a_broken_reference_as_well():
    limits = Limits.model_validate({"code": {"cpu_s": 1, "wall_s": 1}})
    sleeper = Item("k", "code", fenced("import time\ndef add(a, b): time.sleep(100)"), "complete", ADD)
    [judgement] = judge_items([sleeper], limits)
    assert (judgement.verdict, judgement.score, judgement.reason) == ("unknown", None, "wall_timeout")
    broken: list[dict | None] = [None, {}, {"function": "add", "tests": []}, {"function": "a b", "tests": [{}]}]
    assert {judge(fenced("def add(a, b): return 3"), reference).reason for reference in broken} == {"bad_reference"}


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\ndef add(a, b): pass\n```", "def add(a, b): pass\n"),
        ("```py\nx = 1\n```\n```python\ndef add(): 1\n```", "def add(): 1\n"),
        ("```python\ndef add(): 1\n```\nUse it:\n```python\nprint(add())\n```", "def add(): 1\n"),
        ("```\ndef add(): 1\n```", "def add(): 1\n"),
        ("```json\n{}\n```", None),
        ("```python\ndef add(): 1", None),
        ("```python\ndef other(): 1\n```", "def other(): 1\n"),
        ("def add(a, b):\n    return a + b", "def add(a, b):\n    return a + b\n"),
        ("I would write def add(a, b): return a + b", None),
        ("", None),
    ],
)
def test_the_program_is_the_last_closed_block_that_defines_the_function(answer: str, program: str | None):
    assert extract_program(answer, "add") == program


def test_an_answer_of_a_million_fences_is_read_in_no_time():
    assert extract_program("```\n" * 1_000_001, "add") is not None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_a_value_equals_itself_and_not_a_list_around_it(value: object):
    assert values_equal(value, value)
    assert not values_equal([value], value)


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        (True, 1, False),
        (1, True, False),
        (1.0, 1, False),
        (1, 1.0, True),
        (True, 1.0, False),
        (0.1 + 0.2, 0.3, True),
        (0.31, 0.3, False),
        (10**400, 1.0, False),
        ("1", 1, False),
        (None, False, False),
        ([], None, False),
        ({"a": 1}, {"a": True}, False),
        ([1, [2]], [1, [2]], True),
        ([1, 2], [2, 1], False),
    ],
)
def test_types_are_compared_strictly(got: object, expected: object, same: bool):
    assert values_equal(got, expected) is same


def test_lines_without_the_nonce_end_the_reading():
    good = b'n {"status": "ready"}\n'
    assert len(read_events(good + b'n {"status": "value", "value": 1}\n', "n")) == 2
    for bad in (
        b'm {"status": "value"}\n',
        b"n {}\n",
        b'n {"status": "mine"}\n',
        b'n {"status": "value", "value": NaN}\n',
    ):
        assert len(read_events(good + bad + good, "n")) == 1
    assert len(read_events(good + b'n {"status": "cut', "n")) == 1
    assert len(read_events(good + b"n " + b"[" * 100_000 + b"\n", "n")) == 1
