"""A control group for each box, where this process may make one: memory, processes and CPU of the whole tree.

Version 1 and 2 of the kernel's interface. Version 2 gives memory limits only to a group without processes of its own,
so that the group of this process cannot be the parent: an ancestor is tried until one takes a child.
"""

import atexit
import contextlib
import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.sandbox.limits import BoxLimits

KEEPER = 1
"""The first process of a box, besides the program's."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The folders below which boxes get their groups, by controller; the same three times in version 2."""

    version: int
    folders: dict[str, Path]


@dataclass(frozen=True, slots=True)
class BoxCgroup:
    """The group of one box."""

    version: int
    folders: dict[str, Path]

    def add(self, pid: int) -> None:
        """Move a process here; what it forks from now on is born here."""
        for folder in dict.fromkeys(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def doors(self) -> list[int]:
        """Descriptors through which a process moves itself here by writing 0; none in version 2.

        To move another one, the kernel stops all forks of the machine and waits for every core: 8 to 12 ms on a busy
        machine. A single thread that moves itself takes no lock.
        """
        if self.version == 2:
            return []
        return [os.open(folder / "tasks", os.O_WRONLY | os.O_CLOEXEC) for folder in self.folders.values()]

    def cpu_s(self) -> float:
        """CPU seconds of all that ever ran here."""
        if self.version == 1:
            return int((self.folders["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        return _field(self.folders["cpuacct"] / "cpu.stat", "usage_usec") / 1e6

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process here for the memory limit."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return _field(self.folders["memory"] / name, "oom_kill") > 0


def _field(file: Path, name: str) -> int:
    found = re.search(rf"^{name} (\d+)$", file.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def find_cgroups() -> Cgroups | None:
    """Make a folder for this process's boxes and show that a process can be moved below it. None where it cannot."""
    for version, candidates in ((1, _version_1()), (2, _version_2())):
        for parents in candidates:
            with contextlib.suppress(OSError):
                made = _try(version, parents)
                atexit.register(_remove, made, os.getpid())
                return made
    return None


@contextlib.contextmanager
def box_cgroup(cgroups: Cgroups | None, limits: BoxLimits) -> Iterator[BoxCgroup | None]:
    """A group for one box, gone afterwards with all that is in it."""
    if cgroups is None:
        yield None
        return
    name = f"box-{os.getpid()}-{next(_numbers)}"
    group = BoxCgroup(cgroups.version, {key: folder / name for key, folder in cgroups.folders.items()})
    try:
        for folder in dict.fromkeys(group.folders.values()):
            folder.mkdir(parents=cgroups.version == 1)
        _limit(group, (limits.memory_mb + limits.disk_mb) << 20, limits.processes + KEEPER)
        yield group
    finally:
        _end(group)


def _limit(group: BoxCgroup, memory: int, processes: int) -> None:
    (group.folders["pids"] / "pids.max").write_text(str(processes))
    folder = group.folders["memory"]
    if group.version == 2:
        (folder / "memory.max").write_text(str(memory))
        with contextlib.suppress(OSError):
            (folder / "memory.swap.max").write_text("0")
            (folder / "memory.oom.group").write_text("1")
        return
    (folder / "memory.limit_in_bytes").write_text(str(memory))
    with contextlib.suppress(OSError):  # absent where the kernel does not count swap
        (folder / "memory.memsw.limit_in_bytes").write_text(str(memory))


def _end(group: BoxCgroup, within_s: float = 2.0) -> None:
    """Kill what is still here and remove the folders; the kernel counts a killed process for a moment longer."""
    deadline = time.monotonic() + within_s
    for folder in dict.fromkeys(group.folders.values()):
        while folder.exists():
            try:
                folder.rmdir()
            except OSError:
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(int(pid), signal.SIGKILL)
                if time.monotonic() > deadline:
                    break
                time.sleep(0.001)


def _own_groups() -> Iterator[tuple[set[str], Path, Path]]:
    """For each hierarchy: its controllers (none: version 2), where it is mounted, and our own group's folder."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, point = left.split(" ")[3:5]
        if kind == "cgroup2":
            mounts.setdefault("", (root, point))
        elif kind == "cgroup":
            for option in options.split(","):
                mounts.setdefault(option, (root, point))
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, group = line.split(":", 2)
        found = mounts.get(names.split(",")[0])
        if found:
            inside = os.path.relpath(group, found[0])
            folder = Path(found[1]) if inside.startswith("..") else Path(found[1]) / inside
            yield set(names.split(",")) - {""}, Path(found[1]), folder


def _version_1() -> list[dict[str, Path]]:
    """Our own groups, where version 1 holds all three controllers."""
    found: dict[str, Path] = {}
    for controllers, _, folder in _own_groups():
        found.update(dict.fromkeys(controllers & {"memory", "pids", "cpuacct"}, folder))
    return [found] if len(found) == 3 else []


def _version_2() -> list[dict[str, Path]]:
    """Our own group and its ancestors."""
    for controllers, point, folder in _own_groups():
        if not controllers:
            return [
                dict.fromkeys(("memory", "pids", "cpuacct"), f)
                for f in (folder, *folder.parents)
                if f.is_relative_to(point)
            ]
    return []


def _try(version: int, parents: dict[str, Path]) -> Cgroups:
    """Raises OSError where these groups take no child of ours with limits."""
    made = Cgroups(version, {key: parent / f"warmstart-{os.getpid()}" for key, parent in parents.items()})
    for parent in dict.fromkeys(parents.values()):
        _remove_stale(parent)
        if version == 2 and not {"memory", "pids"} <= set((parent / "cgroup.subtree_control").read_text().split()):
            (parent / "cgroup.subtree_control").write_text("+memory +pids")
    try:
        for folder in dict.fromkeys(made.folders.values()):
            folder.mkdir(exist_ok=True)
            if version == 2:
                (folder / "cgroup.subtree_control").write_text("+memory +pids")
        with box_cgroup(made, BoxLimits()) as group, subprocess.Popen(["/bin/sleep", "60"]) as sleeper:
            assert group is not None
            try:
                group.add(sleeper.pid)
            finally:
                sleeper.kill()
    except OSError:
        _remove(made, os.getpid())
        raise
    return made


def _remove(cgroups: Cgroups, owner: int) -> None:
    if owner == os.getpid():  # not a fork of the process that made them
        for folder in dict.fromkeys(cgroups.folders.values()):
            _remove_tree(folder)


def _remove_stale(parent: Path) -> None:
    """Remove the folders of processes that were killed; one that is in use refuses."""
    for folder in parent.glob("warmstart-*"):
        pid = folder.name.partition("-")[2]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    for path in (*folder.glob("box-*"), folder):
        with contextlib.suppress(OSError):
            path.rmdir()
