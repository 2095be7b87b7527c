"""Programs that cheat are never accepted, honest ones that look odd always are."""

import importlib.util
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sandbox import box_setup
from pipeline.verify import Item, Judgement, Limits, judge_items, judge_once
from pipeline.verify.code.compare import Comparator, values_equal
from pipeline.verify.code.extract import NoProgram, extract_program
from pipeline.verify.code.run import read_events
from tests.data import cheating_programs, honest_programs

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits.model_validate({"code": {"cpu_s": 1, "wall_s": 15, "memory_mb": 384}})
ADD = {
    "function": "add",
    "tests": [{"args": [1, 2], "expected": 3}, {"args": [-4, 4], "expected": 0}, {"args": [7, 5], "expected": 12}],
}


def judge(answer: str, reference: dict | None = ADD, limits: Limits = LIMITS) -> Judgement:
    return judge_once([Item("k", "code", answer, "complete", reference)], limits)[0]


def fenced(source: str) -> str:
    return f"Here it is:\n```python\n{source}\n```\nDone."


def not_as_said(
    rows: list[tuple[str, str, str]], tasks: dict[str, dict], accepted: bool, limits: Limits = LIMITS
) -> list[str]:
    """Programs whose acceptance is not as it has to be, two judged at a time."""
    box_setup()  # probes once, and not in two threads
    with ThreadPoolExecutor(2) as pool:
        judgements = pool.map(lambda row: judge(fenced(row[2]), tasks[row[0]], limits), rows)
        return [
            f"{task}: {name}: {judgement}"
            for (task, name, _), judgement in zip(rows, judgements, strict=True)
            if (judgement.verdict == "pass") is not accepted or (accepted and judgement.score != 1)
        ]


def test_no_cheating_program_is_accepted():
    assert len(cheating_programs.ATTACKS) >= 75
    limits = Limits.model_validate({"code": {"cpu_s": 1, "wall_s": 4, "memory_mb": 384}})
    assert not_as_said(cheating_programs.each_attack_once(), cheating_programs.TASKS, False, limits) == []


def test_no_honest_program_is_rejected():
    assert len(honest_programs.honest()) >= 110
    assert not_as_said(honest_programs.honest(), honest_programs.TASKS, True) == []


@pytest.mark.proof
def test_verdicts_repeat_alone_and_on_an_oversubscribed_machine():
    """Three times with one program a core and three times with eight: the same verdict and score each time.

    Reasons may differ for an attack that races against itself, such as a daemon that writes into our pipe.
    """
    limits = Limits.model_validate({"code": {"cpu_s": 1, "wall_s": 60, "memory_mb": 384}})
    items = [
        Item(f"{task} {name}", "code", fenced(source), "complete", corpus.TASKS[task])
        for corpus, rows in (
            (cheating_programs, cheating_programs.cheats()),
            (honest_programs, honest_programs.honest()),
        )
        for task, name, source in rows
        if name not in cheating_programs.UNTIL_THE_WALL
    ]
    box_setup()
    runs = []
    for width in (1, 8) * 3:
        with ThreadPoolExecutor(width * (os.cpu_count() or 1)) as pool:
            judgements = list(pool.map(lambda item: judge_items([item], limits)[0], items))
        runs.append({item.key: (j.verdict, j.score) for item, j in zip(items, judgements, strict=True)})
    num_cheats = len(items) - len(honest_programs.honest())
    verdicts = [verdict for verdict, *_ in runs[0].values()]
    assert "pass" not in verdicts[:num_cheats] and set(verdicts[num_cheats:]) == {"pass"}
    differing = {key: [run[key] for run in runs] for key in runs[0] if len({run[key] for run in runs}) > 1}
    assert differing == {}


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
    if program is None:
        with pytest.raises(NoProgram):
            extract_program(answer, "add")
    else:
        assert extract_program(answer, "add") == program


def test_an_answer_of_a_million_fences_is_read_in_no_time():
    assert extract_program("```\n" * 1_000_002, "add") is not None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES)
def test_a_value_equals_itself_and_not_a_list_around_it(value: object):
    for name in ("exact", "tokens", "unordered_lines"):
        assert values_equal(value, value, Comparator(name))
        assert not values_equal([value], value, Comparator(name))


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
    assert values_equal(got, expected, Comparator("exact")) is same


def test_lines_without_the_nonce_end_the_reading():
    good = b'n {"status": "no_result"}\n'
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
