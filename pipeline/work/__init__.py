"""The life of one stage run: its work folder, its lock, and the guard that ends what it started."""

from pipeline.work.fingerprint import fingerprint
from pipeline.work.folder import FINGERPRINTS, WorkFolder, one_writer, open_work, progress_folder
from pipeline.work.guard import Guard, GuardedProcess, current_guard
from pipeline.work.sources import stage_sources

__all__ = [
    "FINGERPRINTS",
    "Guard",
    "GuardedProcess",
    "WorkFolder",
    "current_guard",
    "fingerprint",
    "one_writer",
    "open_work",
    "progress_folder",
    "stage_sources",
]
