"""Checkpoints that are whole or do not count: a marker written last lists every file and its size."""

import json
import shutil
from pathlib import Path

from pipeline.shards import write_json

MARKER = "complete.json"


def mark_complete(folder: Path, step: int, ranks: int) -> None:
    """Declare a checkpoint whole, then delete the ones before it."""
    write_json(folder / MARKER, {"step": step, "ranks": ranks, "files": _sizes(folder)})
    for other in folder.parent.glob("checkpoint-*"):
        if other != folder:
            shutil.rmtree(other)


def newest_complete(checkpoints: Path, ranks: int) -> tuple[Path, int] | None:
    """The newest whole checkpoint and its step. One of another number of ranks cannot be read and does not count."""
    found = []
    for folder in checkpoints.glob("checkpoint-*"):
        marker = folder / MARKER
        if marker.exists():
            value = json.loads(marker.read_text(encoding="utf-8"))
            if value["ranks"] == ranks and value["files"] == _sizes(folder):
                found.append((value["step"], folder))
    if not found:
        return None
    step, folder = max(found)
    return folder, step


def _sizes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MARKER)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
