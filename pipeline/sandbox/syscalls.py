"""The system calls that no boxed program may make, as a seccomp filter.

Assembled here: Debian's binding of libseccomp is out of reach of a virtual environment, the one on PyPI has stood still
since 2021, and the whole program is a chain of comparisons. Numbers are those of the kernel's tables, x86_64 then
aarch64; None where an architecture lacks the call. What is refused looks like a missing right (EPERM), so that programs
go on; only another ABI than the native one ends the process, since its numbers would mean other calls.
"""

import errno
import platform
import struct
from collections.abc import Iterator

from pipeline.errors import UserError

_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # The network and unix sockets of the host. `socketpair` stays: asyncio and pools of processes talk through it.
    "socket": (41, 198),
    # Into other processes: their memory, their files, their schedule.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "setpriority": (141, 140),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    # Kernel keyrings are shared by all processes of a user and outlive them.
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    # Much of the kernel behind one call; io_uring makes other calls past this filter.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    # Another view of the file system, or files without a path.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # Namespaces; `clone` below.
    "unshare": (272, 97),
    "setns": (308, 268),
    # The machine itself. All need rights that no program has; refused in case one is gained.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    # Memory and names that outlive the process, where there is no IPC namespace of its own.
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}

_REFUSED_TO_OWNERS: dict[str, tuple[int | None, int | None]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
"""Changes to a file's owner, mode and times: Landlock does not guard them."""

_PID_ZERO_ONLY: dict[str, tuple[int, int]] = {"prlimit64": (302, 261), "sched_setaffinity": (203, 122)}
"""For the caller itself; another process of the same user is out of bounds."""
_CLONE, _CLONE3, _KILL, _IOCTL = (56, 220), (435, 435), (62, 129), (16, 29)
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_TIOCSTI = 0x5412  # writes into the terminal's input

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # offsets of the low words in seccomp_data
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000


def seccomp_filter(owns_files: bool = False, machine: str | None = None) -> bytes:
    """The filter as the bytes of a `struct sock_filter[]`, for prctl and for bubblewrap's `--seccomp`.

    With `owns_files`, for a program that runs as the owner of host files without a mount namespace, changes of mode,
    owner and times are refused as well. Raises UserError on another architecture than x86_64 and aarch64.
    """
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        raise UserError(f"sandbox: no list of system calls for {machine}; untrusted programs run on x86_64 and aarch64")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _program(machine, owns_files))


def kill_all_filter(machine: str | None = None) -> bytes:
    """The one rule that also an unsafe box keeps: a `kill(-1)` that a box contains would end all that the user runs."""
    column, architecture = _ARCHITECTURES[machine or platform.machine()]
    rule = _on_argument(_KILL[column], _FIRST_ARGUMENT, _EQUAL, 0xFFFFFFFF, errno.ESRCH)
    program = [*_native_only(architecture, ends=False), *rule, (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _program(machine: str, owns_files: bool) -> Iterator[tuple[int, int, int, int]]:
    column, architecture = _ARCHITECTURES[machine]
    yield from _native_only(architecture, ends=True)
    if machine == "x86_64":
        yield (_AT_LEAST, 0, 1, _X32)
        yield (_RETURN, 0, 0, _KILL_PROCESS)
    for numbers in {**_REFUSED, **(_REFUSED_TO_OWNERS if owns_files else {})}.values():
        number = numbers[column]
        if number is not None:
            yield from _refuse(number, errno.EPERM)
    # Its flags lie in memory, which a filter cannot read; with ENOSYS libraries fall back to `clone`.
    yield from _refuse(_CLONE3[column], errno.ENOSYS)
    yield from _on_argument(_CLONE[column], _FIRST_ARGUMENT, _ANY_BIT, _NEW_NAMESPACES, errno.EPERM)
    yield from _on_argument(_IOCTL[column], _SECOND_ARGUMENT, _EQUAL, _TIOCSTI, errno.EPERM)
    for own in _PID_ZERO_ONLY.values():
        yield (_EQUAL, 0, 4, own[column])
        yield (_LOAD, 0, 0, _FIRST_ARGUMENT)
        yield (_EQUAL, 1, 0, 0)
        yield (_RETURN, 0, 0, _ERRNO | errno.EPERM)
        yield (_RETURN, 0, 0, _ALLOW)
    yield (_RETURN, 0, 0, _ALLOW)


def _native_only(architecture: int, ends: bool) -> list[tuple[int, int, int, int]]:
    """End or let through calls of another architecture, and load the call's number."""
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL_PROCESS if ends else _ALLOW),
        (_LOAD, 0, 0, _NUMBER),
    ]


def _refuse(number: int, code: int) -> list[tuple[int, int, int, int]]:
    return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | code)]


def _on_argument(number: int, argument: int, test: int, value: int, code: int) -> list[tuple[int, int, int, int]]:
    """Refuse a call whose argument passes a test, allow it otherwise."""
    return [
        (_EQUAL, 0, 4, number),
        (_LOAD, 0, 0, argument),
        (test, 0, 1, value),
        (_RETURN, 0, 0, _ERRNO | code),
        (_RETURN, 0, 0, _ALLOW),
    ]
