"""Model servers as jobs of a Slurm array, one server a job; they outlive the stage, and its next run attaches to them.

The folder, on a disk that the nodes see as well, holds job.sh, slurm_job.py (what runs in a job), spec.json (what it
serves), jobs.json (which jobs there are), heartbeat, and for each server a log and, once it answers, server-INDEX.json.
"""

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pipeline.config.machine import SlurmJobs
from pipeline.engine.slurm_queue import Queue, Unreachable, show_job
from pipeline.errors import UserError
from pipeline.progress import say
from pipeline.records import canonical_json
from pipeline.shards import write_json, write_text


class _Jobs:
    """The jobs of one folder, by index of their server."""

    def __init__(self, spec: Mapping[str, object], count: int, folder: Path, settings: SlurmJobs, python: str) -> None:
        self.count, self.folder = count, folder
        self._spec, self._linger_s, self._python = spec, settings.linger_s, python
        self._program = Path(__file__).with_name("slurm_job.py").read_text(encoding="utf-8")
        parts = [spec, settings.model_dump(mode="json"), python, os.getcwd(), self._program]
        self._digest = hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:16]
        self.queue = Queue("warmstart-" + hashlib.sha256(os.fsencode(folder)).hexdigest()[:12], settings)
        self.current: dict[int, str] = {}
        """Job of each server, such as 1234_0."""
        self.latest: dict[int, str] = {}
        """The same, and jobs that were stopped."""
        self.unsent: set[int] = set()
        """Servers whose job nobody was there to take; they are submitted once the controller answers again."""
        self._beaten = float("-inf")

    def attach(self) -> None:
        """Take over the jobs that an earlier run left here for the same spec; cancel those for another one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.queue.ask_patiently()
        known: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError, KeyError):
            record = json.loads((self.folder / "jobs.json").read_text())
            known = record["jobs"] if record["spec"] == self._digest else {}
        self.current = {int(i): job for i, job in known.items() if self.queue.exists(job) and int(i) < self.count}
        self.latest = dict(self.current)
        self._beat()
        self._cancel_strangers()
        if self.current:
            say(f"slurm: attached to {', '.join(self.current.values())}")
        else:
            self._write_spec()
        self._record()

    def _write_spec(self) -> None:
        path = self.folder / "spec.json"
        path.unlink(missing_ok=True)
        # The environment may hold a key: nobody else reads it.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(self._spec, file, indent=2)
        write_text(self.folder / "slurm_job.py", self._program)
        program = [self._python, "-I", "-S", str(self.folder / "slurm_job.py"), str(self.folder)]
        write_text(self.folder / "job.sh", f"#!/bin/sh\nexec {shlex.join(program)}\n")

    def _record(self) -> None:
        jobs = {str(index): job for index, job in sorted(self.current.items())}
        write_json(self.folder / "jobs.json", {"spec": self._digest, "jobs": jobs})

    def _cancel_strangers(self) -> None:
        """End jobs with this folder's name that are no server's: of another spec, or sent just before a kill."""
        ours = set(self.current.values())
        if strangers := [job for job in self.queue.existing() if job not in ours]:
            say(f"slurm: cancelling {', '.join(strangers)}, which this run does not need")
            self.queue.cancel(strangers)

    def submit(self, indices: Collection[int]) -> None:
        """One array job for these servers. Raises UserError if Slurm refuses it."""
        log = str(self.folder / "server-").replace("%", "%%") + "%A_%a.log"
        try:
            jobs = self.queue.submit(indices, self.folder / "job.sh", Path(log))
        except Unreachable as error:
            say(f"slurm: waiting for the controller: {error}")
            self.unsent.update(indices)
            return
        self.unsent.difference_update(jobs)
        self.current |= jobs
        self.latest |= jobs
        self._record()
        say(f"slurm: submitted {', '.join(job for _, job in sorted(jobs.items()))}")

    def drop(self, index: int) -> bool:
        """Cancel a server's job, if it has one; the next answer of squeue's makes up for a controller that is away.

        Whether the controller is there.
        """
        self.unsent.discard(index)
        job = self.current.pop(index, None)
        if job is None:
            return True
        self._record()
        return self.queue.cancel([job])

    def poll(self) -> None:
        """Keep the jobs alive and see what became of them."""
        self._beat()
        if self.queue.poll():
            self._cancel_strangers()
            if self.unsent:
                self.submit(set(self.unsent))

    def _beat(self) -> None:
        if time.monotonic() - self._beaten > min(15.0, self._linger_s / 10):
            self._beaten = time.monotonic()
            write_text(self.folder / "heartbeat", f"{time.time_ns()}\n")


class SlurmReplica:
    """One model server in a job of its own."""

    def __init__(self, jobs: _Jobs, index: int) -> None:
        self._jobs, self._index = jobs, index
        self._begun = False
        self.name = self._find_name()

    def _find_name(self) -> str:
        return f"slurm {self._jobs.latest.get(self._index, f'server {self._index}')}"

    def start(self) -> None:
        """The first time submit a job, together with every server that has none; later put a new one in its place.

        A job that an earlier run left is taken as it is the first time. Raises UserError if sbatch refuses the job.
        """
        jobs, first, self._begun = self._jobs, not self._begun, True
        if not (first and self.alive()):
            missing = set(range(jobs.count)) - jobs.latest.keys() if first else set()
            wanted = {self._index, *missing}
            if jobs.drop(self._index):
                jobs.submit(wanted)
            else:
                jobs.unsent |= wanted
        self.name = self._find_name()

    @property
    def url(self) -> str | None:
        """Address once the server answers; None before, and after its job is gone."""
        job = self._jobs.current.get(self._index)
        if not self._jobs.queue.exists(job):
            return None
        try:
            found = json.loads((self._jobs.folder / f"server-{self._index}.json").read_text())
        except (OSError, ValueError):
            return None
        return str(found["url"]) if found["job"] == job else None

    def alive(self) -> bool:
        """Whether the job is queued or running. Does not wait; a job that nobody asks about so ends after linger_s."""
        self._jobs.poll()
        self.name = self._find_name()
        return self._index in self._jobs.unsent or self._jobs.queue.exists(self._jobs.current.get(self._index))

    @property
    def state(self) -> str:
        """What Slurm says of the job, for people: "pending (Resources)", "running on n1"."""
        if self._index in self._jobs.unsent:
            return "not submitted yet: the controller does not answer"
        return self._jobs.queue.describe(self._jobs.current.get(self._index))

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the job's log."""
        log = self._log()
        if not log.exists():
            return f"(no log; the job is {self.state})"
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def _log(self) -> Path:
        return self._jobs.folder / f"server-{self._jobs.latest.get(self._index)}.log"

    def failure(self) -> UserError:
        """What to raise for a job that ended: Slurm's words for it and the end of its log."""
        job = self._jobs.latest.get(self._index, "")
        return UserError(
            f"slurm: job {job} ended ({show_job(job)}). Mend what its log names, or ask for more under serving.slurm "
            f"in the machine file (memory, time, gpus_per_server). The end of {self._log()}:\n{self.log_tail()}"
        )

    def stop(self) -> None:
        """Cancel the job."""
        self._jobs.drop(self._index)


def slurm_replicas(
    command: Sequence[str],
    environment: Mapping[str, str],
    count: int,
    folder: Path,
    settings: SlurmJobs,
    *,
    python: str = sys.executable,
    ready_timeout_s: float = 900,
) -> list[SlurmReplica]:
    """Servers of one command, in which the words "{host}" and "{port}" stand for the address to bind.

    Attaches to jobs that a killed run left in the folder for the same spec; nothing is submitted before `start`.
    `python` runs the program in the job; a server may load for `ready_timeout_s` once its job runs.
    Raises UserError if Slurm is not here or does not answer.
    """
    if "{port}" not in command:
        raise ValueError("the command lacks the word {port}")
    missing = [name for name in ("sbatch", "squeue", "scancel", "scontrol") if shutil.which(name) is None]
    if missing:
        raise UserError(
            f"serving.slurm: no `{missing[0]}` on PATH; run this where jobs are submitted (a login node, or after your "
            "site's `module load slurm`), or take `slurm` out of the machine file"
        )
    spec = {"command": list(command), "environment": dict(environment)}
    limits = {"linger_s": settings.linger_s, "ready_timeout_s": ready_timeout_s}
    jobs = _Jobs({**spec, **limits}, count, folder.resolve(), settings, os.path.abspath(python))
    jobs.attach()
    return [SlurmReplica(jobs, index) for index in range(count)]
