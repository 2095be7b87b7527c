"""Tables of records as Parquet shards with a manifest, written atomically."""

from pipeline.shards.files import fsync_folder, replace_folder, sha256_of, write_json, write_text
from pipeline.shards.find import FoundTable, find_tables, iter_rows, rows_where, rows_with_prefix
from pipeline.shards.sift import Sifted, write_sifted
from pipeline.shards.table import (
    Manifest,
    Part,
    ShardInfo,
    TableWriter,
    iter_columns,
    iter_part,
    iter_table,
    read_manifest,
    row_of,
    shard_paths,
    split_parts,
    write_table,
)

__all__ = [
    "FoundTable",
    "Manifest",
    "Part",
    "ShardInfo",
    "Sifted",
    "TableWriter",
    "find_tables",
    "fsync_folder",
    "iter_columns",
    "iter_part",
    "iter_rows",
    "iter_table",
    "read_manifest",
    "replace_folder",
    "row_of",
    "rows_where",
    "rows_with_prefix",
    "sha256_of",
    "shard_paths",
    "split_parts",
    "write_json",
    "write_sifted",
    "write_table",
    "write_text",
]
