"""What a box uses, looked at from outside: from its control group, and from /proc where it has none."""

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.sandbox.cgroup import KEEPER, BoxCgroup
from pipeline.sandbox.limits import BoxLimits, Passed

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
CPU_MARGIN_S = 1.0
"""Beyond `cpu_s`, for all processes together: as for one process, whose end the kernel enforces a second after."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Processes below one, at one moment."""

    pids: tuple[int, ...]
    cpu_s: float
    """CPU seconds of the living and of those they have waited for."""
    resident: int
    """Bytes in memory; pages that several share are counted for each."""


def tree_below(root: int) -> Tree:
    """A process and its living descendants."""
    children: dict[int, list[int]] = {}
    found: dict[int, tuple[int, int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry))
        found[int(entry)] = sum(int(value) for value in fields[11:15]), int(fields[21])
    pids, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if pid in found:
            pids.append(pid)
        waiting.extend(children.get(pid, []))
    ticks, pages = (sum(found[pid][place] for pid in pids) for place in (0, 1))
    return Tree(tuple(pids), ticks / TICKS, pages * PAGE)


def over_limit(
    root: int, group: BoxCgroup | None, folder: str | None, limits: BoxLimits
) -> tuple[Passed | None, float]:
    """The limit that a box has passed, if any, and its CPU seconds so far.

    `root` is its first process as seen from here, `folder` its writable folder where that is one of this machine's;
    else it is a file system of its own at /tmp. With a control group the kernel itself limits memory and processes.
    """
    tree = None if group else tree_below(root)
    cpu_s = group.cpu_s() if group else tree.cpu_s if tree else 0.0
    if cpu_s >= limits.cpu_s + CPU_MARGIN_S:
        return "cpu_limit", cpu_s
    if tree and _threads(tree.pids) > limits.processes + KEEPER:
        return "process_limit", cpu_s
    if tree:
        room = (limits.memory_mb + limits.disk_mb) << 20
        held = _memfds(tree.pids)
        if tree.resident + held > room and sum(map(_proportional, tree.pids)) + held > room:
            return "memory_limit", cpu_s
    if _overfull(folder, limits) if folder else _many_files(f"/proc/{root}/root/tmp", limits):
        return "disk_limit", cpu_s
    return None, cpu_s


def _threads(pids: Iterable[int]) -> int:
    count = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def _proportional(pid: int) -> int:
    """Bytes in memory, shared pages divided among those that share them."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) << 10 if found else 0
    return 0


def _memfds(pids: Iterable[int]) -> int:
    """Bytes in memory files: nobody's resident memory until they are mapped."""
    sizes: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor.path).startswith("/memfd:"):
                        status = os.stat(descriptor.path)
                        sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _many_files(mount: str, limits: BoxLimits) -> bool:
    with contextlib.suppress(OSError):
        if os.path.ismount(mount):  # not yet, at first
            status = os.statvfs(mount)
            return status.f_files - status.f_ffree > limits.files
    return False


def _overfull(folder: str, limits: BoxLimits) -> bool:
    count = size = 0
    for base, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        for name in files:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(base, name)).st_blocks * 512
        if count > limits.files or size > limits.disk_mb << 20:
            return True
    return False
