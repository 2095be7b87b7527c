"""The ledger: every finished sample under a key of everything that decides it, so that it is paid for once.

One SQLite file in write-ahead mode with full syncs: a sample is on disk before it is counted, a torn tail after a
kill is dropped by SQLite's own checksums, and each row carries a CRC against later damage. Several runs may share it.
"""

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.errors import UserError, full_disk
from pipeline.records import canonical_json

_LOOKUP = 500  # keys per query; SQLite allows 32,766 variables


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered to one request."""

    text: str
    """Raw text, with the stop marker where the server keeps it."""
    finish_reason: str
    """`stop`, `length`, or `prompt_too_long` for a prompt that the model cannot take."""
    reasoning: str | None
    """Thinking that the server already split off; null where the text is raw."""
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    seed: int


class Ledger:
    """Answers by key. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT, crc INTEGER) WITHOUT ROWID"
            )
        except (sqlite3.DatabaseError, OSError) as error:
            if full_disk(error) is not None:
                raise
            raise UserError(
                f"{self.path}: the ledger cannot be opened ({error}); move the file away, or name another "
                "folder under `ledger` in the machine file"
            ) from None

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def put(self, answers: Iterable[tuple[str, Answer]]) -> None:
        """Store answers in one durable transaction: when this returns they survive a kill or a power cut."""
        rows = []
        for key, answer in answers:
            text = canonical_json(asdict(answer))
            rows.append((key, text, zlib.crc32(text.encode())))
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite has rolled back by itself when the disk is full
                self._db.execute("ROLLBACK")
            raise

    def get(self, keys: Sequence[str]) -> Iterator[tuple[str, Answer]]:
        """Answers for those of the keys that are here, in no order; a damaged row counts as absent."""
        for start in range(0, len(keys), _LOOKUP):
            part = keys[start : start + _LOOKUP]
            marks = ",".join("?" * len(part))
            for key, text, crc in self._db.execute(f"SELECT * FROM answers WHERE key IN ({marks})", part):
                if zlib.crc32(text.encode()) == crc:
                    yield key, Answer(**json.loads(text))

    def __len__(self) -> int:
        count: int = self._db.execute("SELECT COUNT(*) FROM answers").fetchone()[0]
        return count
