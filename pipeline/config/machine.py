"""The machine file: where and how fast a recipe runs. Nothing in it may change a result.

It is an allow-list. What can change a result (dtype, quantisation, max_model_len, ZeRO stage, tokens per step)
stands in the recipe. The environment variable `WARMSTART_MACHINE` chooses it: a name in `configs/machines/` or a
path; it is never a DVC parameter.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from pipeline.config.base import StrictModel, load_config
from pipeline.errors import UserError

# Options of sbatch that the engine sets itself: another value would break it, or hand the user's environment to a job.
_OWN_SBATCH_OPTIONS = (
    *(
        "array",
        "chdir",
        "clusters",
        "error",
        "export",
        "export-file",
        "get-user-env",
        "job-name",
        "no-requeue",
        "nodes",
    ),
    *("ntasks", "output", "parsable", "requeue", "test-only", "wait", "wrap"),
)


class SlurmJobs(StrictModel):
    """What each server asks of Slurm: one server per job of an array, each on one node."""

    partition: str | None = None
    """Partition; without it the cluster's default."""
    account: str | None = None
    """Account that pays."""
    qos: str | None = None
    """Quality of service."""
    time: str = Field("08:00:00", pattern=r"^(\d+-)?\d{1,2}:\d{2}:\d{2}$")
    """Time limit of a job, [DAYS-]HH:MM:SS, in quotes; a server that reaches it is started again."""
    gpus_per_server: int | None = Field(None, ge=0)
    """GPUs of a server (`--gres=gpu:N`); 0 asks for none. Without it `tensor_parallel` of them, and none for CPUs."""
    cpus_per_server: int = Field(8, ge=1)
    """CPU cores of a server."""
    memory: str | None = Field(None, pattern=r"^\d+[KMGT]?$")
    """Memory of a server, such as 200G; 0 is all of the node, and without it the cluster's default."""
    constraint: str | None = None
    """Features that a node must have."""
    extra: list[str] = Field(default_factory=list)
    """More options of sbatch, such as --exclusive or --reservation=NAME."""
    linger_s: float = Field(900, gt=0)
    """A job ends by itself once no stage has asked for it for so long."""

    @field_validator("time", mode="before")
    @classmethod
    def _time_is_text(cls, value: object) -> object:
        if isinstance(value, int):
            raise ValueError("write the time in quotes: YAML reads 12:00:00 without them as a number of seconds")
        return value

    @field_validator("extra")
    @classmethod
    def _extra_options_are_long_and_not_ours(cls, options: list[str]) -> list[str]:
        for option in options:
            name = option.removeprefix("--").partition("=")[0]
            if not option.startswith("--") or not name:
                raise ValueError(
                    f"{option}: write one option of sbatch an entry, in its long form: --name or --name=value"
                )
            # sbatch takes any unambiguous beginning of a name as well.
            if any(own.startswith(name) for own in _OWN_SBATCH_OPTIONS):
                raise ValueError(f"{option}: is set by Warmstart itself")
        return options


class Serving(StrictModel):
    """How the local vLLM server is started."""

    python: Path = Path(".venv-vllm/bin/python")
    """Interpreter of the serving environment."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where vLLM runs."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs that share one model."""
    gpu_memory_share: float = Field(0.9, gt=0, le=1)
    """Share of GPU memory that vLLM may take."""
    kv_cache_gib: int = Field(1, ge=1)
    """Key-value cache on CPU, in GiB."""
    max_num_seqs: int = Field(64, ge=1)
    """Sequences that the server decodes together; also the number of requests kept in flight."""
    servers: int = Field(1, ge=1)
    """Servers of the `local` and `slurm` engines, each with a whole model; on GPUs each takes `tensor_parallel` of
    them."""
    gpus: list[int] | None = None
    """GPUs of this machine that servers may take, by index; null for the first ones."""
    ready_timeout_s: float = Field(900, gt=0)
    """How long a server may take to load before it is given up, with the end of its log."""
    stall_s: float = Field(300, gt=0)
    """A server that has requests and makes no token for so long is started again."""
    max_restarts: int = Field(3, ge=0)
    """How often one server is started again before the others go on without it."""
    drain_s: float = Field(20, ge=0)
    """How long a stopped stage waits for answers that are on their way; they are kept. A second signal ends it."""
    poll_s: float = Field(1.0, gt=0)
    """How often servers are looked at."""
    slurm: SlurmJobs = SlurmJobs()
    """What each server of the `slurm` engine asks of Slurm."""


class Training(StrictModel):
    """How the trainer is started."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Where DeepSpeed runs."""
    ranks: int = Field(2, ge=1)
    """Processes on this node."""


class Endpoint(StrictModel):
    """Running OpenAI-compatible servers of one teacher."""

    urls: list[str] = Field(min_length=1)
    """Base addresses such as http://host:8000/v1."""
    api_key_env: str | None = None
    """Environment variable that holds the key; the key itself is never written anywhere."""
    max_in_flight: int = Field(32, ge=1)
    """Requests kept in flight per address."""


class Sandbox(StrictModel):
    """Which box untrusted programs run in. Results name it; a weaker one changes what is safe, not what is right."""

    tier: Literal["auto", "A", "B", "C"] = "auto"
    """`auto` takes the first that this machine can build; a named one is used or refused, never replaced."""
    unsafe: bool = False
    """Run programs without a box, where nothing else is to be had and the data is trusted. Said at every start."""


class Machine(StrictModel):
    """One machine or cluster."""

    workers: int = Field(2, ge=1)
    """Dask worker processes for CPU work, one thread each."""
    ledger: Path = Path(".work/ledger")
    """Folder of the sample ledger; put it on a shared disk to share finished samples."""
    verdicts: Path = Path(".work/verdicts")
    """Folder of the verdicts known so far, by content."""
    serving: Serving = Serving()
    training: Training = Training()
    sandbox: Sandbox = Sandbox()
    endpoints: dict[str, Endpoint] = Field(default_factory=dict)
    """Addresses by teacher name."""


def load_machine() -> Machine:
    """The machine chosen by WARMSTART_MACHINE (default `local`). Raises UserError if there is none of that name."""
    name = os.environ.get("WARMSTART_MACHINE", "local")
    folder = Path("configs/machines")
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.exists():
        if "WARMSTART_MACHINE" not in os.environ:
            return Machine()
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml"))) or "none here"
        raise UserError(f"WARMSTART_MACHINE={name}: {path} does not exist; use a path or one of: {known}")
    return load_config(Machine, path)
