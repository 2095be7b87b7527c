"""Slurm's own programs: submit an array of jobs, ask which exist without waiting for the answer, cancel."""

import os
import re
import subprocess
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pipeline.config.machine import SlurmJobs
from pipeline.errors import UserError
from pipeline.progress import say

POLL_S = 5.0
"""Seconds between two questions to squeue; sites ask users not to ask more often."""
PATIENCE_S = 60.0
"""How long the controller may be silent at the start, and one program may take."""

# With this environment sbatch runs, so this is all that a job gets by way of the user's: no token is among it.
_ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "SLURM_CONF")
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}
_UNREACHABLE = ("Unable to contact slurm controller", "timed out", "Connection refused", "temporarily")


class Unreachable(Exception):
    """The controller does not answer now, say while it restarts."""


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run one of Slurm's programs; one that gives no answer in time has failed."""
    try:
        return subprocess.run(
            command, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]}: timed out after {PATIENCE_S:.0f} s")


def show_job(job: str) -> str:
    """State, reason, exit code and node of a job, also for some minutes after its end."""
    said = _run(["scontrol", "--oneliner", "show", "job", job]).stdout
    facts = re.findall(r"\b(?:JobState|Reason|ExitCode|NodeList)=[^\s()]+", said)
    return ", ".join(facts) or "no longer known to Slurm"


class Queue:
    """The jobs of one name. `job` is an array job's task such as `1234_0`."""

    def __init__(self, name: str, settings: SlurmJobs) -> None:
        self._name, self._settings = name, settings
        self._listed: dict[str, tuple[str, str]] = {}
        self._question: subprocess.Popen[str] | None = None
        self._asked = float("-inf")

    def exists(self, job: str | None) -> bool:
        """Whether the job is queued or running, as far as known."""
        return job in self._listed and self._listed[job][0] not in _ENDED

    def existing(self) -> list[str]:
        """All jobs of the name that are queued or running."""
        return [job for job in self._listed if self.exists(job)]

    def describe(self, job: str | None) -> str:
        """The state of a job for people: "pending (Resources)", "running on n1"."""
        state, where = self._listed.get(job or "", ("gone", ""))
        shown = {"RUNNING": f"running on {where}", "PENDING": f"pending {where}"}
        return shown.get(state, state.lower())

    def submit(self, indices: Collection[int], script: Path, log: Path) -> dict[int, str]:
        """One array job with these indices; `log` may hold sbatch's %A and %a.

        Raises UserError if Slurm refuses it, Unreachable if nobody is there to take it.
        """
        array = f"--array={','.join(map(str, sorted(indices)))}"
        done = _run([*self._sbatch(), array, f"--output={log}", f"--chdir={os.getcwd()}", str(script)])
        self._drop_question()
        said = done.stderr.strip() or done.stdout.strip()
        if done.returncode and any(words in said for words in _UNREACHABLE):
            raise Unreachable(said)
        if done.returncode:
            raise UserError(
                f"serving.slurm: sbatch refused the job: {said}\n"
                "Mend the settings under serving.slurm in the machine file; `sinfo` lists partitions, "
                "`sacctmgr show assoc` accounts"
            )
        jobs = {index: f"{done.stdout.strip().split(';')[0]}_{index}" for index in indices}
        self._listed |= dict.fromkeys(jobs.values(), ("PENDING", "(just submitted)"))
        return jobs

    def _sbatch(self) -> list[str]:
        wanted = self._settings
        named = {"partition": wanted.partition, "account": wanted.account, "qos": wanted.qos}
        named |= {"constraint": wanted.constraint, "mem": wanted.memory, "time": wanted.time}
        named |= {"gres": f"gpu:{wanted.gpus_per_server}" if wanted.gpus_per_server else None}
        options = [f"--{name}={value}" for name, value in named.items() if value is not None]
        return [
            *("sbatch", "--parsable", f"--cpus-per-task={wanted.cpus_per_server}", *options, *wanted.extra),
            # ALL, of the few names that sbatch itself gets: NONE and NIL run the user's login files for the job.
            *("--export=ALL", "--nodes=1", "--ntasks=1", "--no-requeue", f"--job-name={self._name}"),
        ]

    def cancel(self, jobs: Iterable[str]) -> bool:
        """End jobs; of one that is gone already nothing is said. Whether the controller was there to do it."""
        done = _run(["scancel", *jobs])
        said = done.stderr.strip()
        if done.returncode and "Invalid job id" not in said:
            say(f"slurm: {said}; jobs end by themselves {self._settings.linger_s:g} s after the last use")
        return not any(words in said for words in _UNREACHABLE)

    def poll(self) -> bool:
        """Take squeue's answer if it is there, ask again every few seconds, never wait. Whether there was an answer.

        Only an answer counts: while the controller restarts squeue fails, and every job stays what it was.
        """
        if self._question is None:
            if time.monotonic() - self._asked > POLL_S:
                self._asked = time.monotonic()
                self._question = subprocess.Popen(
                    self._squeue(),
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
        elif self._question.poll() is not None:
            question, self._question = self._question, None
            said = question.communicate()[0]
            if question.returncode == 0:
                self._listed = _parse(said)
                return True
        elif time.monotonic() - self._asked > PATIENCE_S:
            self._drop_question()
        return False

    def ask_patiently(self) -> None:
        """Wait for squeue's answer. Raises UserError if there is none for a minute."""
        deadline = time.monotonic() + PATIENCE_S
        while (done := _run(self._squeue())).returncode:
            if time.monotonic() > deadline:
                raise UserError(
                    f"serving.slurm: squeue has failed for {PATIENCE_S:.0f} s: {done.stderr.strip()}\n"
                    "Is the cluster up? Try `sinfo` here, or take `slurm` out of the machine file"
                )
            time.sleep(1)
        self._listed = _parse(done.stdout)

    def _squeue(self) -> list[str]:
        form = "--format=%i|%T|%N|%r"
        return ["squeue", "--noheader", "--array", f"--user={os.getuid()}", f"--name={self._name}", form]

    def _drop_question(self) -> None:
        """An answer to a question from before a submission would lack the new job."""
        if self._question is not None:
            self._question.kill()
            self._question.communicate()
            self._question = None


def _parse(said: str) -> dict[str, tuple[str, str]]:
    """squeue's lines as {job: (state, node or reason)}."""
    rows = [line.split("|", 3) for line in said.splitlines() if line.count("|") >= 3]
    return {job: (state, node or f"({reason})") for job, state, node, reason in rows}
