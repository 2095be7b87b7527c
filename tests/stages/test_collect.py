"""Every format of the field becomes traces or rejected rows with a reason; nothing is lost in silence."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import validate
from pipeline.errors import UserError
from pipeline.records import Rejected, Trace, prompt_id_of
from pipeline.shards import iter_table
from stages.collect import Config, run

ASK, SAY = (
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "2 + 3 = 5. The answer is 5."},
)
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "arguments": '{"a": 2}'}]}


def collect(folder, rows, **source):
    folder.mkdir(exist_ok=True)
    (folder / "set.jsonl").write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    base = {
        "type": "jsonl",
        "name": "set",
        "domain": "math",
        "format": "messages",
        "license": "MIT",
        "path": "set.jsonl",
    }
    config = validate(Config, {"sources": [{**base, **source}]}, "test")
    report = run(config, {"sources": folder}, folder / "run/output")
    return report, list(iter_table(folder / "run/output", Trace)), list(iter_table(folder / "run/output", Rejected))


def test_formats_give_the_same_conversation(tmp_path):
    turns = [{"from": "human", "value": ASK["content"]}, {"from": "gpt", "value": SAY["content"]}]
    forms = {
        "messages": {"messages": [ASK, SAY]},
        "prompt_completion": {"prompt": ASK["content"], "completion": [SAY]},
        "sharegpt": {"conversations": turns},
    }
    made = [collect(tmp_path / form, [row], format=form)[1] for form, row in forms.items()]
    assert made[0] == made[1] == made[2]
    (trace,) = made[0]
    assert json.loads(trace.messages) == [ASK, SAY]
    assert trace.prompt_id == prompt_id_of([ASK])
    assert (trace.verdict, trace.pass_rate, trace.split, trace.license) == ("not_checked", None, "train", "MIT")


def test_rows_with_a_reference_are_judged_and_the_others_are_not(tmp_path):
    rows = [{"messages": [ASK, SAY], "answer": answer} for answer in (5, "6", None)]
    report, traces, _ = collect(tmp_path / "a", rows, verifier="math")
    assert [t.verdict for t in traces] == ["pass", "fail", "not_checked"]
    assert (report["verdict_pass"], report["verdict_fail"], report["verdict_not_checked"]) == (1, 1, 1)
    assert len({t.prompt_id for t in traces}) == 1
    _, traces, _ = collect(tmp_path / "b", rows[:1])
    assert traces[0].verdict == "not_checked"


BAD = {
    "missing_field": {"text": "x"},
    "malformed_json": "{",
    "not_an_object": "[1]",
    "role_order": {"messages": [SAY]},
    "unknown_field": {"messages": [{**ASK, "weight": 0}, SAY]},
    "wrong_type": {"messages": [{"role": "user", "content": 5}, SAY]},
    "empty_content": {"messages": [ASK, {"role": "assistant", "content": " "}]},
    "bad_thinking": {"messages": [ASK, {"role": "assistant", "content": "<think>hm"}]},
    "two_systems": {"system": "a", "messages": [{"role": "system", "content": "b"}, ASK, SAY]},
    "bad_value": '{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "x"}]}',
}


@pytest.mark.parametrize("reason", BAD)
def test_bad_rows_are_rejected_with_a_reason(tmp_path, reason):
    report, traces, rejected = collect(tmp_path / "in", [BAD[reason], {"messages": [ASK, SAY]}])
    assert [row.reason for row in rejected] in ([reason], ["bad_value" if reason == "wrong_type" else reason])
    assert report["read"] == report["traces"] + report["rejected"] == 2
    assert json.loads(rejected[0].evidence)["where"] == "set.jsonl:1" and len(traces) == 1


def test_repeats_go_and_say_where_the_first_stands(tmp_path):
    report, _, rejected = collect(tmp_path / "in", [{"messages": [ASK, SAY]}] * 2)
    assert report["rejected_duplicate"] == 1
    assert json.loads(rejected[0].evidence)["first"] == "set set.jsonl:1"


def test_thinking_tool_calls_and_text_parts_get_one_form(tmp_path):
    thought = {"role": "assistant", "content": "<think>\n2 and 3\n</think>\n\nThe answer is 5."}
    tool = {"role": "tool", "content": "5", "tool_call_id": "c"}
    asked = {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 + 3?"}]}
    tools = json.dumps([{"type": "function", "function": {"name": "add"}}])
    _, traces, rejected = collect(tmp_path / "in", [{"messages": [asked, CALL, tool, thought], "tools": tools}])
    assert not rejected
    messages = json.loads(traces[0].messages)
    assert messages[0] == ASK
    assert messages[1]["tool_calls"] == [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}]
    assert messages[3] == {"role": "assistant", "content": "The answer is 5.", "reasoning_content": "2 and 3"}
    assert json.loads(traces[0].tools)[0]["function"] == {"name": "add"}


def test_sharegpt_calls_and_observations_keep_their_roles(tmp_path):
    turns = [
        ("human", "Add."),
        ("function_call", '{"name": "add", "arguments": {"a": 1}}'),
        ("observation", "1"),
        ("gpt", "1"),
    ]
    row = {"system": "Be brief.", "conversations": [{"from": who, "value": value} for who, value in turns]}
    _, traces, _ = collect(tmp_path / "in", [row], format="sharegpt")
    assert [m["role"] for m in json.loads(traces[0].messages)] == ["system", "user", "assistant", "tool", "assistant"]
    _, _, rejected = collect(
        tmp_path / "in2", [{"conversations": [{"from": "robot", "value": "x"}]}], format="sharegpt"
    )
    assert rejected[0].reason == "bad_turn"


def test_parquet_rows_are_those_of_jsonl(tmp_path):
    rows = [{"messages": [ASK, SAY]}, {"messages": [ASK, {**SAY, "reasoning_content": "hm"}]}]
    _, lines, _ = collect(tmp_path / "in", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in/set.parquet")
    _, columns, _ = collect(tmp_path / "in", rows, type="parquet", path="set.parquet")
    assert [t.trace_id for t in lines] == [t.trace_id for t in columns]
    with pytest.raises(UserError, match="no column `talk`"):
        collect(tmp_path / "in", rows, type="parquet", path="set.parquet", columns={"messages": "talk"})


def test_a_source_without_a_licence_or_a_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"license"):
        collect(tmp_path / "in", [{}], license="")
    with pytest.raises(UserError, match="is not there"):
        collect(tmp_path / "in", [{}], path="other.jsonl")
    with pytest.raises(UserError, match="has no rows"):
        collect(tmp_path / "in", [])
