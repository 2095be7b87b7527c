"""Where records come from: local files and task generators."""

from pipeline.sources.read import iter_collected, iter_sources
from pipeline.sources.types import (
    AnySource,
    CollectedColumns,
    CollectedFile,
    Columns,
    FileSource,
    Found,
    Jsonl,
    Parquet,
    ReasoningGym,
    TaskFile,
)

__all__ = [
    "AnySource",
    "CollectedColumns",
    "CollectedFile",
    "Columns",
    "FileSource",
    "Found",
    "Jsonl",
    "Parquet",
    "ReasoningGym",
    "TaskFile",
    "iter_collected",
    "iter_sources",
]
