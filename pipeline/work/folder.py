"""The work folder of one stage run: `.work/<recipe>/<stage>/<digest of config, inputs and code>/`.

`output/` is what the stage writes; `progress/` beside it is what a killed run may reuse. A changed config, input or
module gives another digest, so stale progress is never mixed in. The lock one level up admits one writer.
"""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import StageConfig
from pipeline.errors import UserError
from pipeline.records import canonical_json
from pipeline.shards import write_json
from pipeline.work.fingerprint import fingerprint
from pipeline.work.guard import Guard, reap_leftovers
from pipeline.work.sources import ROOT, stage_sources

WORK_ROOT = Path(".work")
FINGERPRINTS = WORK_ROOT / "fingerprints.json"
"""Cache of the content hashes of large files."""


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Where one run of a stage works."""

    path: Path
    digest: str

    @property
    def output(self) -> Path:
        """The folder handed to the stage; moved to its place when the stage returns."""
        return self.path / "output"


def progress_folder(output: Path) -> Path:
    """The folder beside a stage's output for what it may reuse after a kill; created here."""
    folder = output.with_name("progress")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def digest_of(stage: str, config: StageConfig, inputs: Mapping[str, Path], with_code: bool) -> str:
    """Digest of everything that decides a stage's result."""
    parts: dict[str, object] = {
        "stage": stage,
        "config": config.model_dump(mode="json"),
        "inputs": {name: fingerprint(path, FINGERPRINTS) for name, path in sorted(inputs.items())},
    }
    if with_code:
        parts["code"] = code_digest(stage)
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:16]


def code_digest(stage: str) -> str:
    """Digest of the sources that a stage runs."""
    text = [(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")) for file in stage_sources(stage)]
    return hashlib.sha256(canonical_json(text).encode()).hexdigest()[:16]


@contextlib.contextmanager
def open_work(
    stage: str, config: StageConfig, inputs: Mapping[str, Path], out: Path, with_code: bool = True
) -> Iterator[WorkFolder]:
    """Lock the stage, reap what a killed run left, start the guard, and give the work folder.

    The caller deletes the folder once the output stands; after an error or a kill it stays for the next run.
    Raises UserError if another process is running the same stage.
    """
    # data/<recipe>/<stage>[/<phase>] keeps its last parts, so that phases of one stage have folders of their own.
    parts = [part for part in out.parts if part not in ("data", "/", "..", ".")][-3:]
    folder = WORK_ROOT.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    with one_writer(folder, f"`{stage}` is being run"):
        reap_leftovers(folder / "processes.json")
        with Guard(folder / "processes.json"):
            digest = digest_of(stage, config, inputs, with_code)
            work = WorkFolder(folder / digest, digest)
            shutil.rmtree(work.output, ignore_errors=True)
            work.output.mkdir(parents=True)
            yield work


@contextlib.contextmanager
def one_writer(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of a folder. Raises UserError that names the holder while another process has it."""
    from filelock import FileLock, Timeout

    lock, holder = FileLock(folder / "lock"), folder / "lock.json"
    try:
        lock.acquire(timeout=0)
    except Timeout:
        found = json.loads(holder.read_text()) if holder.exists() else {}
        in_job = f" (Slurm job {found['slurm_job']})" if found.get("slurm_job") else ""
        raise UserError(
            f"{folder}: {what} by process {found.get('pid', '?')} on {found.get('host', '?')}{in_job} "
            f"since {found.get('since', '?')}; one run at a time. Wait for it, or stop it first"
        ) from None
    try:
        job = os.environ.get("SLURM_JOB_ID")
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        write_json(holder, {"host": socket.gethostname(), "pid": os.getpid(), "slurm_job": job, "since": since})
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()
