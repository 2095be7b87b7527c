"""Where records come from: local files and task generators."""

from pipeline.sources.read import iter_sources
from pipeline.sources.types import AnySource, Columns, FileSource, Found, Jsonl, Parquet, ReasoningGym

__all__ = ["AnySource", "Columns", "FileSource", "Found", "Jsonl", "Parquet", "ReasoningGym", "iter_sources"]
