"""Traces to packed rows: nothing lost, nothing cut, the same bytes for any order of work."""

import json

import pyarrow.parquet as pq
import pytest

from pipeline.errors import UserError
from pipeline.records import Rejected, Trace, schema_of
from pipeline.shards import TableWriter, iter_table, sha256_of, shard_paths, write_table
from stages.pack import Config, run
from tests.made_traces import trace
from tests.tiny_models import GLM_TOKENS, chatml_tokenizer, glm_tokenizer


@pytest.fixture
def inputs(tmp_path):
    chatml_tokenizer().save_pretrained(tmp_path / "model")
    return {"traces": tmp_path / "traces", "tokenizer": tmp_path / "model"}


def config(**values):
    phases = {"general": {"row_length": 128}}
    return Config.model_validate({"phase": "general", "phases": phases, **values})


def read_packed(output):
    return [row for path in shard_paths(output, "packed") for row in pq.read_table(path).to_pylist()]


TRACES = [
    trace(f"Question {n}?", f"Answer {n}." * (1 + n % 3), domain="code" if n % 4 == 0 else "math") for n in range(20)
]


def answer_of(made):
    """What a trace's assistant says; the byte tokenizer makes a token of each byte, and one of the turn's end."""
    return json.loads(made.messages)[-1]["content"].encode()


def test_documents_and_rejected_are_all_that_came_in(inputs, tmp_path):
    bad = [trace("long", "x" * 200), trace("null", "", messages=[{"role": "user", "content": None}])]
    write_table(inputs["traces"], Trace, [*TRACES, *bad, trace("held", "out", split="heldout")])
    output = tmp_path / "out"
    report = run(config(), inputs, output)
    assert (report["documents"], report["rejected"], report["skipped"]) == (20, 2, 1)
    assert (report["rejected_too_long"], report["rejected_null_content"]) == (1, 1)
    rows = read_packed(output)
    packed = [name for row in rows for name in row["trace_ids"]]
    assert sorted(packed) == sorted(t.trace_id for t in TRACES)
    assert {row.id: row.reason for row in iter_table(output, Rejected)} == {
        bad[0].trace_id: "too_long",
        bad[1].trace_id: "null_content",
    }
    assert report["tokens"] == sum(len(row["input_ids"]) for row in rows)
    assert report["trained_tokens"] == sum(label != -100 for row in rows for label in row["labels"])
    assert report["trained_tokens"] == report["trained_tokens_code"] + report["trained_tokens_math"]
    assert report["trained_tokens_code"] == sum(len(answer_of(t)) + 1 for t in TRACES if t.domain == "code")


def test_rows_hold_whole_documents_within_the_length_and_train_something(inputs, tmp_path):
    write_table(inputs["traces"], Trace, TRACES)
    run(config(), inputs, tmp_path / "out")
    by_id = {t.trace_id: json.loads(t.messages) for t in TRACES}
    tokenizer = chatml_tokenizer()
    for row in read_packed(tmp_path / "out"):
        assert len(row["input_ids"]) == len(row["labels"]) == sum(row["seq_lengths"]) <= 128
        start = 0
        for name, length in zip(row["trace_ids"], row["seq_lengths"], strict=True):
            ids, labels = (row[key][start : start + length] for key in ("input_ids", "labels"))
            assert tokenizer.decode(ids) == tokenizer.apply_chat_template(by_id[name], tokenize=False)
            assert labels[0] == -100 and any(label != -100 for label in labels)
            start += length


def test_of_a_mix_the_training_table_is_packed(inputs, tmp_path):
    write_table(inputs["traces"], Trace, TRACES[:3])
    (inputs["traces"] / "traces").rename(inputs["traces"] / "train")
    write_table(inputs["traces"] / "val", Trace, TRACES[3:])
    assert run(config(), inputs, tmp_path / "out")["documents"] == 3


def test_order_of_traces_shards_and_workers_do_not_change_a_byte(inputs, tmp_path, monkeypatch):
    hashes = []
    for name, traces, shard_bytes in (("a", TRACES, 1 << 20), ("b", TRACES[::-1], 1000)):
        folder = tmp_path / name
        with TableWriter(folder / "traces", "traces", schema_of(Trace), max_shard_bytes=shard_bytes) as writer:
            for row in traces:
                writer.write(tuple(getattr(row, field) for field in schema_of(Trace).names))
        machine = tmp_path / f"{name}.yaml"
        machine.write_text(f"workers: {1 if name == 'a' else 4}\n")
        monkeypatch.setenv("WARMSTART_MACHINE", str(machine))
        run(config(), {**inputs, "traces": folder}, tmp_path / f"out-{name}")
        hashes.append([sha256_of(path) for path in shard_paths(tmp_path / f"out-{name}", "packed")])
    assert len(shard_paths(tmp_path / "b", "traces")) > 1
    assert hashes[0] == hashes[1]


def test_another_seed_orders_the_same_rows_differently(inputs, tmp_path):
    write_table(inputs["traces"], Trace, TRACES)
    rows = []
    for seed in (0, 1):
        run(config(seed=seed), inputs, tmp_path / str(seed))
        rows.append([tuple(row["trace_ids"]) for row in read_packed(tmp_path / str(seed))])
    assert rows[0] != rows[1] and sorted(rows[0]) == sorted(rows[1])


def test_the_limit_counts_input_records(inputs, tmp_path):
    write_table(inputs["traces"], Trace, TRACES)
    assert run(config(limit=7), inputs, tmp_path / "out")["documents"] == 7


def test_an_unknown_phase_an_empty_one_and_too_many_rejects_are_user_errors(inputs, tmp_path):
    write_table(inputs["traces"], Trace, [trace("long", "x" * 200), trace("a", "b")])
    write_table(tmp_path / "heldout", Trace, [trace("held", "out", split="heldout")])
    with pytest.raises(UserError, match="the phases are general"):
        run(config(phase="third"), inputs, tmp_path / "1")
    with pytest.raises(UserError, match="no trace is left to pack"):
        run(config(), {**inputs, "traces": tmp_path / "heldout"}, tmp_path / "2")
    with pytest.raises(UserError, match="too_long 1"):
        run(config(max_rejected=0.4), inputs, tmp_path / "3")


def test_a_trace_whose_template_drops_thinking_gives_a_document_for_each_user_turn(inputs, tmp_path):
    glm_tokenizer().save_pretrained(tmp_path / "model")
    stops = [GLM_TOKENS.index(token) for token in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    (tmp_path / "model/generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "why"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    long = [*messages[:3], {"role": "assistant", "content": "d" * 200}]
    traces = [trace("two", "", messages=messages), trace("long", "", messages=long), trace("one", "b")]
    write_table(inputs["traces"], Trace, traces)
    report = run(config(max_rejected=1.0), inputs, tmp_path / "out")
    assert (report["documents"], report["rejected"], report["skipped"], report["added_by_split"]) == (4, 1, 0, 2)
    packed = [name for row in read_packed(tmp_path / "out") for name in row["trace_ids"]]
    assert sorted(packed) == sorted([traces[0].trace_id] * 2 + [traces[1].trace_id, traces[2].trace_id])
    (rejected,) = iter_table(tmp_path / "out", Rejected)
    assert (rejected.id, rejected.reason) == (traces[1].trace_id, "too_long")
    assert json.loads(rejected.evidence)["user_turn"] == 1
