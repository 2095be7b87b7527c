"""What takes a process's rights away, by ctypes: namespaces, Landlock, seccomp, capabilities. Standard library only.

Part of the fork server, see `forkserver.py`; never imported by ours.
"""

import contextlib
import ctypes
import os
import signal
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
MOUNT_SETATTR, PIVOT_ROOT = 442, {"x86_64": 155, "aarch64": 41}[os.uname().machine]
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
DETACH, AT_FDCWD, AT_RECURSIVE = 2, -100, 0x8000
SET_PDEATHSIG, SET_SECCOMP, SECCOMP_FILTER, CAPBSET_DROP, SET_NO_NEW_PRIVS, SET_SUBREAPER = 1, 22, 2, 24, 38, 36
READ = 1 | 4 | 8  # execute, read a file, read a folder
ALL_FILE, ALL = 0x1 | 0x2 | 0x4 | 1 << 14 | 1 << 15, (1 << 16) - 1
TCP, ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3
OWN_IDS = os.geteuid(), os.getegid()  # asked for in a new user namespace, the kernel says 65534
DEVICES = ("null", "zero", "full", "random", "urandom")


def call(result: int, what: str) -> int:
    """The result of a C function, or OSError with what was tried."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2)."""
    done = LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode())
    call(done, f"mount {target}")


def map_own_user(proc: int) -> None:
    """In a new user namespace: the same user under the same number, and no other. `proc` is the host's /proc."""
    uid, gid = OWN_IDS
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def enter_namespaces(proc: int, binds: list[str], links: dict[str, str]) -> None:
    """Move the server to namespaces of its own, with a read-only root that holds `binds` and nothing else."""
    call(LIBC.unshare(NEWUSER | NEWNS | NEWNET | NEWUTS | NEWIPC | NEWCGROUP), "unshare")
    map_own_user(proc)
    mount("none", "/", "", REC | PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", NOSUID | NODEV, "mode=755,size=1m,nr_inodes=1k")
    os.mkdir("/tmp/.host")
    os.chdir("/tmp")
    call(LIBC.syscall(PIVOT_ROOT, b".", b".host"), "pivot_root")
    os.chdir("/")
    for path in (*binds, *(f"/dev/{name}" for name in DEVICES)):
        os.makedirs(path if os.path.isdir(f"/.host{path}") else os.path.dirname(path), exist_ok=True)
        if not os.path.isdir(path):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(f"/.host{path}", path, "", BIND | REC)
        if not path.startswith("/dev/"):
            read_only = struct.pack("=QQQQ", RDONLY, 0, 0, 0)
            done = LIBC.syscall(MOUNT_SETATTR, AT_FDCWD, path.encode(), AT_RECURSIVE, read_only, len(read_only))
            call(done, f"read-only {path}")
    for name, target in links.items():
        os.symlink(target, name)
    os.mkdir("/tmp")
    call(LIBC.umount2(b"/.host", DETACH), "umount")
    os.rmdir("/.host")
    mount("none", "/", "", REMOUNT | BIND | RDONLY | NOSUID | NODEV)


def landlock(readable: list[str], writable: str) -> None:
    """Confine this process for good to these paths, without TCP, abstract sockets and signals to outside."""
    attributes = struct.pack("=QQQ", ALL, TCP, ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = call(LIBC.syscall(LANDLOCK_CREATE, attributes, len(attributes), 0), "landlock")
    rights = {**dict.fromkeys(readable, READ), **{f"/dev/{name}": ALL_FILE for name in DEVICES}, writable: ALL}
    for path, allowed in rights.items():
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed if os.path.isdir(path) else allowed & ALL_FILE, descriptor)
        call(LIBC.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0), f"landlock {path}")
        os.close(descriptor)
    call(LIBC.syscall(LANDLOCK_RESTRICT, ruleset, 0), "landlock")
    os.close(ruleset)


class SockFprog(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def seccomp(program: bytes) -> None:
    """Confine this process for good to a filter of system calls."""
    call(LIBC.prctl(SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(SockFprog(len(program) // 8, program)), 0, 0), "seccomp")


def enter_own_processes() -> None:
    """Namespaces of one box: our next child is its first process."""
    call(LIBC.unshare(NEWPID | NEWNS | NEWIPC), "unshare")


def fresh_folder(proc: int, disk: int, files: int) -> None:
    """An empty /tmp of `disk` bytes and `files` files, and then a user namespace of the box's own."""
    mount("tmpfs", "/tmp", "tmpfs", NOSUID | NODEV, f"mode=1777,size={disk},nr_inodes={files}")
    call(LIBC.unshare(NEWUSER), "unshare")  # parallel boxes must not share one count of processes
    map_own_user(proc)


def become_subreaper() -> None:
    """Orphans below become our children."""
    call(LIBC.prctl(SET_SUBREAPER, 1, 0, 0, 0), "subreaper")


def die_with_parent() -> None:
    """The kernel kills us when our parent ends."""
    call(LIBC.prctl(SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "pdeathsig")


def no_new_privileges() -> None:
    """No program that we become gains a right, whoever owns it."""
    call(LIBC.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def drop_capabilities() -> None:
    """Empty every capability set: the user that a namespace was made by holds all of its capabilities."""
    for capability in range(64):
        LIBC.prctl(CAPBSET_DROP, capability, 0, 0, 0)
    header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    call(LIBC.capset(header, none), "capset")


def tell_oom_killer() -> None:
    """We are to be killed before whoever keeps us."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def count_of_user() -> int:
    """Processes and threads of this user."""
    count = 0
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == os.geteuid():
                count += len(os.listdir(f"/proc/{entry}/task"))
    return count


def descendants(root: int) -> list[int]:
    """Processes below one, by their parents in /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
                children.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(entry))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
