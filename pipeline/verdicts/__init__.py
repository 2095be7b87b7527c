"""Judge samples on the cluster: join with tasks, cut into chunks, keep each finished chunk, give verdicts in order."""

from pipeline.verdicts.chunks import judge_samples

__all__ = ["judge_samples"]
