"""Every probe runs twice: in the box, where it must fail, and outside as a positive control, where it must succeed."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.sandbox import BoxLimits, BoxResult, box_setup, python_argv, run_boxed


def boxed(source: str, stdin: bytes = b"", **limits: float) -> BoxResult:
    return run_boxed(python_argv(source), stdin, BoxLimits.model_validate(limits))


def unboxed(source: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    return done.stdout


def processes_saying(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_program_reads_its_input_and_ends_with_its_own_code():
    result = boxed("import sys; print(input()); print('no', file=sys.stderr); sys.exit(3)", b"hello")
    assert (result.status, result.code, result.stdout, result.stderr) == ("exited", 3, b"hello\n", b"no\n")


def test_the_network_is_out_of_reach():
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe = f"import socket; socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5); print('in')"
        assert unboxed(probe) == "in\n"
        result = boxed(probe)
    assert result.stdout == b"" and b"Error" in result.stderr


def test_an_abstract_unix_socket_of_the_host_is_out_of_reach():
    name = f"\0warmstart-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        probe = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r}); print('in')"
        assert unboxed(probe) == "in\n"
        assert boxed(probe).stdout == b""


@pytest.mark.parametrize("own", [True, False], ids=["a file of ours", "a file of the system"])
def test_host_files_are_invisible(tmp_path: Path, own: bool):
    secret = tmp_path / "secret"
    secret.write_text("x")
    probe = f"print(len(open({(str(secret) if own else '/etc/passwd')!r}).read()) > 0)"
    assert unboxed(probe) == "True\n"
    assert b"FileNotFoundError" in boxed(probe).stderr


def test_no_secret_of_our_environment_gets_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "canary-4711")
    probe = """
import os
from pathlib import Path
places = [str(dict(os.environ)).encode()]
for path in ("/proc/1/environ", "/proc/self/environ"):
    try: places.append(Path(path).read_bytes())
    except OSError: pass
print(any(b"canary-4711" in place for place in places))
"""
    assert unboxed(probe) == "True\n"
    assert boxed(probe).stdout == b"False\n"


@pytest.mark.parametrize("folder", ["/", "/dev", "/dev/shm", "/usr/lib", "/var", "/etc"])
def test_nothing_outside_tmp_can_be_written(folder: str, tmp_path: Path):
    probe = "import sys\nopen(sys.argv[1] + '/x', 'w').write('x'); print('written')"
    outside = [sys.executable, "-c", probe, str(tmp_path)]
    assert subprocess.run(outside, capture_output=True, check=False).stdout == b"written\n"
    assert run_boxed([*python_argv(probe), folder], b"", BoxLimits()).stdout == b""
    assert run_boxed([*python_argv(probe), "/tmp"], b"", BoxLimits()).stdout == b"written\n"


def test_the_disk_of_the_box_is_capped():
    probe = """
import sys
written = 0
try:
    for name in range(8):
        with open(f"{sys.argv[1]}/{name}", "wb") as file:
            for _ in range(1 << 6):
                written += file.write(bytes(1 << 16))
except OSError: pass
print(written >> 20)
"""
    result = run_boxed([*python_argv(probe), "/tmp"], b"", BoxLimits(disk_mb=8))
    assert int(result.stdout) <= 8


def test_a_fork_bomb_is_capped():
    probe = """
import os, time
count = 0
try:
    for _ in range(40):
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        count += 1
except OSError: pass
print(count)
"""
    assert int(unboxed(probe)) == 40
    assert int(boxed(probe, processes=16).stdout) < 16


def test_memory_is_capped():
    probe = "print(len(bytearray(1 << 30)) >> 20)"
    assert unboxed(probe) == "1024\n"
    assert b"MemoryError" in boxed(probe).stderr


def test_a_flood_of_output_ends_the_box():
    probe = "import sys\nfor _ in range(300): sys.stdout.write('x' * 10_000)"
    assert len(unboxed(probe)) == 3_000_000
    result = boxed(probe, output_kb=100)
    assert result.status == "output_limit" and len(result.stdout) == 100 << 10


def test_a_daemon_does_not_outlive_its_box():
    mark = f"warmstart-daemon-{os.getpid()}"
    probe = f"""
import subprocess, sys
sleeper = "import time; print('up', flush=True); time.sleep(60)"
line = [sys.executable, "-c", sleeper, {mark!r}]
pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
daemon = subprocess.Popen(line, start_new_session=True, **pipes)
print(daemon.stdout.read(3).decode().strip())
"""
    assert unboxed(probe) == "up\n"
    [daemon] = processes_saying(mark)
    os.kill(daemon, signal.SIGKILL)
    assert boxed(probe).stdout == b"up\n"
    assert set(processes_saying(mark)) <= {daemon}


def test_a_loop_ends_at_its_cpu_limit_and_a_sleeper_at_the_wall():
    assert boxed("while True: pass", cpu_s=1).status == "cpu_limit"
    sleeper = boxed("import time; time.sleep(60)", wall_s=0.5)
    assert sleeper.status == "wall_limit" and sleeper.cpu_s < 1


def test_a_program_that_ignores_the_cpu_signal_ends_as_well():
    probe = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert boxed(probe, cpu_s=1).status == "cpu_limit"


def test_a_program_has_no_rights_and_cannot_make_a_user_namespace():
    probe = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(os.getuid() != 0, libc.prctl(39, 0, 0, 0, 0), libc.unshare(0x10000000))
"""
    if box_setup().userns_disabled:
        assert boxed(probe).stdout == b"True 1 -1\n"


def test_input_cannot_be_used_as_memory():
    probe = "import os\ntry: os.write(0, b'x' * 100)\nexcept OSError as error: print(type(error).__name__)"
    assert boxed(probe, b"data").stdout == b"PermissionError\n"


def test_a_missing_bubblewrap_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    box_setup.cache_clear()
    with pytest.raises(UserError, match="sudo apt-get install --yes bubblewrap"):
        box_setup()


def test_a_bubblewrap_that_does_not_work_is_told_with_its_message(monkeypatch: pytest.MonkeyPatch, open_folder: Path):
    broken = open_folder / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    box_setup.cache_clear()
    with pytest.raises(UserError, match=r"namespaces may be switched off(.|\n)*exit"):
        box_setup()


def test_a_bubblewrap_that_isolates_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, open_folder: Path):
    fake = open_folder / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\nshift\nexec "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    box_setup.cache_clear()
    with pytest.raises(UserError, match="does not hold"):
        box_setup()


@pytest.fixture
def open_folder():
    """A folder that an unprivileged user can reach; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture(autouse=True)
def _fresh_setup_afterwards():
    yield
    box_setup.cache_clear()
