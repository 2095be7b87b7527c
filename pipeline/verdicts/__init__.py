"""Judge samples on the cluster: joined with tasks, each verdict kept by content, given in order."""

from pipeline.verdicts.judging import Judge, verification_manifest
from pipeline.verdicts.tasks import TasksInStep

__all__ = ["Judge", "TasksInStep", "verification_manifest"]
