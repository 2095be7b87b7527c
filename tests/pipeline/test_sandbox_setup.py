"""Which box is chosen, what is said of it, and that none is ever used in silence that does not hold."""

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.sandbox import BoxLimits, box_setup, python_argv, run_boxed
from pipeline.sandbox.bubblewrap import Bubblewrap
from pipeline.sandbox.cgroup import find_cgroups
from pipeline.sandbox.setup import choose, probe, setups
from pipeline.sandbox.syscalls import seccomp_filter
from tests.boxes import boxed, open_folder, setup_of


@pytest.fixture(autouse=True)
def _fresh_setup():
    box_setup.cache_clear()
    yield
    box_setup.cache_clear()


@pytest.fixture
def reachable():
    """A folder that an unprivileged user can reach; pytest's own are private."""
    with open_folder() as folder:
        yield folder


def first_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Put a program named bwrap in front of the real one."""
    file = folder / "bwrap"
    file.write_text(f"#!/bin/bash\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


ROOT = Path(__file__).resolve().parents[2]
NO_ISOLATION = """
while [ "$1" != "--" ]; do
  case $1 in --json-status-fd) status=$2;; --setenv) export "$2=$3";; esac
  shift
done
shift
echo "{ \\"child-pid\\": $$ }" >&"$status"
"$@"
echo "{ \\"exit-code\\": $? }" >&"$status"
"""


def machine_file(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    file = folder / "machine.yaml"
    file.write_text(text)
    monkeypatch.setenv("WARMSTART_MACHINE", str(file))


def test_the_strongest_tier_is_taken_and_described_the_same_every_time():
    setup = box_setup()
    if shutil.which("bwrap") and not setup.passed_over:
        assert setup.tier.name == "A"
    described = setup.describe()
    assert described == {
        "tier": setup.tier.name,
        "mechanisms": sorted(setup.tier.mechanisms),
        "lacks": sorted(setup.tier.lacks),
    }
    box_setup.cache_clear()
    assert box_setup().describe() == described
    assert run_boxed(python_argv("print(1)"), b"", BoxLimits()).tier == setup.tier.name


def test_without_bubblewrap_the_fork_server_is_taken_and_why_is_kept(monkeypatch: pytest.MonkeyPatch):
    setup_of("B")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    found = choose(["A", "B", "C"])
    assert found.tier.name == "B" and "sudo apt-get install --yes bubblewrap" in found.passed_over[0]


def test_a_tier_that_the_machine_file_names_is_used_or_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    setup_of("C")
    machine_file(monkeypatch, tmp_path, "sandbox: {tier: C}")
    assert box_setup().tier.name == "C"
    assert run_boxed(python_argv("print(1)"), b"", BoxLimits()).tier == "C"
    box_setup.cache_clear()
    machine_file(monkeypatch, tmp_path, "sandbox: {tier: A}")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(UserError, match=r"never run without one(.|\n)*bwrap: not found"):
        box_setup()


def test_a_bubblewrap_that_does_not_work_is_told_with_its_message(monkeypatch: pytest.MonkeyPatch, reachable: Path):
    first_on_path(monkeypatch, reachable, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    with pytest.raises(UserError, match=r"namespaces may be switched off(.|\n)*No permissions to create"):
        choose(["A"])


def test_a_bubblewrap_that_isolates_nothing_is_not_used(monkeypatch: pytest.MonkeyPatch, reachable: Path):
    setup_of("B")
    first_on_path(monkeypatch, reachable, NO_ISOLATION)
    with pytest.raises(UserError, match=r"does not hold .*a host file.*the network.*writing outside"):
        choose(["A"])
    found = choose(["A", "B"])
    assert found.tier.name == "B" and "does not hold" in found.passed_over[0]


@pytest.mark.parametrize("wall", ["--unshare-net", "--clearenv", "--disable-userns"])
def test_a_box_without_one_of_its_walls_still_holds_by_another(monkeypatch: pytest.MonkeyPatch, wall: str):
    """Seccomp stands behind the network and user namespaces, the closed environment of bubblewrap behind --clearenv."""
    setup_of("A")
    real = Bubblewrap.command
    monkeypatch.setattr(Bubblewrap, "command", lambda *a: [word for word in real(*a) if word != wall])
    assert probe(next(setups("A", None))) is None


def test_a_box_that_shows_a_host_folder_is_not_used(monkeypatch: pytest.MonkeyPatch):
    setup_of("A")
    real = Bubblewrap.command

    def leaky(*arguments) -> list[str]:
        line = real(*arguments)
        at = line.index("--remount-ro")
        return [*line[:at], "--bind", tempfile.gettempdir(), tempfile.gettempdir(), *line[at:]]

    monkeypatch.setattr(Bubblewrap, "command", leaky)
    problem = probe(next(setups("A", None)))
    assert problem is not None and "a host file" in problem and "writing outside" in problem


@pytest.mark.parametrize("by", ["the environment", "the machine file"])
def test_running_without_a_box_takes_a_word_of_its_own_and_marks_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
):
    if by == "the environment":
        monkeypatch.setenv("WARMSTART_UNSAFE_SANDBOX", "1")
    else:
        machine_file(monkeypatch, tmp_path, "sandbox: {unsafe: true}")
    assert box_setup().tier.name == "unsafe"
    assert "WARNING" in capsys.readouterr().err
    result = run_boxed(python_argv("print(open('/etc/passwd').read() != '')"), b"", BoxLimits())
    assert (result.stdout, result.tier) == (b"True\n", "unsafe")
    assert box_setup().describe()["lacks"]


def test_a_program_without_a_box_cannot_end_all_that_the_user_runs(monkeypatch: pytest.MonkeyPatch):
    setup = next(setups("unsafe", None))
    probe = "import os\ntry: os.kill(-1, 9)\nexcept ProcessLookupError: print('refused')"
    assert boxed(setup, probe).stdout == b"refused\n"


@pytest.mark.parametrize("value", ["0", "true", ""])
def test_only_the_exact_word_switches_the_sandbox_off(monkeypatch: pytest.MonkeyPatch, value: str):
    monkeypatch.setenv("WARMSTART_UNSAFE_SANDBOX", value)
    assert box_setup().tier.name != "unsafe"


def test_a_control_group_is_removed_with_its_box():
    cgroups = find_cgroups()
    if cgroups is None:
        pytest.skip("no cgroup is writable here")
    assert boxed(setup_of("A"), "print(1)").stdout == b"1\n"
    assert [*cgroups.folders["memory"].glob("box-*")] == []


def test_the_filter_is_assembled_for_known_architectures_only():
    for machine in ("x86_64", "aarch64"):
        program = seccomp_filter(machine=machine)
        assert len(program) % 8 == 0 and len(program) // 8 < 4096  # the kernel's limit
        assert len(seccomp_filter(owns_files=True, machine=machine)) > len(program)
    with pytest.raises(UserError, match="riscv64"):
        seccomp_filter(machine="riscv64")


NO_NAMESPACES = """
import ctypes, platform, struct
unshare, clone, clone3 = (272, 56, 435) if platform.machine() == "x86_64" else (97, 220, 435)
steps = [
    *[(0x20, 0, 0, 0), (0x15, 0, 1, unshare), (6, 0, 0, 0x50001), (0x15, 0, 1, clone3), (6, 0, 0, 0x50026)],
    *[(0x15, 0, 3, clone), (0x20, 0, 0, 16), (0x45, 0, 1, 0x7E020000), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)],
]
program = b"".join(struct.pack("=HBBI", *step) for step in steps)
libc = ctypes.CDLL(None)
holder = ctypes.create_string_buffer(program)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("@HP", len(steps), ctypes.addressof(holder)), 0, 0) == 0
from pipeline.sandbox import BoxLimits, box_setup, python_argv, run_boxed
result = run_boxed(python_argv("print(6 * 7)"), b"", BoxLimits())
print(box_setup().tier.name, len(box_setup().passed_over) >= 2, result.stdout)
"""
"""Refuses new namespaces as the usual profile of a container does, then chooses a box."""


def test_where_namespaces_are_refused_landlock_holds_the_box():
    setup_of("C")
    done = subprocess.run([sys.executable, "-c", NO_NAMESPACES], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "C True b'42\\n'\n", done.stderr
    assert "tier C, the weakest; not to be had" in done.stderr


def test_a_machine_that_cannot_start_a_box_fails_it(monkeypatch: pytest.MonkeyPatch):
    setup = setup_of("A")
    gone = dataclasses.replace(setup, starter=dataclasses.replace(setup.starter, bwrap="/nowhere/bwrap"))
    result = boxed(gone, "print(1)")
    assert result.status == "failed" and b"No such file" in result.stderr
