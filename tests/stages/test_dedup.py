"""Traces in = kept + rejected; the same bytes for any number of workers, shards and tries."""

import json
from dataclasses import astuple, replace

import pytest

from pipeline.records import Rejected, Trace, schema_of
from pipeline.shards import TableWriter, iter_table, write_table
from stages.dedup import Config, run
from tests.made_traces import trace

LONG = "A farmer in {place} packs {n} crates of pears and {m} crates of plums before noon. How many crates is that?"
TRACES = [
    trace(LONG.format(place="Ardel", n=12, m=7), "19"),
    trace(LONG.format(place="Ardel", n=12, m=7).lower(), "It is 19 crates."),
    trace(LONG.format(place="Ardel", n=12, m=8), "20"),
    trace("Hi", "Hello."),
    trace("Hi", "Hello"),
    trace("Hi", "Good day."),
]


def kept_of(folder):
    return [row.trace_id for row in iter_table(folder, Trace)]


@pytest.fixture
def inputs(tmp_path):
    write_table(tmp_path / "filter", Trace, TRACES)
    return {"traces": tmp_path / "filter"}


def test_copies_of_prompts_and_of_answers_go_with_evidence(inputs, tmp_path):
    report = run(Config(), inputs, tmp_path / "out")
    assert report["traces"] == report["kept"] + report["rejected"] == 6
    assert (report["rejected_same_prompt"], report["rejected_same_response"]) == (1, 1)
    assert (report["prompts"], report["prompts_kept"]) == (4, 3)
    rejected = {row.id: row for row in iter_table(tmp_path / "out", Rejected)}
    kept = kept_of(tmp_path / "out")
    assert set(kept) | set(rejected) == {t.trace_id for t in TRACES}
    same = next(row for row in rejected.values() if row.reason == "same_prompt")
    assert json.loads(same.evidence)["trace"] in kept
    assert TRACES[2].trace_id in kept and TRACES[5].trace_id in kept


def test_system_text_and_tools_are_not_compared(tmp_path):
    system = {"role": "system", "content": "You are a helpful assistant who thinks first. " * 30}
    made = [
        replace(
            trace("", "", messages=[system, {"role": "user", "content": q}, {"role": "assistant", "content": "ok"}]),
            prompt_id=q,
        )
        for q in ("Book a table for two.", "Cancel the table for two.")
    ]
    write_table(tmp_path / "filter", Trace, made)
    assert run(Config(), {"traces": tmp_path / "filter"}, tmp_path / "out")["kept"] == 2


def test_the_output_is_the_input_when_run_again(inputs, tmp_path):
    run(Config(), inputs, tmp_path / "one")
    report = run(Config(), {"traces": tmp_path / "one"}, tmp_path / "two")
    assert report["rejected"] == 0 and kept_of(tmp_path / "one") == kept_of(tmp_path / "two")


def test_workers_and_shards_change_no_byte_and_order_no_choice(inputs, tmp_path, monkeypatch):
    folders = {"one": (TRACES, 1 << 20, 1), "many": (TRACES, 400, 2), "turned": (TRACES[::-1], 400, 1)}
    for name, (traces, shard_bytes, workers) in folders.items():
        with TableWriter(tmp_path / name / "traces", "traces", schema_of(Trace), max_shard_bytes=shard_bytes) as writer:
            for row in traces:
                writer.write(astuple(row))
        (tmp_path / f"{name}.yaml").write_text(f"workers: {workers}\n")
        monkeypatch.setenv("WARMSTART_MACHINE", str(tmp_path / f"{name}.yaml"))
        run(Config(), {"traces": tmp_path / name}, tmp_path / f"out-{name}")
    for file in ("traces/part-00000.parquet", "rejected/part-00000.parquet"):
        assert (tmp_path / "out-one" / file).read_bytes() == (tmp_path / "out-many" / file).read_bytes()
    assert set(kept_of(tmp_path / "out-one")) == set(kept_of(tmp_path / "out-turned"))


def test_the_limit_counts_input_records_and_nothing_gives_empty_tables(inputs, tmp_path):
    assert run(Config(limit=2), inputs, tmp_path / "limited")["traces"] == 2
    write_table(tmp_path / "none", Trace, [])
    assert run(Config(), {"traces": tmp_path / "none"}, tmp_path / "empty")["kept"] == 0
