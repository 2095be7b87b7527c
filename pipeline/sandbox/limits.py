"""What a program in the box may use."""

from typing import Literal

from pydantic import Field

from pipeline.config import StrictModel

Passed = Literal["cpu_limit", "wall_limit", "output_limit", "memory_limit", "process_limit", "disk_limit"]
"""Limits at which a box is ended."""


class BoxLimits(StrictModel):
    """Limits of one boxed program. Time is judged by CPU seconds: they do not grow on a busy machine.

    A program of 0.55 CPU seconds took 0.65 s of wall time alone and 4.3 s beside 15 others on two cores.
    """

    cpu_s: int = Field(6, ge=1, le=3600)
    """CPU seconds that the program may use; the kernel holds each process to it, we the sum, to a second more."""
    wall_s: float = Field(30, gt=0, le=7200)
    """Wall-clock seconds after which the box is ended: a backstop for sleepers, far above `cpu_s`."""
    memory_mb: int = Field(512, ge=64)
    """Address space of one process, and memory of all processes of the box together, in MiB."""
    address_space: bool = True
    """Whether one process is held to `memory_mb` of address space. Node and other runtimes reserve far more than they
    use and start only without; the sum of memory stays limited."""
    processes: int = Field(16, ge=4)
    """Processes and threads alive at once in one box."""
    disk_mb: int = Field(16, ge=1)
    """Size of the only writable folder, in MiB; it is also the largest file."""
    files: int = Field(4096, ge=16)
    """Files and folders in it: an empty file takes about 1 KB of kernel memory."""
    open_files: int = Field(64, ge=16)
    """Open files of one process."""
    output_kb: int = Field(1024, ge=1)
    """KiB read from each of stdout and stderr before the box is ended."""
