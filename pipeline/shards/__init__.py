"""Tables of records as Parquet shards with a manifest, written atomically."""

from pipeline.shards.files import fsync_folder, replace_folder, sha256_of, write_json, write_text
from pipeline.shards.sift import Sifted, write_sifted
from pipeline.shards.table import (
    Manifest,
    Part,
    ShardInfo,
    TableWriter,
    iter_part,
    iter_table,
    read_manifest,
    shard_paths,
    split_parts,
    write_table,
)

__all__ = [
    "Manifest",
    "Part",
    "ShardInfo",
    "Sifted",
    "TableWriter",
    "fsync_folder",
    "iter_part",
    "iter_table",
    "read_manifest",
    "replace_folder",
    "sha256_of",
    "shard_paths",
    "split_parts",
    "write_json",
    "write_sifted",
    "write_table",
    "write_text",
]
