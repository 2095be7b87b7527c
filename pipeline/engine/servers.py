"""The servers of a teacher: given ones, ones on this machine, or ones in Slurm jobs."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.config import Endpoint, Machine, Serving
from pipeline.engine.client import Target
from pipeline.engine.local import check_python, local_replicas, vllm_command, vllm_environment
from pipeline.engine.replica import Replica, RunningServer
from pipeline.engine.settings import EndpointEngine, SlurmEngine, Teacher
from pipeline.errors import UserError

SERVERS = Path(".work/servers")
"""Where Slurm jobs are known by the teacher's name; it must be on a disk that the nodes see as well."""


def replicas_of(teacher: Teacher, model: Path | None, machine: Machine, folder: Path) -> Sequence[Replica]:
    """The teacher's servers, not yet started. `folder` takes logs. Raises UserError where the machine names none."""
    engine = teacher.engine
    if isinstance(engine, EndpointEngine):
        return [RunningServer(url) for url in _endpoint(teacher, machine).urls]
    assert model is not None
    if isinstance(engine, SlurmEngine):
        return _in_slurm_jobs(teacher.name, model, engine, machine.serving)
    return local_replicas(teacher.name, model, engine, machine.serving, folder)


def _in_slurm_jobs(name: str, model: Path, engine: SlurmEngine, serving: Serving) -> Sequence[Replica]:
    """Servers whose jobs a later run attaches to, in a folder that does not change with the run's config."""
    from pipeline.engine.slurm import slurm_replicas

    check_python(serving)
    settings = serving.slurm
    if settings.gpus_per_server is None:
        gpus = serving.tensor_parallel if serving.device == "cuda" else 0
        settings = settings.model_copy(update={"gpus_per_server": gpus})
    # Absolute, but with its links: the interpreter of a virtual environment finds its packages by its own path.
    serving = serving.model_copy(update={"python": Path.cwd() / serving.python})
    command = vllm_command(model.resolve(), name, engine, serving, "{host}", "{port}")
    folder = SERVERS.resolve() / name
    return slurm_replicas(
        command, vllm_environment(serving), serving.servers, folder, settings, ready_timeout_s=serving.ready_timeout_s
    )


def target_of(teacher: Teacher, machine: Machine) -> Target:
    """How the teacher's servers are spoken to. Raises UserError for a key variable that is not set."""
    engine = teacher.engine
    if not isinstance(engine, EndpointEngine):
        return Target(teacher.name, None, vllm=True)
    name = _endpoint(teacher, machine).api_key_env
    api_key = os.environ.get(name) if name else None
    if name and not api_key:
        raise UserError(f"the environment variable {name} is not set (key of teacher {teacher.name})")
    return Target(engine.model, api_key, engine.vllm)


def max_in_flight(teacher: Teacher, machine: Machine) -> int:
    """Requests in flight per server."""
    if isinstance(teacher.engine, EndpointEngine):
        return _endpoint(teacher, machine).max_in_flight
    return machine.serving.max_num_seqs


def _endpoint(teacher: Teacher, machine: Machine) -> Endpoint:
    endpoint = machine.endpoints.get(teacher.name)
    if endpoint is None:
        raise UserError(
            f"teacher {teacher.name} uses running servers, but the machine file names none: add "
            f"endpoints: {{{teacher.name}: {{urls: [http://HOST:PORT/v1]}}}}"
        )
    return endpoint
