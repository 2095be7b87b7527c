"""Every record of a source becomes one task or one rejected row, and no prompt stands in both splits."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import load_config, validate
from pipeline.errors import UserError
from pipeline.records import Rejected, Task
from pipeline.shards import iter_table
from stages.tasks import Config, run, threshold_for

ROOT = Path(__file__).resolve().parents[2]
MATH = {"type": "jsonl", "name": "sums", "domain": "math", "verifier": "math", "license": "MIT", "path": "rows.jsonl"}
CODE = {**MATH, "name": "code", "domain": "code", "verifier": "code"}
INSTRUCTION = {**MATH, "name": "form", "domain": "instruction", "verifier": "instruction"}
GYM = {"type": "reasoning_gym", "name": "gym", "domain": "math", "generator": "chain_sum", "size": 30, "seed": 5}
GOOD = {"prompt": "2 + 2?", "answer": "4"}
SYNTHETIC = {"language": "python", "test_cases": [{"type": "stdin_stdout", "input": "", "output": "1"}]}
GOOD_CODE = {"prompt": "Write f.", "function": "f", "tests": [{"args": [1], "expected": None}]}


def config_of(*sources, **keys) -> Config:
    return validate(Config, {"sources": list(sources), **keys}, "test")


def tasks_of(output: Path) -> list[Task]:
    return list(iter_table(output, Task))


def rejected_of(output: Path) -> list[Rejected]:
    return list(iter_table(output, Rejected))


@pytest.fixture
def make(tmp_path):
    """Run the stage over lines (bytes, or objects to write as JSON) of one JSONL file."""

    def maker(lines, *sources, **keys):
        encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        (tmp_path / "rows.jsonl").write_bytes(b"\n".join(encoded))
        report = run(config_of(*(sources or (MATH,)), **keys), {"sources": tmp_path}, tmp_path / "out")
        assert report["read"] == report["tasks"] + report["rejected"]
        assert report["tasks"] == report["train"] + report["heldout"]
        return report, tasks_of(tmp_path / "out"), rejected_of(tmp_path / "out")

    return maker


def test_a_row_becomes_a_task(make):
    report, (task,), _ = make([GOOD], {**MATH, "system": "Be brief.", "revision": "v1"})
    assert json.loads(task.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
    ]
    assert json.loads(task.reference) == {"answer": "4"}
    assert (task.source, task.source_id, task.source_revision, task.license) == ("sums", "1", "v1", "MIT")
    assert (task.domain, task.verifier, task.tools) == ("math", "math", None)
    assert report["tasks_math"] == 1


def test_a_row_of_math_keeps_the_conventions_that_it_states(make):
    stated = {"percent": "fraction", "decimals": 2}
    rows = [GOOD, {**GOOD, "policy": stated}, {**GOOD, "prompt": "3 + 1?", "policy": json.dumps(stated)}]
    bad = [{"percent": "perhaps"}, {"percents": "either"}, {"relative": 3}]
    _, tasks, rejected = make([*rows, *({**GOOD, "policy": policy} for policy in bad)])
    assert [json.loads(task.reference) for task in tasks] == [
        {"answer": "4"},
        {"answer": "4", "policy": stated},
        {"answer": "4", "policy": stated},
    ]
    assert [row.reason for row in rejected] == ["wrong_type", "unknown_field", "bad_value"]


def test_a_row_of_code_keeps_its_tests_for_the_verifier_alone(make):
    _, (task,), _ = make([GOOD_CODE], CODE)
    assert json.loads(task.reference) == {"function": "f", "tests": [{"args": [1], "expected": None}]}
    assert "expected" not in task.messages


def test_a_row_may_bring_a_conversation_and_its_own_system_text(make):
    messages = [
        {"role": "system", "content": "Mine."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "2 + 2?"},
    ]
    _, (task,), _ = make([{"messages": messages, "answer": 4, "id": "row-7"}], {**MATH, "system": "Theirs."})
    assert json.loads(task.messages) == messages
    assert json.loads(task.reference) == {"answer": "4"}
    assert task.source_id == "row-7"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{broken", "malformed_json"),
        (b'{"prompt": "x", "answer": NaN}', "malformed_json"),
        (b"[" * 100_000, "malformed_json"),
        (b'"text"', "not_an_object"),
        (b'{"prompt": "\xff", "answer": "4"}', "bad_utf8"),
        ({"answer": "4"}, "missing_field"),
        ({"prompt": "2 + 2?"}, "missing_field"),
        ({"prompt": None, "answer": "4"}, "missing_field"),
        ({"prompt": " \n", "answer": "4"}, "empty_field"),
        ({"prompt": "2 + 2?", "answer": ""}, "empty_field"),
        ({"messages": [], "answer": "4"}, "empty_field"),
        ({"prompt": 3, "answer": "4"}, "wrong_type"),
        ({"prompt": "2 + 2?", "answer": True}, "wrong_type"),
        ({"prompt": "2 + 2?", "answer": ["4"]}, "wrong_type"),
        ({"messages": "not a list", "answer": "4"}, "wrong_type"),
        ({"messages": [{"role": "user"}], "answer": "4"}, "missing_field"),
        ({"messages": [{"role": "robot", "content": "x"}], "answer": "4"}, "wrong_type"),
        ({"messages": [{"role": "user", "content": "x", "colour": "red"}], "answer": "4"}, "unknown_field"),
        ({"messages": [{"role": "assistant", "content": "x"}], "answer": "4"}, "bad_messages"),
        (b'{"prompt": "\\ud800", "answer": "4"}', "bad_value"),
        (b'{"prompt": "x", "answer": 1e999}', "bad_value"),
    ],
)
def test_a_bad_row_is_rejected_with_its_place(make, line, reason):
    report, tasks, (row,) = make([GOOD, line])
    assert len(tasks) == 1
    assert row.reason == reason
    assert json.loads(row.evidence)["where"] == "rows.jsonl:2"
    assert report[f"rejected_{reason}"] == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"function": "not a name"}, "wrong_type"),
        ({"function": ""}, "empty_field"),
        ({"tests": []}, "empty_field"),
        ({"tests": [{"args": 1, "expected": 2}]}, "wrong_type"),
        ({"tests": [{"args": [1]}]}, "missing_field"),
        ({"tests": "[broken"}, "bad_tests"),
    ],
)
def test_bad_tests_are_rejected(make, change, reason):
    _, tasks, (row,) = make([GOOD_CODE, {**GOOD_CODE, **change}], CODE)
    assert (len(tasks), row.reason) == (1, reason)


@pytest.mark.parametrize(
    ("fields", "columns", "reference"),
    [
        (
            {"verification_info": json.dumps(SYNTHETIC)},
            {"tests": "verification_info"},
            {"tests": SYNTHETIC},
        ),
        (
            {"input_output": '{"inputs": [[1]], "outputs": [[2]], "fn_name": "f"}'},
            {"tests": "input_output"},
            {"tests": {"inputs": [[1]], "outputs": [[2]], "fn_name": "f"}},
        ),
        (
            {
                "public_test_cases": '[{"input": "1", "output": "2", "testtype": "functional"}]',
                "private_test_cases": "eJxrYJmawAABTLFTerL0ACR1A5s=",
                "metadata": '{"func_name": "f"}',
            },
            {"tests": "public_test_cases", "private_tests": "private_test_cases", "function": "metadata"},
            "bad_tests",
        ),
        (
            {"test_list": ["assert f(1) == None"], "test_setup_code": "import math"},
            {"tests": "test_list", "setup": "test_setup_code"},
            {"tests": ["assert f(1) == None"], "setup": "import math"},
        ),
        (
            {"test": "def check(candidate):\n    assert candidate(1) == 2\n", "entry_point": "f"},
            {"tests": "test", "function": "entry_point"},
            {"tests": "def check(candidate):\n    assert candidate(1) == 2\n", "function": "f"},
        ),
        (
            {"tests": {"inputs": ["1"], "outputs": ["2"]}, "rule": {"name": "tokens", "absolute": 0.1}},
            {"comparator": "rule"},
            {"tests": {"inputs": ["1"], "outputs": ["2"]}, "comparator": {"name": "tokens", "absolute": 0.1}},
        ),
        ({"tests": {"inputs": ["1"], "outputs": ["2"]}, "comparator": "fuzzy"}, {}, "bad_tests"),
        ({"tests": ["print(1)"]}, {}, "bad_tests"),
        ({"tests": [{"args": [1], "expected": 2}]}, {}, "missing_field"),
        ({"function": "f"}, {}, "missing_field"),
    ],
)
def test_tests_in_formats_of_the_field_become_references_or_are_rejected(make, fields, columns, reference):
    good = {columns.get(name, name): GOOD_CODE[name] for name in ("prompt", "function", "tests")}
    _, tasks, rejected = make([good, {"prompt": "Write it.", **fields}], {**CODE, "columns": columns})
    if isinstance(reference, str):
        assert [row.reason for row in rejected] == [reference]
    else:
        assert not rejected and json.loads(tasks[-1].reference) == reference


@pytest.mark.parametrize(
    ("constraints", "reason"),
    [
        (None, "missing_field"),
        ([], "empty_field"),
        ("[broken", "wrong_type"),
        ([{"type": "rhymes"}], "unknown_constraint"),
        ([{"n": 3}], "missing_field"),
        ([{"type": "max_words"}], "missing_field"),
        ([{"type": "max_words", "n": 0}], "bad_value"),
        ([{"type": "max_words", "n": "3"}], "wrong_type"),
        ([{"type": "max_words", "n": 3, "m": 3}], "unknown_field"),
        ([{"type": "contains", "text": " "}], "empty_field"),
    ],
)
def test_bad_constraints_are_rejected(make, constraints, reason):
    good = {"prompt": "Be brief.", "constraints": [{"type": "max_words", "n": 9}]}
    _, (task,), (row,) = make([good, {**good, "constraints": constraints}], INSTRUCTION)
    assert json.loads(task.reference) == {"constraints": [{"type": "max_words", "n": 9}]}
    assert (row.reason, json.loads(row.evidence)["where"]) == (reason, "rows.jsonl:2")


def test_rows_limits_one_source_alone(make):
    _, tasks, _ = make([{**GOOD, "prompt": f"{n}?"} for n in range(9)], {**MATH, "rows": 4})
    assert [task.source_id for task in tasks] == ["1", "2", "3", "4"]


def test_blank_lines_and_a_byte_order_mark_are_no_rows(make):
    report, tasks, _ = make([b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), b"", b"  ", b""])
    assert (report["read"], len(tasks)) == (1, 1)


def test_of_equal_tasks_the_first_stays(make):
    other = {**MATH, "name": "again", "license": "CC0-1.0"}
    report, tasks, rejected = make([GOOD, {**GOOD, "id": "copy"}], MATH, other)
    assert [task.source for task in tasks] == ["sums"]
    assert [json.loads(row.evidence)["first"] for row in rejected] == ["sums rows.jsonl:1"] * 3
    assert report["rejected_duplicate"] == 3


def test_equal_prompts_with_other_answers_are_other_tasks_of_one_split(make):
    rows = [{"prompt": f"{n}?", "answer": answer} for n in range(40) for answer in ("1", "2")]
    report, tasks, _ = make(rows, heldout_fraction=0.5)
    assert len({task.task_id for task in tasks}) == 80
    splits = {(task.prompt_id, task.split) for task in tasks}
    assert len(splits) == 40
    assert report["prompt_overlap"] == 0
    assert 0 < report["heldout"] < 80


def test_adding_rows_or_editing_answers_moves_no_prompt(make):
    rows = [{"prompt": f"{n}?", "answer": "1"} for n in range(50)]
    _, before, _ = make(rows, heldout_fraction=0.5)
    _, after, _ = make(
        [{"prompt": "new", "answer": "1"}] + [{**row, "answer": "3"} for row in rows], heldout_fraction=0.5
    )
    split = {task.prompt_id: task.split for task in after}
    assert all(split[task.prompt_id] == task.split for task in before)


@given(st.lists(st.floats(0, 1, exclude_max=True), unique=True), st.floats(0, 0.9))
def test_raising_the_fraction_never_moves_a_prompt_back_to_training_unless_a_split_was_empty(positions, fraction):
    def heldout(share):
        return {position for position in positions if position < threshold_for(positions, share)}

    if any(position < fraction for position in positions):
        assert heldout(fraction) <= heldout(min(fraction + 0.05, 0.95)) or len(heldout(fraction)) == len(positions) - 1


@given(st.lists(st.floats(0, 1, exclude_max=True), unique=True, min_size=2), st.floats(0.01, 0.9))
def test_two_prompts_are_enough_for_both_splits(positions, fraction):
    below = sum(position < threshold_for(positions, fraction) for position in positions)
    assert 0 < below < len(positions)


def test_a_small_set_has_heldout_prompts_whatever_the_seed(make):
    rows = [{"prompt": f"What is {n}?", "answer": "1"} for n in range(6)]
    for seed in range(12):
        report, tasks, _ = make(rows, heldout_fraction=0.1, seed=seed)
        assert report["tasks"] == 6 and 1 <= report["heldout"] < 6
        assert report["heldout"] == sum(task.split == "heldout" for task in tasks)


def test_parquet_gives_the_same_tasks_as_jsonl(make, tmp_path):
    rows = [{"question": f"{n} + {n}?", "final": str(2 * n)} for n in range(5)]
    columns = {"prompt": "question", "answer": "final"}
    _, expected, _ = make(rows, {**MATH, "columns": columns})
    pq.write_table(pa.Table.from_pylist([{**row, "other": 1} for row in rows]), tmp_path / "rows.parquet")
    source = {**MATH, "type": "parquet", "path": "rows.parquet", "columns": columns}
    run(config_of(source), {"sources": tmp_path}, tmp_path / "out2")
    assert tasks_of(tmp_path / "out2") == expected


def test_parquet_structs_lose_their_null_keys_and_nested_json_is_read(tmp_path):
    messages = [{"role": "user", "content": "Write f.", "name": None}]
    row = {"messages": messages, "function": "f", "tests": json.dumps(GOOD_CODE["tests"])}
    schema = pa.schema(
        [
            ("messages", pa.list_(pa.struct([(key, pa.string()) for key in ("role", "content", "name")]))),
            ("function", pa.string()),
            ("tests", pa.string()),
        ]
    )
    pq.write_table(pa.Table.from_pylist([row], schema), tmp_path / "rows.parquet")
    run(config_of({**CODE, "type": "parquet", "path": "rows.parquet"}), {"sources": tmp_path}, tmp_path / "out")
    (task,) = tasks_of(tmp_path / "out")
    assert json.loads(task.messages) == [{"role": "user", "content": "Write f."}]
    assert json.loads(task.reference)["tests"] == GOOD_CODE["tests"]


def test_parquet_without_the_named_column_is_refused_with_what_is_there(tmp_path):
    pq.write_table(pa.table({"question": ["a"], "final": ["b"]}), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"`prompt`.*found: question, final"):
        run(config_of({**MATH, "type": "parquet", "path": "rows.parquet"}), {"sources": tmp_path}, tmp_path / "out")


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    (tmp_path / "rows.parquet").write_text("text")
    with pytest.raises(UserError, match=r"rows\.parquet: source sums cannot be read as Parquet"):
        run(config_of({**MATH, "type": "parquet", "path": "rows.parquet"}), {"sources": tmp_path}, tmp_path / "out")


def test_a_generator_gives_tasks_with_answers_and_the_same_bytes_every_time(tmp_path):
    for name in ("one", "two"):
        run(config_of(GYM, heldout_fraction=0.3), {}, tmp_path / name)
    tasks = tasks_of(tmp_path / "one")
    assert {task.license for task in tasks} == {"Apache-2.0"}
    assert all(json.loads(task.reference)["answer"].lstrip("-").isdigit() for task in tasks)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) >= 3
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_an_unknown_generator_or_setting_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no generator `chain_sums`; it has: .*chain_sum"):
        run(config_of({**GYM, "generator": "chain_sums"}), {}, tmp_path)
    with pytest.raises(UserError, match=r"chain_sum refuses its parameters: .*max_term"):
        run(config_of({**GYM, "parameters": {"max_term": 2}}), {}, tmp_path)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_source_is_an_error(tmp_path, text):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(UserError, match=r"rows\.jsonl: source sums has no rows"):
        run(config_of(MATH), {"sources": tmp_path}, tmp_path / "out")


def test_a_missing_source_is_an_error_before_anything_is_made(tmp_path):
    with pytest.raises(UserError, match=r"rows\.jsonl: source sums is not there"):
        run(config_of(GYM, MATH), {"sources": tmp_path}, tmp_path / "out")
    with pytest.raises(UserError, match="--in sources=DIR"):
        run(config_of(MATH), {}, tmp_path / "out")


def test_a_path_may_not_leave_the_sources_folder():
    for path in ("/etc/passwd", "../secret.jsonl"):
        with pytest.raises(UserError, match="stay in the sources folder"):
            config_of({**MATH, "path": path})


def test_two_sources_may_not_share_a_name():
    with pytest.raises(UserError, match="two sources are named sums"):
        config_of(MATH, MATH)


def test_over_the_budget_of_rejected_rows_the_stage_fails(make):
    with pytest.raises(UserError, match=r"2 of 3 .*malformed_json 2"):
        make([GOOD, b"{", b"{"], max_rejected=0.5)


def test_limit_counts_records_over_all_sources(make):
    report, _, _ = make([{"prompt": f"{n}?", "answer": "1"} for n in range(5)], MATH, GYM, limit=7)
    assert report["read"] == 7


def test_the_demo_has_tasks_enough_of_every_domain_in_both_splits(tmp_path):
    report = run(load_config(Config, ROOT / "configs/demo/tasks.yaml"), {"sources": ROOT / "sources/demo"}, tmp_path)
    assert report["train"] >= 160
    assert report["heldout"] >= 110
    assert report["rejected"] == report["rejected_duplicate"]
    for domain in ("math", "code", "instruction"):
        assert 20 <= report[f"heldout_{domain}"] < report[f"tasks_{domain}"] - 20


def test_the_smoke_recipe_is_the_demo_in_miniature(tmp_path):
    report = run(load_config(Config, ROOT / "configs/smoke/tasks.yaml"), {"sources": ROOT / "sources/demo"}, tmp_path)
    assert 20 <= report["train"] <= 30
    assert 8 <= report["heldout"] <= 16
    assert report["tasks_code"] >= 6
    assert report["tasks_instruction"] >= 6
