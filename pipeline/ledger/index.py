"""Where each answer lies, in a SQLite file that is made again from the segments whenever it is missing or damaged.

It is a cache, so it is never synced: a power cut costs one pass over the segments. Looking up a key reads no text.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from pipeline.ledger.answer import CUT, TOO_LONG, Stored

_LOOKUP = 200  # keys a query; SQLite allows 32,766 variables, and was fastest with few
_SETTLED = 1_000
_FITS = (
    f"((finish_reason = '{CUT}' AND max_tokens = ?) OR (finish_reason = '{TOO_LONG}' AND max_tokens <= ?) "
    f"OR (finish_reason NOT IN ('{CUT}', '{TOO_LONG}') AND output_tokens <= ?))"
)
_TABLES = """
CREATE TABLE IF NOT EXISTS answers (
  key BLOB, max_tokens INTEGER, finish_reason TEXT, output_tokens INTEGER, prompt_tokens INTEGER,
  segment INTEGER, offset INTEGER, length INTEGER, settings INTEGER, PRIMARY KEY (key, max_tokens)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (id INTEGER PRIMARY KEY, fields TEXT UNIQUE, seen INTEGER);
CREATE TABLE IF NOT EXISTS segments (segment INTEGER PRIMARY KEY, indexed_to INTEGER, damaged INTEGER);
"""
Row = tuple[bytes, int, str, int, int, int, int, int, int]
"""A row of `answers`, in the order of its columns."""


class Index:
    """The SQLite file. Raises sqlite3.DatabaseError wherever it is damaged."""

    def __init__(self, path: Path, write: bool) -> None:
        if write:
            self._db = sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=TRUNCATE")
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute("PRAGMA cache_size=-65536")  # KiB
            self._db.executescript(_TABLES)
        else:
            self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60, check_same_thread=False)
        self._db.execute("PRAGMA mmap_size=4294967296")
        self._db.execute("SELECT COUNT(*) FROM segments").fetchone()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, list[Stored]]:
        """What is known of those of the keys that are here."""
        found: dict[bytes, list[Stored]] = {}
        for start in range(0, len(keys), _LOOKUP):
            part = keys[start : start + _LOOKUP]
            query = (
                "SELECT key, max_tokens, finish_reason, output_tokens, segment, offset, length FROM answers "
                f"WHERE key IN ({','.join('?' * len(part))})"
            )
            for row in self._db.execute(query, part):
                found.setdefault(row[0], []).append(Stored._make(row[1:]))
        return found

    def settled(self, keys: Sequence[bytes], max_tokens: int) -> set[bytes]:
        """Those of the keys that have an answer which `Stored.fits` the limit. In order of the file: a million keys
        take 3 s so, 8 s as they come."""
        found: set[bytes] = set()
        ordered = sorted(keys)
        for start in range(0, len(ordered), _SETTLED):
            part = ordered[start : start + _SETTLED]
            query = f"SELECT key FROM answers WHERE key IN ({','.join('?' * len(part))}) AND {_FITS}"
            found.update(key for (key,) in self._db.execute(query, [*part, max_tokens, max_tokens, max_tokens]))
        return found

    def add(self, rows: Iterable[Row], segment: int, indexed_to: int, damaged: int = 0) -> None:
        """Take up answers of a segment that has been read, or written, up to an offset."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany("INSERT OR REPLACE INTO answers VALUES (?,?,?,?,?,?,?,?,?)", rows)
            self._db.execute(
                "INSERT INTO segments VALUES (?,?,?) ON CONFLICT (segment) DO UPDATE SET "
                "indexed_to = excluded.indexed_to, damaged = damaged + excluded.damaged",
                (segment, indexed_to, damaged),
            )
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def forget(self, places: Iterable[tuple[bytes, int]]) -> None:
        """Drop answers by key and token limit: their lines are damaged."""
        self._db.executemany("DELETE FROM answers WHERE key = ? AND max_tokens = ?", places)

    def note_settings(self, number: int, fields: str) -> None:
        """Take up a set of key fields (canonical JSON) as the one used last."""
        self._db.execute(
            "INSERT INTO settings SELECT ?, ?, COALESCE(MAX(seen), 0) + 1 FROM settings WHERE true "
            "ON CONFLICT (id) DO UPDATE SET seen = excluded.seen",
            (number, fields),
        )

    def settings(self) -> dict[str, int]:
        """All sets of key fields (canonical JSON) with their numbers, the one used last at the end."""
        return {fields: number for number, fields in self._db.execute("SELECT id, fields FROM settings ORDER BY seen")}

    def indexed(self) -> dict[int, int]:
        """Bytes of each segment that have been taken up."""
        return dict(self._db.execute("SELECT segment, indexed_to FROM segments"))

    def damaged(self) -> int:
        """Damaged or torn lines that were met."""
        return int(self._db.execute("SELECT COALESCE(SUM(damaged), 0) FROM segments").fetchone()[0])

    def drop(self, segments: Sequence[int]) -> None:
        """Forget segments whose files have been removed, with the answers that lay in them."""
        marks = ",".join("?" * len(segments))
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute(f"DELETE FROM answers WHERE segment IN ({marks})", segments)
            self._db.execute(f"DELETE FROM segments WHERE segment IN ({marks})", segments)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def count(self) -> int:
        """Answers."""
        return int(self._db.execute("SELECT COUNT(*) FROM answers").fetchone()[0])

    def totals(self) -> list[tuple[int, str, int, int, int, int]]:
        """(settings, finish_reason, answers, prompt tokens, output tokens, bytes), by settings and reason."""
        query = (
            "SELECT settings, finish_reason, COUNT(*), SUM(prompt_tokens), SUM(output_tokens), SUM(length) "
            "FROM answers GROUP BY settings, finish_reason ORDER BY settings, finish_reason"
        )
        return list(self._db.execute(query))

    def places(self) -> Iterable[tuple[bytes, int, int, int, int]]:
        """(key, max_tokens, segment, offset, length) of every answer, in the order of the files."""
        query = "SELECT key, max_tokens, segment, offset, length FROM answers ORDER BY segment, offset"
        return self._db.execute(query)
