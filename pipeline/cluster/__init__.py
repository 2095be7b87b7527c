"""Dask as a scheduler of futures over shards; pyarrow reads and writes inside a task."""

from pipeline.cluster.local import Workers, map_tasks

__all__ = ["Workers", "map_tasks"]
