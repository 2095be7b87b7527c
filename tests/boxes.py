"""Boxes of every tier that this machine can build, and the same programs outside as positive controls."""

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.sandbox import BoxLimits, BoxResult, BoxSetup
from pipeline.sandbox.box import run_in
from pipeline.sandbox.setup import choose

TIERS = ("A", "B", "C")


@functools.cache
def _chosen(tier: str) -> BoxSetup | str:
    try:
        return choose([tier])
    except UserError as error:
        return str(error)


def setup_of(tier: str) -> BoxSetup:
    """The probed setup of a tier, A, B or C; `A sampled` is the same without a control group. Skips without one."""
    found = _chosen(tier[0])
    if isinstance(found, str):
        pytest.skip(found)
    if tier.endswith("sampled"):
        return replace(found, cgroups=None)
    return found


def boxed(setup: BoxSetup, source: str, *arguments: str, stdin: bytes = b"", **limits: float) -> BoxResult:
    return run_in(setup, [*setup.python_argv(source), *arguments], stdin, BoxLimits.model_validate(limits))


@functools.cache
def control(source: str) -> str:
    """What a program prints outside of any box, in a folder of its own; run once for all tiers."""
    with tempfile.TemporaryDirectory() as folder:
        return unboxed(source, cwd=Path(folder))


def unboxed(source: str, *arguments: str, cwd: Path | None = None, **environment: str) -> str:
    """What Python source prints outside of any box."""
    line = [sys.executable, "-c", source, *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(line, capture_output=True, text=True, env=env, cwd=cwd, check=False).stdout


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach and write to; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def processes_saying(mark: str) -> list[int]:
    """Processes whose command line holds a mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
