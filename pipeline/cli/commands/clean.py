"""List what killed and failed runs left behind, with sizes; remove it with --yes.

Leftovers are the work folders below .work/ (a killed stage would resume from its own), and half-moved outputs and
temporary files below data/. The ledger of finished samples stays unless --ledger is given, and the verdicts known so
far unless --verdicts is. Nothing is removed while a stage runs.

    warmstart clean
    warmstart clean --yes
"""

import argparse
import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.cli.text import size
from pipeline.config import load_machine
from pipeline.errors import UserError

DIGEST = re.compile(r"[0-9a-f]{16}")
HALF_MOVED = re.compile(r"\..+\.(old|new|tmp)-[0-9a-f]{8}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to remove, and whether."""
    parser.add_argument("--yes", action="store_true", help="remove what is listed")
    parser.add_argument("--ledger", action="store_true", help="the ledger as well: every sample is paid for again")
    parser.add_argument("--verdicts", action="store_true", help="the verdicts as well: every answer is judged again")
    parser.add_argument("--work", metavar="DIR", type=Path, default=Path(".work"), help="default .work")
    parser.add_argument("--data", metavar="DIR", type=Path, default=Path("data"), help="default data")


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that can go."""

    path: Path
    what: str

    @property
    def bytes(self) -> int:
        """Bytes on disk of the files in it."""
        files = [self.path] if not self.path.is_dir() else list(self.path.rglob("*"))
        total = 0
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += file.lstat().st_size if not file.is_dir() else 0
        return total

    @property
    def age(self) -> str:
        """Time since the last change."""
        hours = (time.time() - self.path.lstat().st_mtime) / 3600
        return f"{hours * 60:.0f} min" if hours < 2 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} days"


def run(arguments: argparse.Namespace) -> int:
    """List, and remove with --yes. Raises UserError while a stage runs."""
    machine = load_machine()
    ledger = machine.ledger
    found = [*work_folders(arguments.work, ledger), *half_moved(arguments.data)]
    found += [Leftover(path, "left by a kill") for path in (ledger / "compacting",) if path.exists()]
    if arguments.ledger:
        parts = (ledger / "segments", ledger / "index.sqlite")
        found += [Leftover(path, "ledger of finished samples") for path in parts if path.exists()]
    if arguments.verdicts and machine.verdicts.exists():
        found.append(Leftover(machine.verdicts, "verdicts known so far"))
    if not found:
        print(f"nothing to clean below {arguments.work} and {arguments.data}")
        return 0
    sizes = {item: item.bytes for item in found}
    for item in found:
        print(f"  {size(sizes[item]):>9}  {item.path}  ({item.what}, {item.age} old)")
    total = size(sum(sizes.values()))
    if not arguments.yes:
        more = "".join(f" --{name}" for name in ("ledger", "verdicts") if getattr(arguments, name))
        command = f"warmstart clean --yes{more}"
        print(f"{total} in {len(found)} place{'s' if len(found) > 1 else ''}; remove with: {command}")
        return 0
    with _no_stage_runs(arguments.work):
        for item in found:
            if item.path.is_dir() and not item.path.is_symlink():
                shutil.rmtree(item.path)
            else:
                item.path.unlink(missing_ok=True)
    print(f"removed {total}" + ("" if arguments.ledger else "; the ledger stays"))
    return 0


def work_folders(work: Path, ledger: Path) -> Iterator[Leftover]:
    """Work folders of earlier runs: named by a digest, holding `output` or `progress`."""
    kept = ledger.resolve()
    for folder in sorted(work.rglob("*")) if work.is_dir() else []:
        if not DIGEST.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
            continue
        if any(DIGEST.fullmatch(part) for part in folder.relative_to(work).parts[:-1]):
            continue
        if kept.is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(kept):
            continue
        if (folder / "output").is_dir() or (folder / "progress").is_dir():
            what = "progress of an unfinished run" if (folder / "progress").is_dir() else "an unfinished run"
            yield Leftover(folder, what)


def half_moved(data: Path) -> Iterator[Leftover]:
    """Outputs and files that a kill left beside their place."""
    for path in sorted(data.rglob(".*")) if data.is_dir() else []:
        if HALF_MOVED.fullmatch(path.name):
            yield Leftover(path, "left by a kill")


@contextlib.contextmanager
def _no_stage_runs(work: Path) -> Iterator[None]:
    """Hold the lock of every stage that has one. Raises UserError if a stage holds its own."""
    from filelock import FileLock, Timeout

    with contextlib.ExitStack() as held:
        for lock in sorted(work.rglob("lock")) if work.is_dir() else []:
            try:
                held.enter_context(FileLock(lock, timeout=0))
            except Timeout:
                holder = lock.with_name("lock.json")
                try:
                    who = json.loads(holder.read_text(encoding="utf-8"))
                except (OSError, ValueError):
                    who = {}
                raise UserError(
                    f"{lock.parent}: a stage is running here (process {who.get('pid', '?')} on {who.get('host', '?')} "
                    f"since {who.get('since', '?')}); nothing was removed. Wait for it, or stop it first"
                ) from None
        yield
