"""What this machine can run, found out by trying: each probe does a little of the real thing."""

from pipeline.doctor.environments import probe_deepspeed, probe_pipeline, probe_serving
from pipeline.doctor.finding import Finding
from pipeline.doctor.machine import (
    probe_compiler,
    probe_disk,
    probe_dvc,
    probe_git,
    probe_gpu,
    probe_machine_file,
    probe_memory,
    probe_python,
    probe_sandbox,
    probe_slurm,
)

PROBES = {
    "python": probe_python,
    "pipeline": probe_pipeline,
    "deepspeed": probe_deepspeed,
    "serving": probe_serving,
    "sandbox": probe_sandbox,
    "git": probe_git,
    "dvc": probe_dvc,
    "machine": probe_machine_file,
    "gpu": probe_gpu,
    "memory": probe_memory,
    "disk": probe_disk,
    "compiler": probe_compiler,
    "slurm": probe_slurm,
}
"""In the order in which they are told; each runs beside the others."""

__all__ = ["PROBES", "Finding"]
