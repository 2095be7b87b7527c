"""A table is whole or absent, and comes back as it was written."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import astuple

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.records import Rejected, Trace, Verdict, schema_of
from pipeline.shards import (
    TableWriter,
    iter_table,
    read_manifest,
    replace_folder,
    sha256_of,
    shard_paths,
    write_sifted,
    write_table,
    write_text,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
COUNT = st.integers(-(2**31), 2**31 - 1)
REAL = st.floats(allow_nan=False)
TRACES = st.builds(
    Trace,
    *[TEXT] * 9,
    st.none() | TEXT,
    st.none() | TEXT,
    TEXT,
    st.none() | REAL,
    st.none() | REAL,
    st.none() | COUNT,
    st.none() | COUNT,
)


def rejected(number: int, reason: str = "fail") -> Rejected:
    return Rejected(f"id{number}", "test", reason, "{}")


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces=st.lists(TRACES, max_size=8))
def test_what_is_written_is_read(tmp_path_factory, traces):
    folder = tmp_path_factory.mktemp("table")
    assert write_table(folder, Trace, traces) == len(traces)
    assert list(iter_table(folder, Trace)) == traces
    assert read_manifest(folder, "traces").rows == len(traces)


def test_equal_rows_give_equal_bytes(tmp_path):
    for name in ("one", "two"):
        write_table(tmp_path / name, Rejected, map(rejected, range(1000)))
    (one,), (two,) = shard_paths(tmp_path / "one", "rejected"), shard_paths(tmp_path / "two", "rejected")
    assert one.read_bytes() == two.read_bytes()
    assert read_manifest(tmp_path / "one", "rejected").shards[0].sha256 == sha256_of(one)


def test_small_shards_keep_every_row_in_order(tmp_path):
    rows = [rejected(number) for number in range(100)]
    with TableWriter(tmp_path, "rejected", schema_of(Rejected), max_shard_bytes=200) as writer:
        for row in rows:
            writer.write(astuple(row))
    assert len(shard_paths(tmp_path, "rejected")) > 5
    assert list(iter_table(tmp_path, Rejected)) == rows
    for path, shard in zip(shard_paths(tmp_path, "rejected"), read_manifest(tmp_path, "rejected").shards, strict=True):
        assert pq.read_metadata(path).num_rows == shard.rows


def test_a_torn_shard_is_named(tmp_path):
    write_table(tmp_path, Rejected, map(rejected, range(10)))
    (path,) = shard_paths(tmp_path, "rejected")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(UserError, match="part-00000"):
        list(iter_table(tmp_path, Rejected))


def test_a_missing_shard_is_named(tmp_path):
    write_table(tmp_path, Rejected, map(rejected, range(10)))
    shard_paths(tmp_path, "rejected")[0].unlink()
    with pytest.raises(UserError, match="part-00000"):
        list(iter_table(tmp_path, Rejected))


def test_another_table_in_the_folder_is_refused(tmp_path):
    write_table(tmp_path, Rejected, [])
    with pytest.raises(UserError, match=r"no table `verdicts`"):
        list(iter_table(tmp_path, Verdict))
    with pytest.raises(UserError, match=r"holds the table `rejected`"):
        list(iter_table(tmp_path / "rejected", Verdict))


def test_a_manifest_that_is_no_json_is_named(tmp_path):
    write_table(tmp_path, Rejected, [])
    (tmp_path / "rejected/manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json"):
        list(iter_table(tmp_path, Rejected))


def test_an_error_while_writing_leaves_no_manifest_and_no_part(tmp_path):
    def rows():
        yield rejected(0)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        write_table(tmp_path, Rejected, rows())
    assert list((tmp_path / "rejected").iterdir()) == []


def test_a_killed_writer_leaves_no_manifest(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from pipeline.records import schema_of, Rejected\n"
        "from pipeline.shards import TableWriter\n"
        "with TableWriter(Path(sys.argv[1]), 'rejected', schema_of(Rejected), max_shard_bytes=100) as writer:\n"
        "    for n in range(50):\n"
        "        writer.write((str(n), 'test', 'x', '{}'))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("part-*.parquet"))
    with pytest.raises(UserError, match=r"no manifest\.json"):
        list(iter_table(tmp_path, Rejected))


def test_sifting_counts_what_it_keeps_and_rejects(tmp_path):
    verdict = Verdict("s", "math", "1", "pass", 1.0, "equal", "{}")
    counts = write_sifted(tmp_path, Verdict, [verdict, rejected(1, "b"), rejected(2, "a"), verdict, rejected(3, "a")])
    assert (counts.read, counts.kept, counts.rejected) == (5, 2, 3)
    assert list(counts.report().items()) == [("rejected", 3), ("rejected_a", 2), ("rejected_b", 1)]
    assert len(list(iter_table(tmp_path, Verdict))) == 2
    assert [row.id for row in iter_table(tmp_path, Rejected)] == ["id1", "id2", "id3"]


def test_sifting_over_the_budget_is_an_error_with_the_reasons(tmp_path):
    with pytest.raises(UserError, match=r"3 of 3 .*fail 3.*max_rejected: 0\.5"):
        write_sifted(tmp_path, Verdict, map(rejected, range(3)), max_rejected=0.5)


def test_replacing_a_folder_leaves_only_the_new_one(tmp_path):
    new, target = tmp_path / "new", tmp_path / "data/out"
    target.mkdir(parents=True)
    (target / "old").write_text("old")
    new.mkdir()
    (new / "file").write_text("new")
    replace_folder(new, target)
    assert [path.name for path in target.iterdir()] == ["file"]
    assert [path.name for path in target.parent.iterdir()] == ["out"]
    assert not new.exists()


def test_a_failed_write_keeps_the_old_text(tmp_path):
    write_text(tmp_path / "a.json", json.dumps({"x": 1}))
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.json", "\ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
