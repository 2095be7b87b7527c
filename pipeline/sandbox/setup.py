"""The bubblewrap command line of the box, and the probe that shows at first use that it holds.

Root drops to uid 65534 *before* bubblewrap starts: started as root, bubblewrap 0.8 leaves every capability in place
and the kernel ignores the process limit. `/dev` and `/` are tmpfs, so both are remounted read-only: left writable, a
program put 240 MB there.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.sandbox.limits import BoxLimits

NOBODY = 65534
INSTALL = "sudo apt-get install --yes bubblewrap"
PROBE_TIMEOUT_S = 60.0

WITNESS = """
import dataclasses, decimal, fractions, heapq, json, math, re, socket, sys
port, host_file = int(sys.argv[1]), sys.argv[2]
def works(action):
    try: action()
    except OSError: return False
    return True
held = {
    "network": works(lambda: socket.create_connection(("127.0.0.1", port), 2)),
    "host files": works(lambda: open(host_file)),
    "writing outside /tmp": works(lambda: open("/x", "w")) or works(lambda: open("/dev/x", "w")),
}
print("escapes:" + ",".join(name for name, open_ in held.items() if open_))
"""
"""Every action here succeeds outside the box, so a witness that fails to run cannot pass for a box that holds."""


@dataclass(frozen=True, slots=True)
class BoxSetup:
    """How boxes are built on this machine."""

    bwrap: str
    prlimit: str
    python: str
    """Interpreter inside the box, reachable for an unprivileged user."""
    python_binds: tuple[str, ...]
    """Folders and files of that interpreter, bound read-only."""
    userns_disabled: bool
    """Whether programs are refused user namespaces of their own (an older bubblewrap cannot)."""

    def command(self, argv: Sequence[str], limits: BoxLimits, status_fd: int | None = None) -> list[str]:
        """The whole command that runs `argv` in a box."""
        line = [self.bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts"]
        line += ["--unshare-cgroup-try", "--new-session", "--die-with-parent", "--cap-drop", "ALL"]
        line += ["--disable-userns"] if self.userns_disabled else []
        line += ["--json-status-fd", str(status_fd)] if status_fd is not None else []
        line += ["--clearenv", "--setenv", "LANG", "C.UTF-8", "--setenv", "PATH", "/usr/bin"]
        # Sets of strings iterate in the same order everywhere, so verdicts repeat. One malloc arena: each further
        # one reserves 64 MiB of the address space that is limited below.
        line += ["--setenv", "PYTHONHASHSEED", "0", "--setenv", "MALLOC_ARENA_MAX", "1"]
        for path in dict.fromkeys((*system_binds(), self.prlimit, *self.python_binds)):
            line += ["--ro-bind", path, path]
        for link in ("/lib", "/lib64"):
            if os.path.islink(link):
                line += ["--symlink", os.readlink(link), link]
        line += ["--dev", "/dev", "--size", str(limits.disk_mb << 20), "--tmpfs", "/tmp", "--chdir", "/tmp"]
        line += ["--remount-ro", "/dev", "--remount-ro", "/", "--"]
        # Inside the user namespace, so that parallel boxes do not share one count of processes.
        line += [self.prlimit, f"--cpu={limits.cpu_s}:{limits.cpu_s + 1}", f"--as={limits.memory_mb << 20}"]
        line += [f"--nproc={limits.processes}", f"--fsize={limits.disk_mb << 20}", f"--nofile={limits.open_files}"]
        return [*line, "--core=0", "--", *argv]


def system_binds() -> list[str]:
    """The shared libraries; /lib and /lib64 are links into /usr, or folders on systems without a merged /usr."""
    folders = [f for f in ("/usr/lib", "/usr/lib64") if os.path.isdir(f)]
    return folders + [f for f in ("/lib", "/lib64") if os.path.isdir(f) and not os.path.islink(f)]


def unprivileged() -> dict[str, Any]:
    """Arguments of `subprocess.Popen` that start a program in a clean environment and never as root.

    The environment of bubblewrap itself is cleaned as well: a program could read it from /proc/1/environ.
    """
    clean: dict[str, Any] = {"env": {"PATH": "/usr/bin:/bin"}, "cwd": "/", "start_new_session": True}
    return {**clean, "user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else clean


def python_argv(source: str) -> list[str]:
    """The arguments that run Python source in the box: standard library only, nothing imported from /tmp."""
    return [box_setup().python, "-s", "-S", "-P", "-B", "-c", source]


@cache
def box_setup() -> BoxSetup:
    """Find and probe what the box needs, once per process. Raises UserError where no box can be built or it leaks."""
    bwrap, prlimit = shutil.which("bwrap"), shutil.which("prlimit")
    if bwrap is None:
        raise UserError(
            "bwrap: not found; untrusted programs run only in a bubblewrap box, never without one. "
            f"Install it and run the same command again: {INSTALL}"
        )
    if prlimit is None:
        raise UserError("prlimit: not found; the box needs it for its limits: sudo apt-get install --yes util-linux")
    problems = []
    for python, binds in _interpreters():
        for userns_disabled in (True, False):
            setup = BoxSetup(bwrap, prlimit, python, binds, userns_disabled)
            problem = _probe(setup)
            if problem is None:
                return setup
            problems.append(f"{python}: {problem}")
    raise UserError(
        f"{bwrap}: no box can be built here; unprivileged user namespaces may be switched off. Install bubblewrap "
        f"({INSTALL}) and allow them (sudo sysctl kernel.unprivileged_userns_clone=1; in a container, a seccomp "
        "profile that permits unshare; on Ubuntu 24.04, an AppArmor profile for bwrap). Tried:\n"
        + "\n".join(dict.fromkeys(problems))
    )


def _interpreters() -> list[tuple[str, tuple[str, ...]]]:
    """Python 3.11 or later with its files: the system's first, the same one for root and for a user.

    An interpreter under a private home folder cannot be reached after the uid drop.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    system = os.path.realpath("/usr/bin/python3")
    if os.path.exists(system):
        found.append((system, (system,)))
    own, prefix = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)
    if own != system:
        found.append((own, (own, str(Path(prefix) / "lib"))))
    return found


def _probe(setup: BoxSetup) -> str | None:
    """Run the witnesses in a box. Returns what is wrong, or None. Raises UserError if the box lets something out."""
    with tempfile.NamedTemporaryFile() as host_file, socket.create_server(("127.0.0.1", 0)) as listener:
        os.chmod(host_file.name, 0o644)
        port = listener.getsockname()[1]
        arguments = [setup.python, "-s", "-S", "-P", "-B", "-c", WITNESS, str(port), host_file.name]
        try:
            done = subprocess.run(
                setup.command(arguments, BoxLimits()),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_TIMEOUT_S,
                check=False,
                **unprivileged(),
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    output = done.stdout.decode(errors="replace").strip()
    if done.returncode or not output.startswith("escapes:"):
        return f"exit {done.returncode}, {done.stderr.decode(errors='replace').strip()[-300:] or 'no message'}"
    escapes = output.removeprefix("escapes:")
    if escapes:
        raise UserError(f"{setup.bwrap}: the box does not hold ({escapes} reachable from inside); it is not used")
    return None
