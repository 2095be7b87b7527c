"""Files that are either whole or absent: temporary name, fsync, rename."""

import errno
import hashlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill at any byte, sees the old or the new content, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write indented JSON with stable key order, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def fsync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_folder(new: Path, target: Path) -> None:
    """Move a finished folder into place; whatever stood there stays until the new one is whole beside it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex[:8]
    staged, old = target.with_name(f".{target.name}.new-{mark}"), target.with_name(f".{target.name}.old-{mark}")
    try:
        new.rename(staged)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        try:
            shutil.copytree(new, staged)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
    if target.exists():
        target.rename(old)
    staged.rename(target)
    fsync_folder(target.parent)
    shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
