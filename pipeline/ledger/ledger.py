"""The ledger: every finished answer under a key of everything that decides it, so that it is paid for once.

    ledger/segments/000001.jsonl   the answers: checksummed lines that are only ever appended, synced before they count
    ledger/index.sqlite            where each lies; a cache that is made again from the segments
    ledger/lock, lock.json         one writer at a time, and who it is; readers need no lock

Plain files with synced appends work on shared disks, where SQLite's write-ahead log does not.
"""

import contextlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import UserError, full_disk
from pipeline.ledger.answer import Answer, Stored, decode, encode
from pipeline.ledger.index import Index, Row
from pipeline.ledger.segments import CLOSED, Line, Writer, path_of, scan, segments_in, sync_folder, unframe
from pipeline.records import canonical_json
from pipeline.work import one_writer

Result = TypeVar("Result")
_BLOCK = 2_000  # lines taken into the index together
_TAKE_UP_S = 10.0  # how long readers may wait for what was put


class Ledger:
    """Answers by key (16 bytes) and token limit. A context manager; `write=True` takes the lock.

    Raises UserError if another process is writing, or the folder cannot be used.
    """

    def __init__(self, folder: Path, write: bool = True) -> None:
        self.folder, self._segments = folder, folder / "segments"
        self._guard = threading.RLock()
        self._open = contextlib.ExitStack()
        self._files: dict[int, int] = {}
        self._taken_up_at = -math.inf
        self._own: dict[int, tuple[list[Row], int]] = {}
        """Written, but not yet in the index: rows by segment, and how far they reach."""
        self._writes = write
        if write:
            self._segments.mkdir(parents=True, exist_ok=True)
            self._open.enter_context(one_writer(folder, "this ledger is being written"))
            self._writer = Writer(self._segments)
        elif not self._segments.is_dir():
            raise UserError(f"{folder}: holds no ledger; name its folder under `ledger` in the machine file")
        self._settings: int | None = None
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back. Everything that was put is on disk already."""
        if hasattr(self, "_index"):
            with contextlib.suppress(sqlite3.DatabaseError):  # a full disk: the next opening takes the rest up
                self._take_up_own()
            self._index.close()
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()
        if self._writes and hasattr(self, "_writer"):
            self._writer.close()
        self._open.close()

    def _connect(self) -> None:
        path = self.folder / "index.sqlite"
        if not self._writes:
            try:
                self._index = Index(path, write=False)
            except sqlite3.DatabaseError:
                raise UserError(
                    f"{path}: missing or damaged; `warmstart ledger compact` makes it again from the segments, and so "
                    "does the next `warmstart generate`"
                ) from None
            return
        try:
            self._index = Index(path, write=True)
            self._take_up()
        except sqlite3.DatabaseError as error:
            if full_disk(error) is not None:
                raise
            self.rebuild()

    def rebuild(self) -> None:
        """Make the index again from the segments."""
        if hasattr(self, "_index"):
            self._index.close()
        self._own.clear()
        for name in ("index.sqlite", "index.sqlite-journal"):
            (self.folder / name).unlink(missing_ok=True)
        self._index = Index(self.folder / "index.sqlite", write=True)
        self._take_up()

    def _take_up(self) -> None:
        """Index what was appended since: after a kill the last lines, after the loss of the index all of them."""
        known, present = self._index.indexed(), segments_in(self._segments)
        sizes = {segment: path_of(self._segments, segment).stat().st_size for segment in present}
        if any(sizes.get(segment, -1) < to for segment, to in known.items()):
            # The files are not those that were indexed: put back from a backup, or compacted.
            raise sqlite3.DatabaseError("the index is newer than the segments")
        for segment in present:
            block: list[Line] = []
            for line in scan(path_of(self._segments, segment), known.get(segment, 0)):
                block.append(line)
                if len(block) == _BLOCK:
                    self._index_lines(segment, block)
                    block = []
            if block:
                self._index_lines(segment, block)

    def _index_lines(self, segment: int, lines: Sequence[Line]) -> None:
        rows: list[Row] = []
        damaged = 0
        for line in lines:
            record = None if line.body is None else decode(line.body)
            if record is None:
                damaged += line.length > len(CLOSED)  # a shorter one closes a torn one
            elif "fields" in record:
                self._index.note_settings(record["settings"], canonical_json(record["fields"]))
            else:
                rows.append(row_of(record, segment, line.offset, line.length))
        self._index.add(rows, segment, lines[-1].offset + lines[-1].length, damaged)

    def _take_up_own(self) -> None:
        """Index what this process has written since the last time."""
        while self._own:
            self._taken_up_at = time.monotonic()
            segment, (rows, end) = next(iter(self._own.items()))
            self._index.add(rows, segment, end)
            del self._own[segment]

    def _indexed(self, action: Callable[[Index], Result]) -> Result:
        """Ask the index; a damaged one is made again first."""
        with self._guard:
            try:
                self._take_up_own()
                return action(self._index)
            except sqlite3.DatabaseError as error:
                if not self._writes or full_disk(error) is not None:
                    raise
                self.rebuild()
                return action(self._index)

    def declare(self, fields: Mapping[str, Any]) -> None:
        """Name the key fields of the answers that follow: they are stored once, and told apart later."""
        text = canonical_json(fields)
        with self._guard:
            known = self._index.settings()
            number = known.get(text, max(known.values(), default=0) + 1)
            if not known or list(known)[-1] != text:
                place = self._writer.append([encode({"settings": number, "fields": fields})])[0]
                self._take_up_own()
                self._index.note_settings(number, text)
                self._index.add([], place[0], place[1] + place[2])
            self._settings = number

    def known_fields(self) -> list[dict[str, Any]]:
        """All sets of key fields that were ever declared here, the one used last at the end."""
        with self._guard:
            return [json.loads(text) for text in self._index.settings()]

    def put(self, answers: Iterable[tuple[bytes, Answer]]) -> None:
        """Store answers: when this returns they survive a kill or a power cut. One sync for all of them."""
        if self._settings is None:
            self.declare({})
        assert self._settings is not None
        pairs = list(answers)
        bodies = [answer.to_record(key, self._settings) for key, answer in pairs]
        with self._guard:
            places = self._writer.append(bodies)
            rows: list[Row] = [
                (
                    key,
                    answer.max_tokens,
                    answer.finish_reason,
                    answer.num_output_tokens,
                    answer.num_prompt_tokens,
                    *place,
                    self._settings,
                )
                for (key, answer), place in zip(pairs, places, strict=True)
            ]
            for row in rows:
                known, _ = self._own.get(row[5], ([], 0))
                known.append(row)
                self._own[row[5]] = (known, row[6] + row[7])
            # Not with each put: a slow server's answers come one by one, and a transaction is most of what one costs.
            many = sum(len(known) for known, _ in self._own.values()) >= _BLOCK
            if many or time.monotonic() - self._taken_up_at > _TAKE_UP_S:
                self._indexed(lambda index: None)

    def find(self, keys: Sequence[bytes]) -> dict[bytes, list[Stored]]:
        """What is stored of those of the keys that are here; no text is read."""
        return self._indexed(lambda index: index.find(keys))

    def settled(self, keys: Sequence[bytes], max_tokens: int) -> set[bytes]:
        """Those of the keys that need not be asked for with this token limit."""
        return self._indexed(lambda index: index.settled(keys, max_tokens))

    def read(self, places: Sequence[tuple[bytes, Stored]]) -> Iterator[Answer | None]:
        """The answers at places, in order. A damaged one is None, and from then on absent."""
        for key, stored in places:
            answer = self._read_one(key, stored)
            if answer is None:
                self._forget(key, stored.max_tokens)
            yield answer

    def _forget(self, key: bytes, max_tokens: int) -> None:
        self._indexed(lambda index: index.forget([(key, max_tokens)]))

    def _read_one(self, key: bytes, stored: Stored) -> Answer | None:
        try:
            fd = self._files.get(stored.segment)
            if fd is None:
                fd = self._files[stored.segment] = os.open(path_of(self._segments, stored.segment), os.O_RDONLY)
            body = unframe(os.pread(fd, stored.length, stored.offset))
        except OSError:
            return None
        record = None if body is None else decode(body)
        if record is None or record.get("key") != key.hex():
            return None
        return Answer.of_record(record)

    @property
    def index(self) -> Index:
        """For those who look after the ledger."""
        self._take_up_own()
        return self._index

    def replace_segments(self, new: Sequence[Path]) -> None:
        """Put finished, synced files in the place of all segments; they must hold every answer in force.

        The new ones come in under higher numbers before the first old one goes, and an answer that stands twice with
        the same text does no harm: a kill at any point leaves a complete ledger, and nothing has to be undone.
        """
        with self._guard:
            old = segments_in(self._segments)
            for number, file in enumerate(new, old[-1] + 1):
                os.replace(file, path_of(self._segments, number))
            sync_folder(self._segments)
            self._take_up()
            for number in old:
                path_of(self._segments, number).unlink()
            sync_folder(self._segments)
            self._index.drop(old)
            for fd in self._files.values():
                os.close(fd)
            self._files.clear()
            self._writer.close()
            self._writer = Writer(self._segments)

    def __len__(self) -> int:
        return self._indexed(Index.count)


def row_of(record: Mapping[str, Any], segment: int, offset: int, length: int) -> Row:
    """The index's row of an answer's line."""
    answer = record["answer"]
    return (
        bytes.fromhex(record["key"]),
        answer["max_tokens"],
        answer["finish_reason"],
        answer["num_output_tokens"],
        answer["num_prompt_tokens"],
        segment,
        offset,
        length,
        record["settings"],
    )
