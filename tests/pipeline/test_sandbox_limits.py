"""Limits of a box, with a control group and where the tree is sampled. Each program exceeds them freely outside."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.sandbox import BoxSetup
from tests.boxes import TIERS, boxed, control, open_folder, setup_of

BOTH_WAYS = [*TIERS, *(f"{tier} sampled" for tier in TIERS)]


@pytest.fixture(params=TIERS)
def setup(request: pytest.FixtureRequest) -> BoxSetup:
    return setup_of(request.param)


@pytest.fixture(params=BOTH_WAYS)
def either(request: pytest.FixtureRequest) -> BoxSetup:
    found = setup_of(request.param)
    if found.cgroups is None and not request.param.endswith("sampled"):
        pytest.skip("no cgroup is writable here; the tier is tested as sampled")
    return found


def test_the_address_space_of_a_process_is_capped(setup: BoxSetup):
    probe = "print(len(bytearray(1 << 30)) >> 20)"
    assert control(probe) == "1024\n"
    assert b"MemoryError" in boxed(setup, probe).stderr


HOG = """
import os, sys, time
for _ in range(4):
    if os.fork() == 0:
        data = b"x" * (80 << 20)
        time.sleep(1.5)
        os._exit(0)
codes = [os.wait()[1] for _ in range(4)]
print(codes.count(0))
"""


def test_the_memory_of_all_processes_together_is_capped(either: BoxSetup):
    assert control(HOG) == "4\n"
    result = boxed(either, HOG, memory_mb=128, wall_s=60)
    assert result.status == "memory_limit" and result.stdout != b"4\n"


def test_memory_that_processes_share_counts_once(either: BoxSetup):
    probe = """
import os, time
data = b"x" * (120 << 20)
for _ in range(5):
    if os.fork() == 0:
        time.sleep(0.6)
        os._exit(0)
print([os.wait()[1] for _ in range(5)])
"""
    result = boxed(either, probe, memory_mb=256)
    assert (result.status, result.stdout) == ("exited", b"[0, 0, 0, 0, 0]\n")


def test_memory_files_count_as_memory(either: BoxSetup):
    probe = """
import os, time
files = [os.memfd_create("hoard") for _ in range(5)]
for file in files:
    for _ in range(60): os.write(file, bytes(1 << 20))
time.sleep(1)
print("held", sum(os.fstat(file).st_size for file in files) >> 20)
"""
    assert control(probe) == "held 300\n"
    result = boxed(either, probe, memory_mb=128, disk_mb=64)
    assert (result.status, result.stdout) == ("memory_limit", b"")


def test_the_size_of_the_folder_is_capped(setup: BoxSetup):
    probe = """
import time
written = 0
try:
    for name in range(16):
        with open(str(name), "wb") as file:
            for _ in range(1 << 6):
                written += file.write(bytes(1 << 16))
except OSError: pass
time.sleep(0.5)
print(written >> 20)
"""
    result = boxed(setup, probe, disk_mb=8)
    assert result.status == "disk_limit" or int(result.stdout) <= 8


def test_the_number_of_files_is_capped(either: BoxSetup):
    probe = """
import time
count = 0
try:
    for count in range(3000): open(str(count), "w").close()
    time.sleep(1)
except OSError: pass
print(count)
"""
    assert control(probe) == "2999\n"
    result = boxed(either, probe, files=200)
    assert result.status == "disk_limit" or int(result.stdout) < 200


def test_a_fork_bomb_is_capped(either: BoxSetup):
    probe = """
import os, time
count = 0
try:
    for _ in range(40):
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
        count += 1
    time.sleep(1)
except OSError: pass
print(count)
"""
    assert int(control(probe)) == 40
    result = boxed(either, probe, processes=16)
    assert result.status == "process_limit" or int(result.stdout) < 16


def test_a_fork_bomb_that_only_forks_leaves_the_machine_usable(setup: BoxSetup):
    result = boxed(setup, "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", wall_s=1.5, cpu_s=1)
    assert result.status in ("process_limit", "cpu_limit", "wall_limit")
    assert boxed(setup, "print(1)").stdout == b"1\n"


def test_parallel_boxes_do_not_share_one_count_of_processes(either: BoxSetup):
    probe = """
import os, time
for _ in range(10):
    if os.fork() == 0:
        time.sleep(1)
        os._exit(0)
print([os.wait()[1] for _ in range(10)].count(0))
"""
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: boxed(either, probe, processes=16), range(4)))
    assert [result.stdout for result in results] == [b"10\n"] * 4


def test_a_flood_of_output_ends_the_box(setup: BoxSetup):
    probe = "import sys\nfor _ in range(300): sys.stdout.write('x' * 10_000)"
    assert len(control(probe)) == 3_000_000
    result = boxed(setup, probe, output_kb=100)
    assert result.status == "output_limit" and len(result.stdout) == 100 << 10


def test_a_loop_ends_at_its_cpu_limit_and_a_sleeper_at_the_wall(setup: BoxSetup):
    assert boxed(setup, "while True: pass", cpu_s=1).status == "cpu_limit"
    sleeper = boxed(setup, "import time; time.sleep(60)", wall_s=0.5)
    assert sleeper.status == "wall_limit" and sleeper.cpu_s < 1


def test_a_program_that_ignores_the_cpu_signal_ends_as_well(setup: BoxSetup):
    probe = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert boxed(setup, probe, cpu_s=1).status == "cpu_limit"


@pytest.mark.parametrize("tier", ["A", "A sampled", "B sampled", "C sampled"])
def test_the_cpu_time_of_all_processes_together_is_capped(tier: str):
    probe = """
import os, time
def burn(seconds):
    while time.process_time() < seconds: pass
for _ in range(4):
    if os.fork() == 0:
        burn(0.8)
        os._exit(0)
print([os.wait()[1] for _ in range(4)].count(0))
"""
    assert control(probe) == "4\n"
    result = boxed(setup_of(tier), probe, cpu_s=1, wall_s=60)
    assert result.status == "cpu_limit" and 1.5 < result.cpu_s < 4


def test_cpu_seconds_are_told(either: BoxSetup):
    result = boxed(either, "import time\nwhile time.process_time() < 0.5: pass")
    assert result.status == "exited"
    if either.tier.name == "A" and either.cgroups is None:
        assert result.cpu_s > 0.2  # when last looked at
    else:
        assert 0.5 <= result.cpu_s < 1.5


def test_an_open_file_too_many_is_refused(setup: BoxSetup):
    probe = "import os\nfor n in range(100): os.dup(0)\nprint('free')"
    assert control(probe) == "free\n" or os.sysconf("SC_OPEN_MAX") < 128
    assert b"Too many open files" in boxed(setup, probe).stderr


def test_a_folder_that_is_closed_or_very_deep_is_removed_as_well(setup: BoxSetup, monkeypatch):
    probe = """
import os
os.mkdir("closed")
open("closed/file", "w").close()
os.mkdir("open", 0)
for _ in range(1500):
    os.mkdir("down")
    os.chdir("down")
"""
    with open_folder() as folder:
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        assert boxed(setup, probe).status == "exited"
        assert list(folder.iterdir()) == []
