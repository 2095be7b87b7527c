"""Judgements by content: what was judged once, by the same verifier under the same limits, is not judged again.

One SQLite file, read and written by every stage that judges. It is a cache: where it is damaged it is begun anew, and
nothing is lost but time.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from pipeline.errors import full_disk
from pipeline.progress import say
from pipeline.verify import MACHINE_REASONS, Judgement

_LOOKUP = 500  # keys a query


class VerdictStore:
    """Judgements by key (16 bytes). A context manager; several processes may have it open."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "verdicts.sqlite"
        try:
            self._db = self._connect()
        except sqlite3.DatabaseError as error:
            self._begin_anew(error)

    def __enter__(self) -> "VerdictStore":
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        try:
            db.execute("CREATE TABLE IF NOT EXISTS judgements (key BLOB PRIMARY KEY, text TEXT) WITHOUT ROWID")
        except sqlite3.DatabaseError:
            db.close()
            raise
        return db

    def _begin_anew(self, error: sqlite3.DatabaseError) -> None:
        """Raises the error again where it does not tell of a damaged file."""
        damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        if not damaged or full_disk(error) is not None:
            raise error
        say(f"{self._path}: damaged, begun anew; what it held is judged again")
        for path in (self._path, self._path.with_name(self._path.name + "-journal")):
            path.unlink(missing_ok=True)
        self._db = self._connect()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Judgement]:
        """The judgements of those of the keys that are here."""
        found: dict[bytes, Judgement] = {}
        try:
            for start in range(0, len(keys), _LOOKUP):
                part = keys[start : start + _LOOKUP]
                query = f"SELECT key, text FROM judgements WHERE key IN ({','.join('?' * len(part))})"
                found.update((key, Judgement(**json.loads(text))) for key, text in self._db.execute(query, part))
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            self._db.close()
            self._begin_anew(error if isinstance(error, sqlite3.DatabaseError) else _not_readable())
            return {}
        return found

    def put(self, judgements: Mapping[bytes, Judgement]) -> None:
        """Store judgements, durable on return; not those whose reason lies in the machine, for it may be mended."""
        rows = [
            (key, json.dumps(asdict(judgement)))  # ASCII: SQLite refuses half a surrogate pair
            for key, judgement in judgements.items()
            if judgement.reason not in MACHINE_REASONS
        ]
        if not rows:
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.executemany("INSERT OR REPLACE INTO judgements VALUES (?, ?)", rows)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def _not_readable() -> sqlite3.DatabaseError:
    """A row that is no judgement, as the damage that it is."""
    error = sqlite3.DatabaseError("a row that is no judgement")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
