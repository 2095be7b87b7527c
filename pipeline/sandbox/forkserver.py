"""The fork server: a small warm interpreter that forks one box a request, without bubblewrap. It is passed to the
interpreter as text and needs only the standard library and ctypes.

It stays single-threaded and never reads a request's program: the job lies in a descriptor that the fork alone reads. So
nothing of one program can reach the next. A request brings five descriptors or more: job, stdin, stdout, stderr, a
channel, and doors to control groups, through which the box moves itself by writing 0. Over the channel the box names
its process, waits for a byte to begin, and tells its exit code. A channel that closes at the other end, because the
caller ended or asks for it, ends the box.

    server -> gate (new namespaces) -> keeper (first process of the box, reaps, ends it) -> the program
"""

import atexit
import contextlib
import gc
import io
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
import types
from typing import Any

from pipeline.sandbox.confine import (
    become_subreaper,
    count_of_user,
    descendants,
    die_with_parent,
    drop_capabilities,
    enter_namespaces,
    enter_own_processes,
    fresh_folder,
    landlock,
    no_new_privileges,
    seccomp,
    tell_oom_killer,
)

Config = dict[str, Any]


def serve(control: socket.socket) -> list[int]:
    """Fork a box for each request. Returns its descriptors, and only in the fork."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 8)
        if not data:
            os._exit(0)
        child = os.fork()
        if child == 0:
            control.close()
            return descriptors
        for descriptor in descriptors:
            os.close(descriptor)


def tell(channel: int, **event: object) -> None:
    """One line to the caller, who may be gone."""
    with contextlib.suppress(OSError):
        os.write(channel, json.dumps(event).encode() + b"\n")


def become_keeper(channel: int, config: Config) -> None:
    """Enter the box's own namespaces and wait for the word to begin. A gate stays behind and tells our pid."""
    if config["namespaces"]:
        enter_own_processes()
        keeper = os.fork()
        if keeper:
            tell(channel, **{"child-pid": keeper})
            os._exit(0)
    else:
        become_subreaper()
        os.setsid()
        tell(channel, **{"child-pid": os.getpid()})
    if not os.read(channel, 1):
        os._exit(1)


def make_folder(config: Config, job: Config) -> str:
    """The only folder that the program may write to, and its working folder."""
    if config["namespaces"]:
        fresh_folder(config["proc"], job["limits"]["disk"], job["limits"]["files"])
        return "/tmp"
    os.mkdir(job["folder"], 0o700)
    return str(job["folder"])


def confine(config: Config, limits: Config, folder: str) -> None:
    """Take every right and set every limit of the program's process."""
    processes = limits["processes"]
    if not config["namespaces"]:
        # Shared with all that this user runs: the caller holds the box to its own number.
        processes = count_of_user() + 4 * processes
        os.environ.update(TMPDIR=folder, HOME=folder)
        tell_oom_killer()
    os.chdir(folder)
    die_with_parent()
    no_new_privileges()
    for name, value in limits["resources"].items():
        resource.setrlimit(getattr(resource, name), tuple(value))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    drop_capabilities()
    if config["landlock"]:
        landlock(["/"] if config["namespaces"] else config["binds"], folder)
    seccomp(bytes.fromhex(config["seccomp"]))


def keep(program: int, channel: int, wakeup: socket.socket) -> tuple[int, bool]:
    """Reap until the program ends or the caller closes the channel. Returns its wait status and whether it ended."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    while True:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == program:
                return status, True
            if pid == 0:
                break
        for descriptor, _ in poll.poll():
            if descriptor == channel:
                return 0, False
            wakeup.recv(4096)


def end_the_rest(config: Config) -> None:
    """Kill what the program left behind, and reap it: its CPU seconds become ours."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if config["namespaces"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            time.sleep(0.0005)
            continue
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def remove(folder: str) -> None:
    """Remove the program's folder; it may be closed to us, or deeper than we may have descriptors."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        for line in (["/usr/bin/chmod", "-R", "u+rwx", folder], ["/usr/bin/rm", "-rf", folder]):
            os.waitpid(os.posix_spawn(line[0], line, os.environ), 0)


def run_keeper(program: int, channel: int, wakeup: socket.socket, config: Config, folder: str) -> None:
    """The rest of the keeper's life."""
    status, ended = keep(program, channel, wakeup)
    end_the_rest(config)
    if not config["namespaces"]:
        remove(folder)
    if ended:
        code = os.waitstatus_to_exitcode(status)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        tell(channel, **{"exit-code": code if code >= 0 else 128 - code, "cpu-s": used.ru_utime + used.ru_stime})
    os._exit(0)


def start_program(job: Config, config: Config, folder: str, streams: list[int], channel: int) -> None:
    """In the program's own process: connect, confine, become it. Returns for Python source, which runs at the top."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    confine(config, job["limits"], folder)
    os.closerange(3, channel)
    os.closerange(channel + 1, 1 << 20)
    if job["source"] is None:
        os.set_inheritable(channel, False)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # the interpreter ignores them
            signal.signal(number, signal.SIG_DFL)
        os.execv(job["argv"][0], job["argv"])
    os.close(channel)


def open_streams() -> None:
    """Standard streams as the interpreter makes them, on the descriptors that are there now."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, mode = getattr(sys, name), "r" if number == 0 else "w"
        raw = open(number, f"{mode}b", closefd=False)  # noqa: SIM115
        new = io.TextIOWrapper(raw, old.encoding, old.errors, line_buffering=number == 2)
        new.mode = mode  # type: ignore[misc]
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def run_source(source: str, arguments: list[str]) -> None:
    """As `python -c` does, in a `__main__` of its own; ends the process.

    The interpreter's own shutdown would write to every page that we share with the server, 7 ms. Done here is what a
    program can tell: threads are waited for, exit handlers run, its objects are deleted, its output is flushed.
    """
    open_streams()
    sys.argv = ["-c", *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    gc.enable()
    code = 1
    try:
        exec(compile(source, "<string>", "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - this is the box
        code = 0
    except SystemExit as error:
        code = exit_code(error.code)
    except BaseException as error:  # noqa: BLE001 - the interpreter prints any
        below = error.__traceback__ and error.__traceback__.tb_next  # without our own frame
        sys.excepthook(type(error), error.with_traceback(below), below)
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        main.__dict__.clear()
        gc.collect()
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr, sys.__stdout__)):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def exit_code(code: object) -> int:
    """Exit code of `sys.exit(code)`; what is no number is printed."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def box(config: Config, control: socket.socket) -> Config:
    """Serve; in the fork of a request, become the keeper, and in its fork the program. Returns the program's job."""
    job_file, *others = serve(control)
    streams, channel, doors = others[:3], others[3], others[4:]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        become_keeper(channel, config)
        for door in doors:
            os.write(door, b"0")
            os.close(door)
        with open(job_file) as file:
            job: Config = json.load(file)
        folder = make_folder(config, job)
        woken, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        program = os.fork()
        if program == 0:
            start_program(job, config, folder, streams, channel)
            return job
        for descriptor in streams:
            os.close(descriptor)
        os.closerange(0, 3)
    except BaseException as error:  # noqa: BLE001 - told to the caller, whatever it is
        tell(channel, error=f"{type(error).__name__}: {error}")
        os._exit(1)
    run_keeper(program, channel, woken, config, folder)
    raise AssertionError("the keeper has ended")


def main(config: Config) -> None:
    """Set up once, say so, serve. `config` has the control socket, the tier's parts and what programs may read."""
    control = socket.socket(fileno=config["control"])
    if config["namespaces"]:
        config["proc"] = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        enter_namespaces(config["proc"], config["binds"], config["links"])
    become_subreaper()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(b"r")
    gc.collect()
    gc.freeze()
    gc.disable()
    job = box(config, control)
    run_source(job["source"], job["argv"])
