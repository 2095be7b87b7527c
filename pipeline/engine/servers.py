"""The servers of a teacher: given ones, ones on this machine, or ones in Slurm jobs."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.config import Endpoint, Machine
from pipeline.engine.client import Target
from pipeline.engine.local import local_replicas
from pipeline.engine.replica import Replica, RunningServer
from pipeline.engine.settings import EndpointEngine, SlurmEngine, Teacher
from pipeline.errors import UserError


def replicas_of(teacher: Teacher, model: Path | None, machine: Machine, folder: Path) -> Sequence[Replica]:
    """The teacher's servers, not yet started. `folder` takes logs. Raises UserError where the machine names none."""
    engine = teacher.engine
    if isinstance(engine, EndpointEngine):
        return [RunningServer(url) for url in _endpoint(teacher, machine).urls]
    assert model is not None
    if isinstance(engine, SlurmEngine):
        from pipeline.engine.on_slurm import slurm_servers

        return slurm_servers(teacher.name, model, engine, machine)
    return local_replicas(teacher.name, model, engine, machine.serving, folder)


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
