"""Rows, their digest, and what a card counts."""

from collections import Counter

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.hub import rows as hub_rows
from pipeline.hub.facts import Facts, quantiles
from pipeline.hub.rows import Digest, message_fields, published_schema, typed_row, write_split
from tests.made_traces import trace


@given(st.lists(st.integers(0, 50), min_size=1))
def test_counted_quantiles_are_those_of_the_sorted_list(lengths):
    ordered = sorted(lengths)
    assert quantiles(Counter(lengths)) == {
        "total": sum(ordered),
        "median": ordered[(len(ordered) - 1) // 2],
        "p95": ordered[(len(ordered) - 1) * 95 // 100],
        "max": ordered[-1],
    }
    assert set(quantiles(Counter()).values()) == {0}


@pytest.mark.parametrize(("group", "shard"), [(1, 1), (2, 1), (1, 10**9), (100, 1), (3, 200)])
def test_every_row_is_written_once_in_order_whatever_the_sizes(tmp_path, monkeypatch, group, shard):
    monkeypatch.setattr(hub_rows, "MAX_GROUP_ROWS", group)
    monkeypatch.setattr(hub_rows, "MAX_SHARD_BYTES", shard)
    used = message_fields(())
    rows = [typed_row(trace(f"q{i}", f"a{i}"), used) for i in range(7)]
    shards = write_split(tmp_path / "data", "train", published_schema(used), iter(rows))
    names = [f"data/train-{i:05d}-of-{len(shards):05d}.parquet" for i in range(len(shards))]
    assert [one.file for one in shards] == names
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [name.removeprefix("data/") for name in names]
    files = [pq.ParquetFile(tmp_path / name) for name in names]
    assert [row for file in files for row in file.read().to_pylist()] == rows
    assert sum(one.rows for one in shards) == 7
    assert max(f.metadata.row_group(i).num_rows for f in files for i in range(f.num_row_groups)) <= group
    assert all(f.metadata.row_group(0).column(0).has_column_index for f in files)


def test_no_rows_make_no_file(tmp_path):
    assert write_split(tmp_path / "data", "train", published_schema(message_fields(())), iter([])) == []
    assert not list((tmp_path / "data").iterdir())


def test_a_digest_sees_content_and_order():
    def digest(*rows: dict) -> str:
        found = Digest()
        for row in rows:
            found.add(row)
        return found.sha256

    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert len({digest(), digest({"a": 1}), digest({"a": 1}, {"a": 2}), digest({"a": 2}, {"a": 1})}) == 4


def test_a_card_counts_prompts_once_and_every_pass_rate_in_one_bin():
    facts = Facts()
    for i in range(6):
        facts.add(trace(f"q{i // 2}", f"a{i}"))
    told = facts.for_card()
    assert (told["rows"], told["prompts"], told["domains"]) == (6, 3, {"math": {"rows": 6, "prompts": 3}})
    assert [part["rows"] for part in told["pass_rates"]] == [0, 0, 6, 0]
    assert facts.size_category() == "n<1K"
