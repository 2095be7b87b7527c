"""Ways out of a box. Every probe runs in the box, where it must fail, and outside, where it must succeed."""

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.sandbox import BoxSetup
from tests.boxes import TIERS, boxed, open_folder, processes_saying, setup_of, unboxed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=TIERS)
def setup(request: pytest.FixtureRequest) -> BoxSetup:
    return setup_of(request.param)


def test_a_program_reads_its_input_and_ends_with_its_own_code(setup: BoxSetup):
    result = boxed(setup, "import sys; print(input()); print('no', file=sys.stderr); sys.exit(3)", stdin=b"hello")
    assert (result.status, result.code, result.stdout, result.stderr) == ("exited", 3, b"hello\n", b"no\n")
    assert result.tier == setup.tier.name


def test_a_tcp_listener_of_the_host_is_out_of_reach(setup: BoxSetup):
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5); print('in')"
        assert unboxed(probe) == "in\n"
        result = boxed(setup, probe)
    assert result.stdout == b"" and b"Error" in result.stderr


def test_no_datagram_reaches_the_host(setup: BoxSetup):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(10)
        probe = f"""
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"out", ("127.0.0.1", {server.getsockname()[1]}))
"""
        unboxed(probe)
        assert server.recv(10) == b"out"
        assert b"Error" in boxed(setup, probe).stderr
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.recv(10)


@pytest.mark.parametrize("kind", ["abstract", "a path"])
def test_a_unix_socket_of_the_host_is_out_of_reach(setup: BoxSetup, tmp_path: Path, kind: str):
    name = f"\0warmstart-{os.getpid()}" if kind == "abstract" else str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        probe = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r}); print('in')"
        assert unboxed(probe) == "in\n"
        assert boxed(setup, probe).stdout == b""


@pytest.mark.parametrize("path", ["a file of ours", "/etc/passwd", "/proc/version", "/proc/self/mountinfo"])
def test_host_files_cannot_be_read(setup: BoxSetup, tmp_path: Path, path: str):
    if path == "a file of ours":
        path = str(tmp_path / "secret")
        Path(path).write_text("x")
    probe = "import sys; print(len(open(sys.argv[1]).read()) > 0)"
    assert unboxed(probe, path) == "True\n"
    result = boxed(setup, probe, path)
    assert result.stdout == b"" and b"Error" in result.stderr


def test_no_secret_of_our_environment_gets_in(setup: BoxSetup, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "canary-4711")
    probe = f"""
import os
from pathlib import Path
places = [str(dict(os.environ)).encode()]
for pid in (1, "self", os.getppid(), {os.getpid()}):
    try: places.append(Path(f"/proc/{{pid}}/environ").read_bytes())
    except OSError: pass
print(any(b"canary-4711" in place for place in places))
"""
    assert unboxed(probe) == "True\n"
    assert boxed(setup, probe).stdout == b"False\n"


@pytest.mark.parametrize(
    "folder", ["/", "/dev", "/dev/shm", "/usr/lib", "/usr/bin", "/var", "/etc", "a folder of ours"]
)
def test_nothing_outside_its_folder_can_be_written(setup: BoxSetup, folder: str, tmp_path: Path):
    probe = "import sys\nopen(sys.argv[1] + '/x', 'w').write('x'); print('written')"
    tmp_path.chmod(0o777)
    assert unboxed(probe, str(tmp_path)) == "written\n"
    place = str(tmp_path) if folder == "a folder of ours" else folder
    assert boxed(setup, probe, place).stdout == b""
    assert boxed(setup, probe, ".").stdout == b"written\n"


@pytest.mark.parametrize(
    "change", ["os.chmod(path, 0)", "os.utime(path, (1, 1))", "os.truncate(path, 0)", "os.unlink(path)"]
)
def test_a_file_of_the_host_cannot_be_changed(setup: BoxSetup, tmp_path: Path, change: str):
    probe = f"import os, sys\npath = sys.argv[1]\n{change}\nprint('changed')"
    tmp_path.chmod(0o777)
    file = tmp_path / "file"

    def fresh() -> str:
        file.unlink(missing_ok=True)
        file.write_text("x")
        file.chmod(0o666)
        return str(file)

    assert unboxed(probe, fresh()) == "changed\n"
    assert boxed(setup, probe, fresh()).stdout == b""
    assert file.read_text() == "x"


def test_a_process_outside_cannot_be_signalled(setup: BoxSetup):
    probe = "import os, sys; os.kill(int(sys.argv[1]), 15)"
    start = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "60"], **start) as ours, subprocess.Popen(["sleep", "60"], **start) as bare:
        boxed(setup, probe, str(ours.pid))
        boxed(setup, "import os; os.kill(-1, 9)")
        unboxed(probe, str(bare.pid))
        assert bare.wait(10) == -signal.SIGTERM
        assert ours.poll() is None
        ours.kill()


def test_a_daemon_does_not_outlive_its_box(setup: BoxSetup):
    mark = f"warmstart-daemon-{os.getpid()}"
    probe = f"""
import subprocess, sys
sleeper = "import time; print('up', flush=True); time.sleep(60)"
line = [{setup.python!r}, "-c", sleeper, {mark!r}]
pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
daemon = subprocess.Popen(line, start_new_session=True, **pipes)
print(daemon.stdout.read(3).decode().strip())
"""
    assert unboxed(probe) == "up\n"
    [daemon] = processes_saying(mark)
    os.kill(daemon, signal.SIGKILL)
    assert boxed(setup, probe).stdout == b"up\n"
    assert set(processes_saying(mark)) <= {daemon}


def test_nothing_is_left_when_its_caller_is_killed(setup: BoxSetup):
    mark = f"warmstart-killed-{os.getpid()}-{setup.tier.name}"
    program = f"""
import os, subprocess, sys, time
line = [{setup.python!r}, "-c", "import time; time.sleep(120)", {mark!r}]
for _ in range(2): subprocess.Popen(line, start_new_session=True)
time.sleep(120)
"""
    caller = f"""
import sys
from tests.boxes import boxed, setup_of
boxed(setup_of({setup.tier.name!r}), {program!r}, wall_s=120)
"""
    with open_folder() as folder:
        start = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": python_path(), "TMPDIR": str(folder)}}
        bare = subprocess.Popen([sys.executable, "-c", program])
        with subprocess.Popen([sys.executable, "-c", caller], **start) as own:
            _wait(lambda: len(processes_saying(mark)) >= 4)
            before = set(processes_saying(mark))
            own.kill()
            bare.kill()
            bare.wait()
        _wait(lambda: len(processes_saying(mark)) <= 2)
        left = processes_saying(mark)
        assert len(left) == 2 and set(left) <= before  # those that ran outside of a box
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        _wait(lambda: not list(folder.glob("warmstart-box-*")))


def python_path() -> str:
    """Where this process finds its modules, for a Python started by hand."""
    return os.pathsep.join([str(ROOT), *filter(None, sys.path)])


def _wait(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_program_has_no_rights(setup: BoxSetup):
    probe = """
import ctypes, os, struct
libc = ctypes.CDLL(None)
data = ctypes.create_string_buffer(24)
libc.capget(struct.pack("=Ii", 0x20080522, 0), data)
bounding = sum(libc.prctl(23, n, 0, 0, 0) == 1 for n in range(41))
print(os.getuid() != 0, libc.prctl(39, 0, 0, 0, 0), data.raw == bytes(24), bounding)
"""
    uid, no_new_privileges, no_capabilities, bounding = boxed(setup, probe).stdout.split()
    assert (uid, no_new_privileges, no_capabilities) == (b"True", b"1", b"True")
    assert setup.tier.name != "B" or bounding == b"0"
    if os.geteuid() == 0:
        assert unboxed(probe).split()[:3] == ["False", "0", "False"]


CALLS = {
    # name: (number on x86_64, on aarch64, arguments). Each is harmless where it succeeds.
    **{"socket": (41, 198, "2, 1, 0"), "socket of unix": (41, 198, "1, 1, 0"), "netlink": (41, 198, "16, 3, 0")},
    **{"ptrace": (101, 117, "16, 0, 0, 0"), "process_vm_readv": (310, 270, "0, 0, 0, 0, 0, 0")},
    **{"process_vm_writev": (311, 271, "0, 0, 0, 0, 0, 0"), "kcmp": (312, 272, "0, 0, 9, 0, 0")},
    **{"keyctl": (250, 219, "0, -3, 0"), "add_key": (248, 217, "0, 0, 0, 0, -3")},
    **{"bpf": (321, 280, "99, 0, 0"), "perf_event_open": (298, 241, "0, 0, -1, -1, 0")},
    **{
        "userfaultfd": (323, 282, "1"),
        "io_uring_setup": (425, 425, "1, 0"),
        "io_uring_enter": (426, 426, "-1, 0, 0, 0, 0, 0"),
    },
    **{"unshare": (272, 97, "0"), "setns": (308, 268, "-1, 0"), "mount": (165, 40, "0, 0, 0, 0, 0")},
    **{"pivot_root": (155, 41, "0, 0"), "chroot": (161, 51, "0"), "open_tree": (428, 428, "-1, 0, 0")},
    **{"fsopen": (430, 430, "0, 0"), "move_mount": (429, 429, "-1, 0, -1, 0, 0")},
    **{"open_by_handle_at": (304, 265, "-1, 0, 0"), "name_to_handle_at": (303, 264, "-1, 0, 0, 0, 0")},
    **{"kexec_load": (246, 104, "0, 99, 0, 0"), "init_module": (175, 105, "0, 0, 0"), "syslog": (103, 116, "99, 0, 0")},
    **{
        "shmget": (29, 194, "0, 0, 0"),
        "msgget": (68, 186, "99, 0"),
        "semget": (64, 190, "99, 0, 0"),
        "mq_open": (240, 180, "0, 0, 0, 0"),
    },
    **{"prlimit of another": (302, 261, "1, 99, 0, 0"), "setpriority": (141, 140, "99, 0, 0")},
    **{"clone with a user namespace": (56, 220, "0x10000011, 0, 0, 0, 0")},
    **{"pidfd_getfd": (438, 438, "-1, 0, 0"), "process_madvise": (440, 440, "-1, 0, 0, 0, 0")},
}
CALLS_PROBE = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for name, number, arguments in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    result = libc.syscall(number, *(int(word, 0) for word in arguments.split(",")))
    if name.startswith("clone") and result == 0: os._exit(0)
    found[name] = ctypes.get_errno() if result < 0 else 0
print(json.dumps(found))
"""


def test_dangerous_system_calls_are_refused(setup: BoxSetup):
    column = 0 if platform.machine() == "x86_64" else 1
    calls = json.dumps([(name, call[column], call[2]) for name, call in CALLS.items()])
    inside = json.loads(boxed(setup, CALLS_PROBE, calls).stdout)
    assert inside == dict.fromkeys(CALLS, 1)  # EPERM, from the filter
    if os.geteuid() == 0:  # for others the kernel itself refuses many of them
        line = [sys.executable, "-c", CALLS_PROBE, calls]
        outside = json.loads(subprocess.run(line, capture_output=True, check=True).stdout)
        assert [name for name, code in outside.items() if code == 1] == []


def test_clone3_is_absent_so_that_libraries_fall_back(setup: BoxSetup):
    probe = "import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.syscall(435, 0, 0), ctypes.get_errno())"
    assert boxed(setup, probe).stdout == b"-1 38\n"
    assert unboxed(probe) == "-1 22\n"
    threads = "import threading; t = threading.Thread(target=print, args=('in a thread',)); t.start(); t.join()"
    assert boxed(setup, threads).stdout == b"in a thread\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 is an ABI of x86_64")
def test_calls_of_another_abi_end_the_program(setup: BoxSetup):
    probe = "import ctypes; print(ctypes.CDLL(None).syscall(0x40000000 + 39))"
    assert unboxed(probe) != ""
    result = boxed(setup, probe)
    assert (result.stdout, result.code) == (b"", 128 + signal.SIGSYS)


def test_input_cannot_be_used_as_memory(setup: BoxSetup):
    probe = "import os\ntry: os.write(0, b'x' * 100)\nexcept OSError as error: print(type(error).__name__)"
    assert boxed(setup, probe, stdin=b"data").stdout == b"PermissionError\n"


def test_a_program_sees_no_descriptor_but_its_three(setup: BoxSetup):
    probe = """
import fcntl
def is_open(number):
    try: return fcntl.fcntl(number, fcntl.F_GETFD) >= 0
    except OSError: return False
print([number for number in range(64) if is_open(number)])
"""
    assert boxed(setup, probe).stdout == b"[0, 1, 2]\n"


def test_nothing_of_one_program_reaches_the_next(setup: BoxSetup):
    leave = """
import builtins, json, os, sys
builtins.left = json.left = 1
os.environ["LEFT"] = "1"
open("left", "w").write("1")
sys.path.append("left")
sys.modules["left"] = json
"""
    look = """
import builtins, gc, json, os, sys
print(hasattr(builtins, "left"), hasattr(json, "left"), "LEFT" in os.environ, os.path.exists("left"),
      "left" in sys.path, "left" in sys.modules, "canary-of-one" in map(str, gc.get_objects()))
"""
    assert boxed(setup, leave + look).stdout == b"True True True True True True False\n"
    assert boxed(setup, leave + "x = ['canary-of-one']", stdin=b"canary-of-one").status == "exited"
    assert boxed(setup, look).stdout == b"False False False False False False False\n"


def test_parallel_boxes_do_not_see_each_other(setup: BoxSetup):
    write = "import os, time; open('mine', 'w').write('x'); print(os.getcwd(), flush=True); time.sleep(1.5)"
    look = "import glob, time; time.sleep(.7); print(glob.glob('/tmp/**/mine', recursive=True), glob.glob('*'))"
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(boxed, setup, write), pool.submit(boxed, setup, look)
        assert second.result().stdout == b"[] []\n"
        assert first.result().status == "exited"


def test_a_program_has_the_usual_devices(setup: BoxSetup):
    probe = """
print(len(open("/dev/urandom", "rb").read(8)), open("/dev/null", "w").write("x"), open("/dev/zero", "rb").read(2))
try: open("/dev/full", "w").write("x" * 10_000)
except OSError as error: print(error.strerror)
"""
    assert unboxed(probe) == boxed(setup, probe).stdout.decode() != ""
