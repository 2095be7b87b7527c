"""Dask as a scheduler of futures over shards; pyarrow reads and writes inside a task."""

from pipeline.cluster.local import map_tasks

__all__ = ["map_tasks"]
