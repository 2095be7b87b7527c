"""One writer at a time; progress belongs to one config, input and code."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import StageConfig
from pipeline.errors import UserError
from pipeline.work import open_work, progress_folder
from pipeline.work.folder import digest_of

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys
from pathlib import Path
from pipeline.config import StageConfig
from pipeline.work import open_work
with open_work("tasks", StageConfig(), {}, Path("data/demo/tasks")):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def holder():
    """Another process that holds the lock of `tasks`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def work(out="data/demo/tasks", **config):
    return open_work("tasks", StageConfig(**config), {}, Path(out))


def test_a_second_run_is_refused_and_told_who_runs(holder):
    with pytest.raises(UserError, match=rf"process {holder.pid} on .* since .*one run at a time"):
        with work():
            pass


def test_the_lock_is_free_when_its_holder_ends_or_is_killed(holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with work() as found:
        assert found.output.is_dir()
    with work():
        pass


def test_phases_and_recipes_do_not_wait_for_each_other(holder):
    for out in ("data/demo/tasks/general", "data/smoke/tasks"):
        with work(out):
            pass


def test_output_starts_empty_and_progress_is_kept():
    with work() as first:
        (first.output / "half").touch()
        (progress_folder(first.output) / "done").touch()
    with work() as second:
        assert second.path == first.path
        assert list(second.output.iterdir()) == []
        assert (progress_folder(second.output) / "done").exists()
    with work(seed=1) as third:
        assert third.path != first.path
        assert list(progress_folder(third.output).iterdir()) == []


def test_digest_changes_with_config_and_input_but_not_with_times(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_text("one")

    def digest(seed=0):
        return digest_of("tasks", StageConfig(seed=seed), {"sources": data}, True)

    first = digest()
    assert first != digest(seed=1)
    os.utime(data / "a", (1, 1))
    assert digest() == first
    (data / "a").write_text("two")
    changed = digest()
    assert changed != first
    (data / "a").rename(data / "b")
    assert digest() not in (first, changed)


def test_digest_changes_with_the_code_that_a_stage_runs_and_no_other(tmp_path):
    for name in ("pipeline", "stages"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))

    def digests(stages="filter tasks"):
        code = "import sys; from pipeline.work.folder import code_digest; print(*map(code_digest, sys.argv[1:]))"
        argv = [sys.executable, "-c", code, *stages.split()]
        return subprocess.check_output(argv, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": "."}).split()

    before = digests()
    with (tmp_path / "stages/tasks.py").open("a") as file:
        file.write("# a change\n")
    one = digests()
    assert (one[0] == before[0], one[1] == before[1]) == (True, False)
    with (tmp_path / "pipeline/shards/sift.py").open("a") as file:
        file.write("# a change\n")
    both = digests()
    assert (both[0] == before[0], both[1] == one[1]) == (False, False)
