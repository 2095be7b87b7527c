"""Packed token rows: their table, and the order in which a run takes them."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shards import shard_paths

PACKED_TABLE = "packed"
PACKED_SCHEMA = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("labels", pa.list_(pa.int32()), nullable=False),
        pa.field("seq_lengths", pa.list_(pa.int32()), nullable=False),
        pa.field("trace_ids", pa.list_(pa.string()), nullable=False),
    ]
)
TRAINED_COLUMNS = ("input_ids", "labels", "seq_lengths")


def read_rows(packed: Path, limit: int | None) -> pa.Table:
    """The columns that training reads of the first `limit` rows."""
    tables = [pq.read_table(path, columns=list(TRAINED_COLUMNS)) for path in shard_paths(packed, PACKED_TABLE)]
    return pa.concat_tables(tables).slice(0, limit)


def add_filler(rows: pa.Table) -> pa.Table:
    """The rows and one more without loss: it fills up the last step and changes nothing."""
    filler = {"input_ids": [[0, 0]], "labels": [[-100, -100]], "seq_lengths": [[2]]}
    return pa.concat_tables([rows, pa.table(filler, schema=rows.schema)])


def plan_order(num_rows: int, epochs: int, rows_per_step: int, seed: int) -> list[int]:
    """Row numbers in the order of training, `rows_per_step` a step: each row once an epoch, each epoch shuffled.

    Epochs follow each other without a gap; only the last step is filled up, with the number `num_rows` (the filler).
    So a step is the same set of rows for any number of ranks, and a resumed run needs nothing but its step.
    """
    order: list[int] = []
    for epoch in range(epochs):
        rows = list(range(num_rows))
        random.Random(f"{seed}/{epoch}").shuffle(rows)
        order += rows
    return order + [num_rows] * (-len(order) % rows_per_step)
