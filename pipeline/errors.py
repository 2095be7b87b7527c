"""The error model, three kinds and no hierarchy.

- `UserError`: something the user can mend (a config key, a missing file, a budget). Printed without a
  traceback, exit code 1. The message names where, what was found, the rule, and the remedy.
- A bad *record* is no exception: it becomes a `Rejected` row with a reason.
- Everything else is a defect and propagates with its traceback.
"""

import errno
import os
import sqlite3

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SAID = (
    *("No space left on device", "os error 28", "database or disk is full", "Disk quota exceeded"),
    *("PytorchStreamWriter failed writing", "] . unexpected pos "),  # torch.save
)


class UserError(Exception):
    """A problem the user can mend, told in one screen without a traceback."""


def says_disk_is_full(text: str) -> bool:
    """Whether a message or log tells of a full disk: Rust and C++ libraries pass on its words alone."""
    return any(words in text for words in _SAID)


def full_disk(error: BaseException) -> str | None:
    """Where a full disk stopped us ("" if it does not say), or None if the error has another cause.

    Looks through the chain of causes: SQLite, Arrow and safetensors have errors of their own for it, and cleaning up
    on a full disk may fail as well.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, OSError) and current.errno in _FULL:
            return os.fsdecode(current.filename) if isinstance(current.filename, str | bytes) else ""
        if getattr(current, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL or says_disk_is_full(str(current)):
            return ""
        current = current.__cause__ or current.__context__
    return None
