"""Look after a ledger: check every line against the index, and drop what no request can ever be given."""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pipeline.errors import UserError
from pipeline.ledger import segments as files
from pipeline.ledger.answer import Stored, decode, encode
from pipeline.ledger.ledger import Ledger, row_of
from pipeline.ledger.segments import CLOSED, Line, frame, path_of, segments_in, sync_folder, unframe
from pipeline.progress import Progress

COMPACTING = "compacting"
"""Folder beside `segments` in which new ones are written; what a kill leaves there is of no use to anybody."""
SHOWN = 20
"""Damaged lines that are named; the others are counted."""
_LONG_BYTES = 100_000_000
"""From here on a check takes seconds and shows its progress."""
_BLOCK = 2_000  # lines looked up together
_SETTLE_S = 1.0  # after it the end of a line that somebody is writing has come


@dataclass(slots=True)
class Checked:
    """What the lines of all segments are, by number and bytes."""

    segments: int = 0
    bytes: int = 0
    lines: int = 0
    in_force: int = 0
    """Answers that a request can be given."""
    in_force_bytes: int = 0
    superseded: int = 0
    """Answers of which a later line has the same key and token limit."""
    superseded_bytes: int = 0
    declarations: int = 0
    """Lines that name key fields."""
    damaged: int = 0
    damaged_bytes: int = 0
    damage: list[str] = field(default_factory=list)
    """`FILE:LINE` of the first of them."""
    pending: int = 0
    """Whole answers that the index has not come to yet: a run is writing them."""
    unindexed: int = 0
    """Whole answers that the index should know and does not, or knows wrongly."""
    gone: int = 0
    """Answers that the index knows and that cannot be read any more."""

    @property
    def sound(self) -> bool:
        """Whether everything is whole and found."""
        return not (self.damaged or self.unindexed or self.gone)


def check(ledger: Ledger, progress: bool = True) -> Checked:
    """Read every line. Needs no lock: what is appended meanwhile is left to the next time.

    Raises UserError if the segments are exchanged meanwhile.
    """
    found, known = Checked(), len(ledger)
    folder = ledger.folder / "segments"
    sizes = {number: path_of(folder, number).stat().st_size for number in segments_in(folder)}
    found.segments, found.bytes = len(sizes), sum(sizes.values())
    bar = Progress("ledger", max(1, found.bytes // 1_000_000), "MB") if progress and found.bytes > _LONG_BYTES else None
    with bar or nullcontext():
        shown = done = 0
        for number, size in sizes.items():
            for block in _blocks(path_of(folder, number), size):
                _take(ledger, found, path_of(folder, number), number, block)
                done += sum(line.length for _, line in block)
                if bar is not None:
                    bar.advance(done // 1_000_000 - shown, f"{found.damaged} damaged lines")
                    shown = done // 1_000_000
    found.gone = max(0, known - found.in_force)
    return found


def _blocks(path: Path, size: int) -> Iterator[list[tuple[int, Line]]]:
    """The numbered lines of the first `size` bytes of a segment."""
    block: list[tuple[int, Line]] = []
    try:
        for number, line in enumerate(files.scan(path), 1):
            if line.offset >= size or _is_being_written(path, line):
                break
            block.append((number, line))
            if len(block) == _BLOCK:
                yield block
                block = []
    except FileNotFoundError:
        raise UserError(f"{path}: went away meanwhile (the ledger was compacted); run the same command again") from None
    yield block


def _is_being_written(path: Path, line: Line) -> bool:
    """Whether an unfinished last line has grown once a moment has passed; a torn one never does."""
    if line.body is not None:
        return False
    end = line.offset + line.length
    with path.open("rb") as file:
        file.seek(end - 1)
        if file.read(1) == b"\n":
            return False
    if path.stat().st_size <= end:
        time.sleep(_SETTLE_S)
    return path.stat().st_size > end


def _take(ledger: Ledger, found: Checked, path: Path, segment: int, block: Sequence[tuple[int, Line]]) -> None:
    """Count the lines of a block, each answer by what the index says of its key."""
    indexed_to = ledger.index.indexed().get(segment, 0)
    answers: list[tuple[bytes, Stored]] = []
    for number, line in block:
        found.lines += 1
        record = None if line.body is None else decode(line.body)
        if record is not None and "fields" in record:
            found.declarations += 1
        elif record is not None:
            row = row_of(record, segment, line.offset, line.length)
            answers.append((row[0], Stored(row[1], row[2], row[3], *row[5:8])))
        elif line.length > len(CLOSED):  # a shorter one closes a torn one
            found.damaged += 1
            found.damaged_bytes += line.length
            if len(found.damage) < SHOWN:
                found.damage.append(f"{path}:{number}")
    stored = ledger.find([key for key, _ in answers])
    for key, here in answers:
        there = next((one for one in stored.get(key, ()) if one.max_tokens == here.max_tokens), None)
        if there == here:
            found.in_force += 1
            found.in_force_bytes += here.length
        elif there is not None and (there.segment, there.offset) > (segment, here.offset):
            found.superseded += 1
            found.superseded_bytes += here.length
        elif here.offset >= indexed_to:
            found.pending += 1
        else:
            found.unindexed += 1


def survey(ledger: Ledger) -> Checked:
    """Check a ledger whose lock we hold, and make its index again first where it names anything but whole answers.

    Without that a damaged line would still hide the whole one that it superseded.
    """
    found = check(ledger)
    if found.sound:
        return found
    settings = ledger.index.settings()
    ledger.rebuild()
    for fields, number in settings.items():  # those whose line is damaged are known to the old index alone
        if number not in ledger.index.settings().values():
            ledger.index.note_settings(number, fields)
    return check(ledger)


def compact(ledger: Ledger) -> None:
    """Write all answers in force to new segments, and put them in the place of the old ones. Survives a kill anywhere.

    Needs as much free space as the answers in force take.
    """
    folder = ledger.folder / COMPACTING
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        ledger.replace_segments(_write(ledger, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kept_bytes(ledger: Ledger) -> int:
    """What the segments will hold once compacted."""
    answers = sum(total[-1] for total in ledger.index.totals())
    return answers + sum(map(len, _declarations(ledger.index.settings())))


def _declarations(settings: Mapping[str, int]) -> list[bytes]:
    """The lines that name the key fields: all at the head, the one used last at the end."""
    return [frame(encode({"settings": number, "fields": json.loads(fields)})) for fields, number in settings.items()]


def _write(ledger: Ledger, folder: Path) -> list[Path]:
    """New segments in a folder, synced."""
    source: IO[bytes] | None = None
    opened = -1
    with ExitStack() as held:
        new = held.enter_context(closing(_NewSegments(folder)))
        for line in _declarations(ledger.index.settings()):
            new.write(line)
        for _, _, number, offset, length in ledger.index.places():
            if number != opened or source is None:
                if source is not None:
                    source.close()
                path = path_of(ledger.folder / "segments", number)
                source, opened = held.enter_context(path.open("rb")), number
            source.seek(offset)
            line = source.read(length)
            if unframe(line) is not None:
                new.write(line)
    sync_folder(folder)
    return new.paths


class _NewSegments:
    """Segments that are written in one go, each synced when the next one is begun."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self.paths: list[Path] = []

    def write(self, line: bytes) -> None:
        """Add a line."""
        if self._file is None or self._file.tell() >= files.SEGMENT_BYTES:
            self.close()
            self.paths.append(path_of(self._folder, len(self.paths) + 1))
            self._file = self.paths[-1].open("wb")
        self._file.write(line)

    def close(self) -> None:
        """Sync and close the last one."""
        file, self._file = self._file, None
        if file is not None:
            with file:
                file.flush()
                os.fsync(file.fileno())
