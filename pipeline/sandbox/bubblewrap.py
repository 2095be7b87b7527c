"""Tier A: a bubblewrap command line.

Root drops to uid 65534 *before* bubblewrap starts: started as root, bubblewrap 0.8 leaves every capability in place
and the kernel ignores the process limit. `/dev` and `/` are tmpfs, so both are remounted read-only: left writable, a
program put 240 MB there.
"""

import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.sandbox.cgroup import BoxCgroup
from pipeline.sandbox.limits import BoxLimits
from pipeline.sandbox.tiers import ENVIRONMENT, BoxSetup, Running, closing, libraries, sealed, unprivileged


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """The programs of tier A; an instance starts boxes."""

    bwrap: str
    prlimit: str
    userns_disabled: bool
    """Whether bubblewrap itself refuses programs user namespaces of their own (before 0.8 it cannot; seccomp does)."""

    @contextlib.contextmanager
    def __call__(
        self, setup: BoxSetup, argv: Sequence[str], stdin: bytes, limits: BoxLimits, group: BoxCgroup | None
    ) -> Iterator[Running]:
        """Start one box. It ends with us: bubblewrap asks the kernel for that."""
        status_read, status_write = os.pipe()
        block_read, block_write = os.pipe()
        source, program = sealed(stdin), sealed(setup.seccomp)
        inside = (status_write, block_read, program)
        with closing(status_read, block_write):
            with closing(*inside, source):
                process = subprocess.Popen(
                    self.command(setup, argv, limits, *inside),
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=inside,
                    **unprivileged(),
                )
            assert process.stdout is not None and process.stderr is not None
            kill = functools.partial(process.send_signal, signal.SIGKILL)
            try:
                yield Running(
                    process.stdout.fileno(), process.stderr.fileno(), status_read, lambda: _go(block_write), kill
                )
            except BaseException:
                kill()
                raise
            finally:
                process.stdout.close()
                process.stderr.close()
                process.wait()

    def command(
        self, setup: BoxSetup, argv: Sequence[str], limits: BoxLimits, status: int, block: int, seccomp: int
    ) -> list[str]:
        """The whole command that runs `argv` in a box."""
        line = [self.bwrap, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts"]
        line += ["--unshare-cgroup-try", "--new-session", "--die-with-parent", "--cap-drop", "ALL"]
        line += ["--disable-userns"] if self.userns_disabled else []
        line += ["--json-status-fd", str(status), "--block-fd", str(block), "--seccomp", str(seccomp), "--clearenv"]
        for name, value in ENVIRONMENT.items():
            line += ["--setenv", name, value]
        for path in dict.fromkeys((*setup.binds, self.prlimit)):
            line += ["--ro-bind", path, path]
        for link, target in libraries()[1].items():
            line += ["--symlink", target, link]
        line += ["--dev", "/dev", "--size", str(limits.disk_mb << 20), "--tmpfs", "/tmp", "--chdir", "/tmp"]
        line += ["--remount-ro", "/dev", "--remount-ro", "/", "--"]
        # Inside the user namespace, so that parallel boxes do not share one count of processes.
        line += [self.prlimit, f"--cpu={limits.cpu_s}:{limits.cpu_s + 1}"]
        line += [f"--as={limits.memory_mb << 20}"] if limits.address_space else []
        line += [f"--nproc={limits.processes}", f"--fsize={limits.disk_mb << 20}", f"--nofile={limits.open_files}"]
        return [*line, "--core=0", "--", *argv]


def _go(block: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(block, b"g")
