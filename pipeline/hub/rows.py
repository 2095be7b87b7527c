"""Traces as typed Parquet: `messages` a list of structs, scalars beside it, small row groups, stable bytes."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UserError
from pipeline.records import Trace, canonical_json, schema_of

MAX_GROUP_BYTES = 16 << 20
"""Text bytes of a row group: what a viewer or a shuffling reader takes in at once."""
MAX_GROUP_ROWS = 10_000
MAX_SHARD_BYTES = 256 << 20
"""Text bytes of a shard."""
CALL = pa.struct(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
    ]
)
MESSAGE_FIELDS: Mapping[str, pa.DataType] = {
    "role": pa.string(),
    "content": pa.string(),
    "reasoning_content": pa.string(),
    "tool_calls": pa.list_(CALL),
    "tool_call_id": pa.string(),
    "name": pa.string(),
}
ALWAYS = ("role", "content")
"""Fields of every message; the others are columns only where some message of the set has them."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One Parquet file of a split."""

    file: str
    rows: int
    bytes: int


class Digest:
    """Number and content of rows in order, equal for what was written and what was loaded back."""

    def __init__(self) -> None:
        self.rows = 0
        self._hash = hashlib.sha256()

    def add(self, row: Mapping[str, Any]) -> None:
        """Take in the next row."""
        self._hash.update(canonical_json(row).encode(errors="surrogatepass") + b"\n")
        self.rows += 1

    @property
    def sha256(self) -> str:
        """Hex digest of the rows so far."""
        return self._hash.hexdigest()


def fields_used(trace: Trace) -> set[str]:
    """Fields that the trace's messages have. Raises UserError for one that has no type."""
    used = {key for message in json.loads(trace.messages) for key, value in message.items() if value is not None}
    if unknown := sorted(used - MESSAGE_FIELDS.keys()):
        raise UserError(
            f"trace {trace.trace_id}: a message has the field `{unknown[0]}`, and published messages have only "
            f"{', '.join(MESSAGE_FIELDS)}; drop the field in the source"
        )
    return used


def message_fields(used: Iterable[str]) -> tuple[str, ...]:
    """The fields that every message of a set gets, given those that some message has."""
    wanted = {*ALWAYS, *used}
    return tuple(name for name in MESSAGE_FIELDS if name in wanted)


def published_schema(used: Iterable[str]) -> pa.Schema:
    """The schema of traces with `messages` typed."""
    schema = schema_of(Trace)
    message = pa.struct([(name, MESSAGE_FIELDS[name]) for name in used])
    return schema.set(schema.get_field_index("messages"), pa.field("messages", pa.list_(message), nullable=False))


def typed_row(trace: Trace, used: Iterable[str]) -> dict[str, Any]:
    """A trace as a row of the published schema."""
    row = {field.name: getattr(trace, field.name) for field in fields(trace)}
    row["messages"] = [
        {name: _value(name, message.get(name)) for name in used} for message in json.loads(trace.messages)
    ]
    return row


def _value(name: str, value: Any) -> Any:  # noqa: ANN401 - a JSON value
    if name != "tool_calls" or value is None:
        return value
    return [_call(call) for call in value]


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call in OpenAI's form; arguments become JSON text, so that no two calls share keys."""
    function = call.get("function", call)
    arguments = function.get("arguments")
    text = arguments if arguments is None or isinstance(arguments, str) else canonical_json(arguments)
    return {
        "id": call.get("id"),
        "type": call.get("type", "function"),
        "function": {"name": function.get("name"), "arguments": text},
    }


def write_split(folder: Path, split: str, schema: pa.Schema, rows: Iterable[dict[str, Any]]) -> list[Shard]:
    """Write `folder/<split>-00000-of-0000N.parquet` and return the shards. Memory is bounded by one row group."""
    folder.mkdir(parents=True, exist_ok=True)
    counts: list[int] = []
    size = MAX_SHARD_BYTES
    with contextlib.ExitStack() as open_shard:
        for batch, added in _groups(rows):
            if size >= MAX_SHARD_BYTES:
                open_shard.close()
                writer = open_shard.enter_context(_writer(folder / _temporary(split, len(counts)), schema))
                counts.append(0)
                size = 0
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            counts[-1] += len(batch)
            size += added
    shards = []
    for number, count in enumerate(counts):
        final = folder / f"{split}-{number:05d}-of-{len(counts):05d}.parquet"
        (folder / _temporary(split, number)).rename(final)
        shards.append(Shard(f"{folder.name}/{final.name}", count, final.stat().st_size))
    return shards


def _temporary(split: str, number: int) -> str:
    return f".{split}-{number:05d}.tmp"


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, compression="zstd", write_page_index=True, use_content_defined_chunking=True)


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Row groups with their size in text bytes."""
    batch: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(row["tools"] or "") + sum(len(str(message)) for message in row["messages"])
        if size >= MAX_GROUP_BYTES or len(batch) >= MAX_GROUP_ROWS:
            yield batch, size
            batch, size = [], 0
    if batch:
        yield batch, size
