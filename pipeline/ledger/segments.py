"""Append-only files of records, one a line: eight hex digits of CRC-32, a space, JSON, a newline.

JSON holds no newline, so a reader finds the next record after any damage: a torn end, a flipped bit, a hole. Nothing
is ever overwritten; a torn end is closed with `!` and a newline before the next record is written, so that a record
that lacked the newline alone does not come back beside its successor.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CLOSED = b"!\n"
"""Closes a torn line."""
SEGMENT_BYTES = 256 << 20
"""A segment that has grown beyond this is closed."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a segment. `body` is None where the line is damaged."""

    offset: int
    length: int
    body: bytes | None


def frame(body: bytes) -> bytes:
    """The line that holds a record (JSON without a newline)."""
    return b"%08x %b\n" % (zlib.crc32(body), body)


def unframe(line: bytes) -> bytes | None:
    """The record of a line, None for a damaged or torn one."""
    if len(line) < 10 or line[8:9] != b" " or line[-1:] != b"\n":
        return None
    body = line[9:-1]
    try:
        return body if int(line[:8], 16) == zlib.crc32(body) else None
    except ValueError:
        return None


def path_of(folder: Path, segment: int) -> Path:
    """The file of a segment."""
    return folder / f"{segment:06d}.jsonl"


def segments_in(folder: Path) -> list[int]:
    """Numbers of the segments in a folder, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.jsonl") if path.stem.isdecimal())


def scan(path: Path, start: int = 0) -> Iterator[Line]:
    """Every line from a byte offset on."""
    with path.open("rb") as file:
        file.seek(start)
        offset = start
        for line in file:
            yield Line(offset, len(line), unframe(line))
            offset += len(line)


class Writer:
    """Appends to the last segment of a folder. One at a time, under the ledger's lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        known = segments_in(folder)
        self._open(known[-1] if known else 1)

    def _open(self, segment: int) -> None:
        path = path_of(self._folder, segment)
        new = not path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.segment, self._size = segment, os.fstat(self._fd).st_size
        self._torn = self._size > 0 and os.pread(self._fd, 1, self._size - 1) != b"\n"
        if new:
            sync_folder(self._folder)

    def append(self, bodies: Sequence[bytes]) -> list[tuple[int, int, int]]:
        """Write records and sync them; returns (segment, offset, length) of each.

        Raises OSError, with nothing but a torn end left behind, when the disk is full.
        """
        if self._size >= SEGMENT_BYTES:
            os.close(self._fd)
            self._open(self.segment + 1)
        lines = [frame(body) for body in bodies]
        closed = CLOSED if self._torn else b""
        start = self._size + len(closed)
        block = closed + b"".join(lines)
        self._torn = True
        view = memoryview(block)
        while view:
            written = os.write(self._fd, view)
            self._size += written
            view = view[written:]
        os.fdatasync(self._fd)
        self._torn = False
        places = []
        for line in lines:
            places.append((self.segment, start, len(line)))
            start += len(line)
        return places

    def close(self) -> None:
        """Close the file; everything appended is on disk already."""
        os.close(self._fd)


def sync_folder(folder: Path) -> None:
    """Make a new file name durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
