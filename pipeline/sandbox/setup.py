"""Choose the strongest box that this machine can build, by trying: see `witness.py`. Once a process.

A tier is passed over when it cannot be built or lets something out, and why is kept; which one is used stands in each
result and in the lineage. Without any, programs are not run at all.
"""

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from threading import Lock

from pipeline.config import load_machine
from pipeline.errors import UserError
from pipeline.progress import say
from pipeline.sandbox.box import BoxResult, run_in
from pipeline.sandbox.bubblewrap import Bubblewrap
from pipeline.sandbox.cgroup import Cgroups, find_cgroups
from pipeline.sandbox.languages import toolchains
from pipeline.sandbox.limits import BoxLimits
from pipeline.sandbox.syscalls import kill_all_filter, seccomp_filter
from pipeline.sandbox.tiers import BoxSetup, Tier, TierName, libraries
from pipeline.sandbox.warm import ForkServer
from pipeline.sandbox.witness import NEEDED_OUTSIDE, outside, reached_inside, witness

_ONE_PROBE = Lock()
UNSAFE = "WARMSTART_UNSAFE_SANDBOX"
INSTALL = "sudo apt-get install --yes bubblewrap"
LANDLOCK_ABI = 6
"""The first one that also keeps signals and abstract unix sockets in: Linux 6.12."""
_SAMPLED = "memory, processes and CPU time of the whole box are sampled, not held by the kernel (no cgroup is writable)"
_LACKS_C = (
    "a process namespace: the kernel counts processes of the user, not of the box",
    "a file system of its own: names and sizes of host files can be seen, and /tmp is not the writable folder",
    "a disk limit of the kernel: the size of its folder is looked at ten times a second",
    "a network namespace: sockets are refused by seccomp and Landlock alone",
)


def run_boxed(argv: Sequence[str], stdin: bytes, limits: BoxLimits) -> BoxResult:
    """Run a program in a box of its own. Raises UserError where this machine cannot build one."""
    return run_in(box_setup(), argv, stdin, limits)


def python_argv(source: str) -> list[str]:
    """The arguments that run Python source in the box: standard library only, nothing imported from /tmp."""
    return box_setup().python_argv(source)


@cache
def box_setup() -> BoxSetup:
    """The box of this process, found and probed at first use.

    The machine file may name a tier (`sandbox.tier`) or ask for none (`sandbox.unsafe`, or WARMSTART_UNSAFE_SANDBOX=1).
    Raises UserError where no box can be built, or where what was built does not hold.
    """
    with _ONE_PROBE:  # a witness plants a secret in the environment, which all threads share
        return _find_box()


def _find_box() -> BoxSetup:
    choice = load_machine().sandbox
    if choice.unsafe or os.environ.get(UNSAFE) == "1":
        setup = next(setups("unsafe", find_cgroups()))
        say(
            "WARNING: the sandbox is switched off: programs written by a model run with the rights of "
            f"uid {os.geteuid() or 65534}, with network and files. Every result is marked `unsafe`."
        )
        return setup
    return choose(("A", "B", "C") if choice.tier == "auto" else (choice.tier,))


def choose(tiers: Sequence[TierName]) -> BoxSetup:
    """The first of these tiers that holds. Raises UserError if none does."""
    cgroups = find_cgroups()
    problems: list[str] = []
    for tier in tiers:
        try:
            for setup in setups(tier, cgroups, tuple(problems)):
                problem = probe(setup)
                if problem is None:
                    if tier == "C":
                        say(f"sandbox: tier C, the weakest; not to be had: {'; '.join(problems) or 'not asked for'}")
                    return setup
                problems.append(f"tier {tier}, {setup.python}: {problem}")
        except UserError as error:
            problems.append(f"tier {tier}: {error}")
    raise UserError(
        "sandbox: no box can be built here, and untrusted programs never run without one; install bubblewrap "
        f"({INSTALL}); if it is there, unprivileged user namespaces may be switched off: allow them (sudo sysctl "
        "kernel.unprivileged_userns_clone=1; in a container, a seccomp profile that permits unshare; on Ubuntu 24.04, "
        "an AppArmor profile for bwrap), or use Linux 6.12 or later with Landlock. Tried:\n"
        + "\n".join(dict.fromkeys(problems))
    )


def setups(tier: TierName, cgroups: Cgroups | None, passed_over: tuple[str, ...] = ()) -> Iterator[BoxSetup]:
    """Ways to build a tier on this machine, best first, not yet probed. Raises UserError for what is missing."""
    folders, _ = libraries()
    limited = (f"cgroup v{cgroups.version}",) if cgroups else ("sampling",)
    lacks = () if cgroups else (_SAMPLED,)
    landlock = landlock_abi() >= LANDLOCK_ABI
    mechanisms: tuple[str, ...] = ("seccomp", "rlimits", *limited)
    if tier == "C" and not landlock:
        raise UserError(f"Landlock's interface {LANDLOCK_ABI} is needed (Linux 6.12), found {landlock_abi()}")
    if tier == "B":
        mechanisms += ("namespaces", *(("landlock",) if landlock else ()))
    elif tier == "C":
        mechanisms, lacks = (*mechanisms, "landlock"), (*lacks, *_LACKS_C)
    elif tier == "unsafe":
        mechanisms, lacks = ("rlimits", *limited), (*lacks, "everything that keeps a program from this machine")
    for python, files in _interpreters():
        binds = tuple(dict.fromkeys((*folders, *files, *toolchains())))
        if tier == "A":
            bwrap, prlimit = _need("bwrap", INSTALL), _need("prlimit", "sudo apt-get install --yes util-linux")
            for userns_disabled in (True, False):
                made = Tier("A", (*mechanisms, "bubblewrap"), lacks)
                starter = Bubblewrap(bwrap, prlimit, userns_disabled)
                yield BoxSetup(made, python, binds, seccomp_filter(), cgroups, starter, passed_over)
            continue
        # Without namespaces the program sees host files; root's programs run as a user that owns none.
        filter_ = kill_all_filter() if tier == "unsafe" else seccomp_filter(tier == "C" and os.geteuid() != 0)
        server = ForkServer(namespaces=tier == "B", landlock=landlock and tier != "unsafe")
        yield BoxSetup(Tier(tier, mechanisms, lacks), python, binds, filter_, cgroups, server, passed_over)


def probe(setup: BoxSetup) -> str | None:
    """Try every way out, in a box and beside it outside. Returns what is wrong with this setup, or None if it holds."""
    try:
        with witness() as ready, outside(setup.python, ready) as reached_outside:
            try:
                inside, problem = reached_inside(setup, ready)
            finally:
                free = reached_outside()
    except OSError as error:  # an interpreter that the unprivileged user cannot reach
        return str(error)
    if problem:
        return problem
    if inside:
        return f"the box does not hold ({', '.join(sorted(inside))} within reach)"
    void = NEEDED_OUTSIDE - free
    return f"the probe is void: outside as well it could not reach {', '.join(sorted(void))}" if void else None


def landlock_abi() -> int:
    """Version of Landlock's interface in the running kernel, 0 where it has none."""
    return max(0, int(ctypes.CDLL(None).syscall(444, None, 0, 1)))


def _need(program: str, install: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise UserError(f"{program}: not found; install it and run the same command again: {install}")
    return found


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
