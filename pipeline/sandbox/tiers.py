"""How a box is built on this machine: the tier with what holds it, and the start of one box.

A: bubblewrap, seccomp, rlimits. B: the same namespaces made by our fork server, with Landlock. C: Landlock, seccomp and
rlimits alone, where namespaces are not to be had. `unsafe`: rlimits, and only where a user asked for it by name.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.sandbox.cgroup import BoxCgroup, Cgroups
from pipeline.sandbox.limits import BoxLimits

TierName = Literal["A", "B", "C", "unsafe"]
NOBODY = 65534
ENVIRONMENT = {
    # Sets of strings iterate in the same order everywhere, so verdicts repeat. One malloc arena: each further one
    # reserves 64 MiB of the address space that is limited.
    **{"LANG": "C.UTF-8", "PATH": "/usr/bin", "PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"},
    "WARMSTART_BOX": "1",  # the driver of code tests runs nowhere else: it empties its folder and kills all it may
}
PYTHON_OPTIONS = ("-s", "-S", "-P", "-B")
"""Standard library only, nothing imported from the working folder, no bytecode written."""


@dataclass(frozen=True, slots=True)
class Tier:
    """What stands between a program and this machine."""

    name: TierName
    mechanisms: tuple[str, ...]
    lacks: tuple[str, ...]
    """What a stronger one would have, in words."""

    def describe(self) -> dict[str, Any]:
        """The canonical form for lineage: no path, no version, the same on equal machines."""
        return {"tier": self.name, "mechanisms": sorted(self.mechanisms), "lacks": sorted(self.lacks)}


@dataclass(slots=True)
class Running:
    """A box that has been started and waits for `go`."""

    stdout: int
    stderr: int
    channel: int
    """Where its first process tells JSON objects: `child-pid`, and at last `exit-code`."""
    go: Callable[[], None]
    kill: Callable[[], None]
    in_group: bool = False
    """Whether its first process moves itself to the control group."""
    folder: str | None = None
    """Its writable folder, where that is one of this machine's."""


@dataclass(frozen=True, slots=True)
class BoxSetup:
    """How boxes are built on this machine."""

    tier: Tier
    python: str
    """Interpreter inside the box, reachable for an unprivileged user."""
    binds: tuple[str, ...]
    """Files and folders that programs may read: libraries, interpreters, compilers."""
    seccomp: bytes
    cgroups: Cgroups | None
    starter: Callable[
        ["BoxSetup", Sequence[str], bytes, BoxLimits, BoxCgroup | None], contextlib.AbstractContextManager[Running]
    ]
    """Starts one box of this tier."""
    passed_over: tuple[str, ...] = ()
    """Why each stronger tier cannot be had here."""

    def describe(self) -> dict[str, Any]:
        """The tier's canonical form, for lineage."""
        return self.tier.describe()

    def start(
        self, argv: Sequence[str], stdin: bytes, limits: BoxLimits, group: BoxCgroup | None
    ) -> contextlib.AbstractContextManager[Running]:
        """Start one box; what is left of it is ended with the context."""
        return self.starter(self, argv, stdin, limits, group)

    def python_argv(self, source: str) -> list[str]:
        """The arguments that run Python source in the box."""
        return [self.python, *PYTHON_OPTIONS, "-c", source]


def libraries() -> tuple[list[str], dict[str, str]]:
    """Folders of the shared libraries, and links to them: /lib and /lib64 are links without a merged /usr folders."""
    folders = [f for f in ("/usr/lib", "/usr/lib64") if os.path.isdir(f)]
    folders += [f for f in ("/lib", "/lib64") if os.path.isdir(f) and not os.path.islink(f)]
    return folders, {f: os.readlink(f) for f in ("/lib", "/lib64") if os.path.islink(f)}


def unprivileged() -> dict[str, Any]:
    """Arguments of `subprocess.Popen` that start a program in a clean environment and never as root.

    The environment of bubblewrap itself is cleaned as well: a program could read it from /proc/1/environ.
    """
    clean: dict[str, Any] = {"env": {"PATH": "/usr/bin:/bin"}, "cwd": "/", "start_new_session": True}
    return {**clean, "user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else clean


def sealed(data: bytes) -> int:
    """A descriptor to read `data` from. Sealed: the program cannot use it as memory outside its limits."""
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl.fcntl(
        descriptor,
        fcntl.F_ADD_SEALS,
        fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL,
    )
    return descriptor


@contextlib.contextmanager
def closing(*descriptors: int) -> Iterator[None]:
    """Close descriptors at the end."""
    try:
        yield
    finally:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
