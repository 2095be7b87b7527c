"""Start a training run with torchrun on this node, follow its metrics, and tell why when it fails."""

import errno
import os
import sys
import time
from pathlib import Path

from pipeline.config import Machine
from pipeline.errors import says_disk_is_full
from pipeline.progress import Progress, say
from pipeline.train.metrics import read_metrics
from pipeline.train.recipe import TrainSpec
from pipeline.work import current_guard

POLL_S = 0.5
LOG_TAIL_LINES = 60


def torchrun_command(ranks: int, spec: Path) -> list[str]:
    """The command line; `--standalone` lets torchrun find a free port by itself."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, "--max-restarts=0", "-m", "pipeline.train.worker", str(spec)]


def worker_environment(machine: Machine) -> dict[str, str]:
    """The environment of the ranks: nothing from the network, the cores shared evenly."""
    ranks = machine.training.ranks
    extra = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    if machine.training.device == "cpu":
        cores = len(os.sched_getaffinity(0))
        extra |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(max(1, cores // ranks)), "CUDA_VISIBLE_DEVICES": ""}
        # glibc gives blocks of a few MB back after every operation and pays page faults for them in the next: forward
        # and backward of a 135M model took 4.9 s instead of 4.2 s without a higher threshold. Larger ones than these
        # cost a rank 0.2 GB.
        extra |= {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}
    return {**os.environ, **extra}


def run_training(spec: TrainSpec, machine: Machine, steps: int) -> None:
    """Run to the end. Raises RuntimeError with the end of the log if it fails; a stop of the stage stops it."""
    spec.result.unlink(missing_ok=True)
    file, log = spec.progress / "spec.json", spec.progress / "train.log"
    file.write_text(spec.model_dump_json(indent=2), encoding="utf-8")
    say(f"sft: {machine.training.ranks} ranks on {machine.training.device}, {steps} steps; log: {log}")
    done = len(read_metrics(spec.metrics))
    process = current_guard().popen(
        torchrun_command(machine.training.ranks, file), env=worker_environment(machine), log=log
    )
    try:
        with Progress("sft", steps, "steps", done) as progress:
            while (code := process.process.poll()) is None:
                done = _advance(progress, spec, done)
                time.sleep(POLL_S)
            _advance(progress, spec, done)
    finally:
        process.stop()
    if code or not spec.result.exists():
        if says_disk_is_full(tail := log_tail(log)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(spec.progress))
        raise RuntimeError(f"training ended with exit code {code}; the end of {log}:\n{tail}")


def _advance(progress: Progress, spec: TrainSpec, done: int) -> int:
    lines = read_metrics(spec.metrics)
    if len(lines) != done:  # fewer after a resume from an earlier step
        recent = lines[-10:]
        seconds = sum(line["seconds"] for line in recent)
        speed = sum(line["tokens"] for line in recent) / seconds if seconds else 0.0
        note = f"loss {lines[-1]['loss']:.3f}, {speed:.0f} tokens/s" if lines else ""
        progress.advance(len(lines) - done, note=note)
    return len(lines)


def log_tail(log: Path) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])
