"""Name files and folders by content, cached by path, size, mtime and inode.

Two models with different weights can share `config.json` and the weights' index byte for byte, so only the contents
tell them apart.
"""

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path

from pipeline.errors import UserError
from pipeline.shards import sha256_of, write_json


def fingerprint(path: Path, cache: Path | None = None, only: Collection[Path] | None = None) -> str:
    """32 hex digits over the contents of a file, or of all files under a folder with their relative names.

    `cache` is a JSON file that remembers hashes of large files; `only` narrows a folder to some of its files. Raises
    UserError if the path does not exist.
    """
    if not path.exists():
        raise UserError(f"{path}: does not exist; run the stage that makes it, or mend the path")
    known = _load(cache)
    if path.is_file():
        files = [path]
    else:
        found = path.rglob("*") if only is None else only
        files = sorted(p for p in found if p.is_file() and not p.name.startswith("."))
    lines = [f"{file.relative_to(path).as_posix()} {_hash_file(file, known)}" for file in files]
    if cache is not None:
        write_json(cache, known)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _load(cache: Path | None) -> dict[str, str]:
    if cache is None or not cache.exists():
        return {}
    try:
        value = json.loads(cache.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _hash_file(file: Path, known: dict[str, str]) -> str:
    stat = os.stat(file)
    key = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ino}"
    if key not in known:
        known[key] = sha256_of(file)
    return known[key]
