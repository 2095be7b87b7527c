"""Find tables below a folder, and rows in them by the value of one column, without reading the other columns first."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import UserError
from pipeline.shards.table import Manifest, read_manifest, shard_paths


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table on disk."""

    folder: Path
    manifest: Manifest


def find_tables(root: Path) -> list[FoundTable]:
    """Every whole table at or below a folder, by path."""
    found = []
    for file in sorted(root.rglob("manifest.json")):
        try:
            found.append(FoundTable(file.parent, read_manifest(file.parent)))
        except (UserError, KeyError, TypeError):
            continue  # some other program's manifest
    return found


def iter_rows(table: FoundTable) -> Iterator[dict[str, Any]]:
    """Rows in order, whatever the schema; a few in memory at a time."""
    for shard in shard_paths(table.folder, table.manifest.table):
        for batch in _open(shard).iter_batches(batch_size=64):
            yield from batch.to_pylist()


def rows_where(table: FoundTable, column: str, values: Collection[str]) -> Iterator[dict[str, Any]]:
    """Rows whose column holds one of the values, in order."""
    wanted = pa.array(sorted(values), pa.string())
    yield from _matching(table, column, lambda found: pc.is_in(found, value_set=wanted))


def rows_with_prefix(table: FoundTable, column: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Rows whose column begins with the prefix, in order."""
    yield from _matching(table, column, lambda found: pc.starts_with(found, prefix))


def _matching(table: FoundTable, column: str, test: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a function
    for shard in shard_paths(table.folder, table.manifest.table):
        file = _open(shard)
        for group in range(file.num_row_groups):
            chosen = pc.indices_nonzero(test(file.read_row_group(group, columns=[column]).column(0)))
            if len(chosen):
                yield from file.read_row_group(group).take(chosen).to_pylist()


def _open(shard: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(shard)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{shard}: cannot be read ({error}); run the stage that wrote it again") from None
