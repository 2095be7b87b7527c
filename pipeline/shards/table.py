"""A table is a folder: `part-00000.parquet`, ... and `manifest.json` with rows, bytes and sha256 of each shard."""

import contextlib
import functools
import io
import json
import operator
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UserError
from pipeline.records import Record, schema_of, table_name
from pipeline.shards.files import fsync_folder, sha256_of, write_json

MAX_SHARD_BYTES = 256 << 20
"""Text bytes per shard before a new one is begun; the design asks for 100-500 MB."""
MAX_GROUP_BYTES = 64 << 20
"""Text bytes per row group: the Hub viewer refuses groups over 286 MiB and `datasets` aims at 100 MB."""
BATCH_ROWS = 1024
"""Rows that are Python objects at a time; Arrow holds the rest of a row group in a third of the memory."""

RecordT = TypeVar("RecordT", bound=Record)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One line of a manifest."""

    file: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a table holds."""

    table: str
    rows: int
    shards: tuple[ShardInfo, ...]


class _Memory(io.RawIOBase):
    """What Arrow writes to: never fails. Arrow 26 ends the process (SIGABRT) when the disk is full in a row group."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        self._pieces.append(bytes(data))
        self._position += len(self._pieces[-1])
        return len(self._pieces[-1])

    def drain_to(self, file: IO[bytes]) -> None:
        """Write to disk what has come in; a full disk is an OSError here."""
        pieces, self._pieces = self._pieces, []
        file.writelines(pieces)


def row_of(record: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any record
    """A record's values in schema order. `dataclasses.astuple` copies every value, ten times as slow."""
    return _getter(*type(record).__slots__)(record)


@functools.cache
def _getter(*names: str) -> Callable[[Any], tuple[Any, ...]]:
    return operator.attrgetter(*names)


class TableWriter:
    """Write rows of one schema to shards under `folder`; a context manager that writes the manifest last.

    Memory is bounded by one row group. A table without a manifest is unfinished and is never read.
    """

    def __init__(self, folder: Path, name: str, schema: pa.Schema, max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
        self._folder, self._name, self._schema = folder, name, schema
        self._max_shard_bytes = max_shard_bytes
        self._rows: list[tuple[Any, ...]] = []
        self._batches: list[pa.RecordBatch] = []
        self._group_bytes = self._shard_bytes = self._shard_rows = 0
        self._shards: list[ShardInfo] = []
        self._writer: pq.ParquetWriter | None = None
        self._temporary = folder / f".part.tmp-{uuid.uuid4().hex[:8]}"
        self.rows = 0

    def __enter__(self) -> "TableWriter":
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def write(self, row: tuple[Any, ...]) -> None:
        """Add one row, in schema order."""
        self._rows.append(row)
        self.rows += 1
        self._group_bytes += sum(len(v) if isinstance(v, str | list) else 8 for v in row)
        if len(self._rows) >= BATCH_ROWS:
            self._flush_batch()
        if self._group_bytes >= MAX_GROUP_BYTES or self._shard_bytes + self._group_bytes >= self._max_shard_bytes:
            self._flush_group()
        if self._shard_bytes >= self._max_shard_bytes:
            self._close_shard()

    def _flush_batch(self) -> None:
        if not self._rows:
            return
        columns = [
            pa.array(column, type=field.type)
            for column, field in zip(zip(*self._rows, strict=True), self._schema, strict=True)
        ]
        self._batches.append(pa.record_batch(columns, schema=self._schema))
        self._rows = []

    def _flush_group(self) -> None:
        self._flush_batch()
        if not self._batches:
            return
        if self._writer is None:
            self._file, self._memory = self._temporary.open("wb"), _Memory()
            self._writer = pq.ParquetWriter(
                self._memory,
                self._schema,
                compression="zstd",
                write_page_index=True,
                use_content_defined_chunking=True,
            )
        group = pa.Table.from_batches(self._batches, schema=self._schema).combine_chunks()
        self._writer.write_table(group)
        self._memory.drain_to(self._file)
        self._shard_rows += group.num_rows
        self._shard_bytes += self._group_bytes
        self._batches, self._group_bytes = [], 0

    def _close_shard(self) -> None:
        self._flush_group()
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        with self._file as file:
            self._memory.drain_to(file)
            file.flush()
            os.fsync(file.fileno())
        path = self._folder / f"part-{len(self._shards):05d}.parquet"
        self._temporary.replace(path)
        self._shards.append(ShardInfo(path.name, self._shard_rows, path.stat().st_size, sha256_of(path)))
        self._shard_rows = self._shard_bytes = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
            elif self._writer is not None:
                self._writer.close()
                with contextlib.suppress(OSError):  # on a full disk closing fails like writing did
                    self._file.close()
        finally:
            self._temporary.unlink(missing_ok=True)

    def _finish(self) -> None:
        self._close_shard()
        fsync_folder(self._folder)
        shards = [asdict(shard) for shard in self._shards]
        write_json(self._folder / "manifest.json", {"table": self._name, "rows": self.rows, "shards": shards})


def write_table(output: Path, record_type: type[RecordT], records: Iterable[RecordT]) -> int:
    """Write records to `output/<table name>/` and return how many there were."""
    name = table_name(record_type)
    with TableWriter(output / name, name, schema_of(record_type)) as writer:
        for record in records:
            writer.write(row_of(record))
    return writer.rows


def table_folder(path: Path, name: str) -> Path:
    """The folder of a table: `path` itself, or `path/name` where `path` is a stage's output."""
    for folder in (path / name, path):
        if (folder / "manifest.json").exists():
            return folder
    raise UserError(
        f"{path}: holds no table `{name}` (no manifest.json); give the output folder of the stage that makes {name}"
    )


def read_manifest(path: Path, name: str | None = None) -> Manifest:
    """Read a table's manifest. Raises UserError where there is none or it belongs to another table.

    Without a name `path` is the folder of any table.
    """
    file = (table_folder(path, name) if name else path) / "manifest.json"
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: not valid JSON ({error}); run the stage that wrote it again") from None
    if name and value["table"] != name:
        raise UserError(f"{file}: holds the table `{value['table']}`, but `{name}` is needed here")
    return Manifest(value["table"], value["rows"], tuple(ShardInfo(**shard) for shard in value["shards"]))


def shard_paths(path: Path, name: str) -> list[Path]:
    """The shards of a table in order, checked to exist with the size that the manifest states."""
    folder = table_folder(path, name)
    paths = []
    for shard in read_manifest(path, name).shards:
        file = folder / shard.file
        found = file.stat().st_size if file.exists() else None
        if found != shard.bytes:
            raise UserError(
                f"{file}: {found} bytes found, the manifest says {shard.bytes}; run the stage that wrote it again"
            )
        paths.append(file)
    return paths


def iter_table(path: Path, record_type: type[RecordT]) -> Iterator[RecordT]:
    """Stream the records of a table in order, one batch in memory at a time."""
    names = schema_of(record_type).names
    for shard in shard_paths(path, table_name(record_type)):
        for batch in pq.ParquetFile(shard).iter_batches(BATCH_ROWS, columns=names):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield record_type(*row)


def iter_columns(path: Path, record_type: type[Record], names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Stream a few columns of a table, row by row; the others are not read."""
    for shard in shard_paths(path, table_name(record_type)):
        for batch in pq.ParquetFile(shard).iter_batches(BATCH_ROWS, columns=list(names)):
            yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)


@dataclass(frozen=True, slots=True)
class Part:
    """One shard of a table and how many of its first rows to read: the unit that is sent to a worker."""

    shard: Path
    rows: int


def split_parts(path: Path, record_type: type[RecordT], limit: int | None) -> list[Part]:
    """The shards of a table as parts, cut at the limit."""
    name = table_name(record_type)
    manifest = read_manifest(path, name)
    parts = []
    left = limit if limit is not None else manifest.rows
    for shard, info in zip(shard_paths(path, name), manifest.shards, strict=True):
        if left > 0:
            parts.append(Part(shard, min(left, info.rows)))
        left -= info.rows
    return parts


def iter_part(part: Part, record_type: type[RecordT]) -> Iterator[RecordT]:
    """Stream the records of a part in order."""
    left = part.rows
    for batch in pq.ParquetFile(part.shard).iter_batches(BATCH_ROWS, columns=schema_of(record_type).names):
        for row in list(zip(*(column.to_pylist() for column in batch.columns), strict=True))[:left]:
            yield record_type(*row)
        left -= min(left, batch.num_rows)
        if not left:
            return
