"""The mistakes and mishaps of a first day: each is told in one screen with its remedy, and nothing is lost."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pipeline.engine.local import _free_port
from pipeline.errors import full_disk, says_disk_is_full
from pipeline.records import Rejected, Sample, Task, Trace, Verdict, canonical_json, content_id, prompt_id_of
from pipeline.shards import iter_table, write_table
from tests.standin import StandIn, serving

ROOT = Path(__file__).resolve().parents[1]
SOURCE = {"type": "jsonl", "name": "own", "domain": "math", "verifier": "math", "license": "MIT", "path": "own.jsonl"}
GOOD = '{"prompt": "2 + 2?", "answer": "4"}\n'


class Desk:
    """A folder in which commands run as a user runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sources").mkdir(parents=True)
        self.write("sources/own.jsonl", GOOD)
        self.config("tasks", {"sources": [SOURCE]})
        self.write("machine.yaml", "workers: 1\n")

    def write(self, name: str, text: str | bytes) -> None:
        (self.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    def config(self, name: str, values: dict) -> None:
        self.write(f"{name}.yaml", yaml.safe_dump(values))

    def command(self, stage: str, *more: str, **inputs: str) -> list[str]:
        given = [word for name, path in inputs.items() for word in ("--in", f"{name}={path}")]
        line = [sys.executable, "-m", "pipeline", stage, "--config", f"{stage}.yaml", *given, *more]
        return [*line, "--out", f"data/own/{stage}", "--report", f"reports/{stage}.json"]

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "WARMSTART_MACHINE": "machine.yaml", **more}

    def run(self, stage: str, *more: str, environment: dict | None = None, **inputs: str):
        return subprocess.run(
            self.command(stage, *more, **inputs),
            cwd=self.folder,
            env=self.environment(**(environment or {})),
            capture_output=True,
            text=True,
            timeout=240,
        )

    def fails(self, *expected: str, stage: str = "tasks", **arguments) -> str:
        """Run a stage that must fail with these words, on one screen and without a traceback."""
        if stage == "tasks":
            arguments = {"sources": "sources", **arguments}
        done = self.run(stage, **arguments)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        assert f"warmstart {stage}: " in done.stderr
        for words in expected:
            assert words in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) < 24
        return done.stderr

    def tasks(self) -> list[Task]:
        return list(iter_table(self.folder / "data/own/tasks", Task))

    def report(self, stage: str) -> dict:
        return json.loads((self.folder / f"reports/{stage}.json").read_text())


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path / "desk")


@pytest.fixture
def done(desk):
    """A desk on which `tasks` has run once; whatever fails later must leave its output and report."""
    assert desk.run("tasks", sources="sources").returncode == 0
    yield desk
    assert [json.loads(task.reference) for task in desk.tasks()] == [{"answer": "4"}]
    assert desk.report("tasks")["tasks"] == 1
    left = [path for path in (desk.folder / "data").rglob("*") if path.name.startswith(".")]
    assert not left


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sead": 1}, ["tasks.yaml: sead", "allowed here:", "seed"]),
        ({"seed": "many"}, ["tasks.yaml: seed", "found 'many'", "integer"]),
        ({"heldout_fraction": 3}, ["heldout_fraction", "less than 1", "found 3"]),
        ({"sources": [{**SOURCE, "licence": "MIT"}]}, ["sources.0.jsonl.licence", "allowed here:", "license"]),
        ({"sources": [{**SOURCE, "path": "../x"}]}, ["sources.0.jsonl.path", "must be relative"]),
        (
            {"sources": [{**SOURCE, "path": "gone.jsonl"}]},
            ["sources/gone.jsonl: source own is not there", "mend `path`"],
        ),
        ({"sources": [{**SOURCE, "verifier": "poetry"}]}, ["verifier", "'math', 'code' or 'instruction'"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_config_names_file_key_and_rule(done, change, expected):
    done.config("tasks", {"sources": [SOURCE], **change})
    done.fails(*expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sources: [\n", ["not valid YAML", "line 2"]),
        ("- a\n", ["found a list", "mapping of keys to values"]),
        ("seed: 1\nseed: 2\n", ["the key 'seed' stands twice"]),
        ("# caf\u00e9\nseed: 1\n".encode("latin-1"), ["cannot be read as UTF-8", "save it as UTF-8"]),
        ("seed: 1\n".encode("utf-16"), ["cannot be read as UTF-8", "save it as UTF-8"]),
    ],
)
def test_a_config_that_is_no_yaml_mapping_is_told_as_such(done, text, expected):
    done.write("tasks.yaml", text)
    done.fails("tasks.yaml", *expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", ["sources/own.jsonl: source own has no rows", "fill the file"]),
        (b"\n \n", ["has no rows"]),
        (GOOD.encode("utf-16"), ["is UTF-16 text", "iconv -f UTF-16 -t UTF-8 sources/own.jsonl"]),
        (b"\x1f\x8b\x08\x00abc", ["is compressed", "gzip -dc"]),
        (b"PAR1\x00\x00", ["is a Parquet file", "type: parquet"]),
        (b"{broken\n" * 3, ["no task is left", "malformed_json 3", "own.jsonl:1"]),
        (b'{"question": "2 + 2?", "answer": "4"}\n', ["no task is left", "missing_field 1", "messages"]),
    ],
    ids=["empty", "blank", "utf-16", "gzip", "parquet", "broken", "other columns"],
)
def test_a_source_without_one_usable_row_is_told_as_what_it_is(done, content, expected):
    done.write("sources/own.jsonl", content)
    done.fails(*expected)


def test_bad_lines_are_rejected_with_file_and_line_and_the_others_stay(desk):
    lines = [GOOD.encode(), b"{broken\n", '{"prompt": "caf\u00e9?", "answer": "4"}\n'.encode("latin-1")]
    desk.write("sources/own.jsonl", b"".join(lines))
    assert desk.run("tasks", sources="sources").returncode == 0
    rejected = {
        json.loads(row.evidence)["where"]: row.reason for row in iter_table(desk.folder / "data/own/tasks", Rejected)
    }
    assert rejected == {"own.jsonl:2": "malformed_json", "own.jsonl:3": "bad_utf8"}
    assert len(desk.tasks()) == 1


def test_more_bad_lines_than_allowed_fail_the_stage(done):
    done.write("sources/own.jsonl", GOOD + "{broken\n{broken\n")
    done.config("tasks", {"sources": [SOURCE], "max_rejected": 0.5})
    done.fails("2 of 3 records were rejected (malformed_json 2)", "max_rejected: 0.5")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(done):
    (done.folder / "sources/own.jsonl").chmod(0)
    done.fails("sources/own.jsonl: permission denied")


TEACHER = {"name": "t", "engine": {"type": "endpoints", "model": "m", "model_revision": "1"}}
PHASE = {"phase": "general", "phases": {"general": {"learning_rate": 1e-4, "rows_per_step": 2}}}


@pytest.mark.parametrize(
    ("stage", "config", "inputs"),
    [
        ("base", {"source": {"type": "directory", "path": "nomodel"}}, {}),
        ("generate", {"teachers": [{"name": "t"}]}, {"tasks": "t", "teacher": "nomodel"}),
        ("pack", {"phase": "g", "phases": {"g": {"row_length": 64}}}, {"traces": "traces", "tokenizer": "nomodel"}),
        ("sft", PHASE, {"packed": "nomodel", "init": "nomodel"}),
        ("evaluate", {}, {"tasks": "t", "base": "nomodel", "tuned": "nomodel"}),
    ],
)
def test_a_folder_that_is_no_model_is_told_by_every_stage_that_loads_one(done, stage, config, inputs):
    (done.folder / "nomodel").mkdir()
    done.write("nomodel/readme.txt", "nothing here")
    asked = [question(1), question(2, split="heldout")]
    write_table(done.folder / "t", Task, asked)
    said = canonical_json([*json.loads(asked[0].messages), {"role": "assistant", "content": "4"}])
    ids = ("trace", asked[0].task_id, asked[0].prompt_id)
    trace = Trace(*ids, "own", "1", "MIT", "math", "train", said, None, "t", "pass", 1.0, 1.0, 1, 1)
    write_table(done.folder / "traces", Trace, [trace])
    done.config(stage, config)
    done.write("machine.yaml", f"workers: 1\nserving: {{python: {sys.executable}}}\n")
    done.fails("nomodel", stage=stage, **inputs)


def test_a_taken_port_is_never_chosen():
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(200)]
    try:
        taken = {listener.getsockname()[1] for listener in held}
        assert not taken & {_free_port() for _ in range(500)}
    finally:
        for listener in held:
            listener.close()


def question(number: int, **changes: str) -> Task:
    messages = [{"role": "user", "content": f"What is {number}?"}]
    ids = (content_id(messages, changes), prompt_id_of(messages))
    text = canonical_json(messages)
    task = Task(*ids, "own", str(number), None, "MIT", "math", text, None, "math", '{"answer":"4"}', "train")
    fields = {name: getattr(task, name) for name in task.__slots__}
    return Task(**{**fields, **changes})


def answer(task: Task, text: str) -> Sample:
    messages = canonical_json([{"role": "assistant", "content": text}])
    return Sample(content_id(task.task_id, text), task.task_id, 0, "t", "[]", messages, "complete", 5, 9, 1)


def test_without_bubblewrap_no_program_of_a_model_runs(desk):
    tests = canonical_json({"function": "f", "tests": [{"args": [], "expected": 1}]})
    task = question(1, verifier="code", domain="code", reference=tests)
    write_table(desk.folder / "t", Task, [task])
    write_table(desk.folder / "s", Sample, [answer(task, "```python\nopen('escaped', 'w')\ndef f(): return 1\n```")])
    desk.config("verify", {})
    desk.config("machine", {"sandbox": {"tier": "A"}})  # else a box without bubblewrap takes its place
    programs = desk.folder / "bin"
    programs.mkdir()
    (programs / "prlimit").symlink_to(shutil.which("prlimit"))
    path = {"environment": {"PATH": str(programs)}, "tasks": "t", "samples": "s"}
    desk.fails("bwrap: not found", "never run without one", "apt-get install --yes bubblewrap", stage="verify", **path)
    assert not (desk.folder / "escaped").exists()
    assert desk.run("verify", tasks="t", samples="s").returncode == 0
    assert [row.verdict for row in iter_table(desk.folder / "data/own/verify", Verdict)] == ["pass"]


def test_training_on_cpus_compiles_nothing(tmp_path):
    """DeepSpeed builds its shared-memory collectives at the first start; ours are switched off before it would."""
    code = (
        "import sys; from pipeline.train.worker import use_gloo_alone; use_gloo_alone()\n"
        "from deepspeed.comm.torch import build_shm_op; print('built', build_shm_op())"
    )
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240)
    assert "built None" in done.stdout, done.stderr
    assert not list(tmp_path.rglob("*.so"))


class SmallDisk:
    """A file system of a few kB, to be filled and enlarged."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        folder.mkdir()
        line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if subprocess.run(line, capture_output=True).returncode:
            pytest.skip("a small file system cannot be mounted here (needs root and mount)")

    def enlarge(self) -> None:
        subprocess.run(["mount", "-o", "remount,size=64m", str(self.folder)], check=True)

    def fill(self, leave: int) -> Path:
        """Leave so many bytes free; returns the file to delete."""
        filler = self.folder / "filler"
        filler.write_bytes(b"\0" * (shutil.disk_usage(self.folder).free - leave))
        return filler


@pytest.fixture
def small_disk(tmp_path):
    made = []

    def make(size: str) -> SmallDisk:
        made.append(SmallDisk(tmp_path / "small", size))
        return made[-1]

    yield make
    for disk in made:
        subprocess.run(["umount", "-l", str(disk.folder)], check=True)


def test_a_full_disk_leaves_the_last_output_and_space_lets_the_same_command_finish(small_disk):
    disk = small_disk("1m")
    desk = Desk(disk.folder / "desk")
    assert desk.run("tasks", sources="sources").returncode == 0
    rows = ({"prompt": os.urandom(200).hex(), "answer": "4"} for _ in range(12000))
    big = disk.folder.parent / "big"
    big.mkdir()
    (big / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    desk.fails("the disk is full", "free some space and run the same command again", sources=str(big))
    assert len(desk.tasks()) == 1 and desk.report("tasks")["tasks"] == 1
    assert not list((desk.folder / "data").rglob(".*"))
    disk.enlarge()
    assert desk.run("tasks", sources=str(big)).returncode == 0
    assert len(desk.tasks()) == 12000
    assert not [path for path in desk.folder.rglob("*") if "tmp-" in path.name or ".old-" in path.name]


def test_a_full_disk_under_the_ledger_loses_no_finished_sample(desk, small_disk):
    disk = small_disk("400k")
    write_table(desk.folder / "t", Task, map(question, range(40)))
    desk.config("generate", {"teachers": [{**TEACHER, "sampling": {"max_tokens": 9000}}], "samples_per_task": 1})
    with serving(StandIn(text=lambda body: f"{body['seed']} " * 2000, delay_s=0.05)) as server:
        endpoint = {"endpoints": {"t": {"urls": [server.url], "max_in_flight": 2}}, "ledger": f"{disk.folder}/ledger"}
        desk.config("machine", {"workers": 1, **endpoint})
        told = desk.fails("the disk is full", "what finished is kept", stage="generate", tasks="t")
        counted = int(re.search(r"samples of t: (\d+)/40", told)[1])
        desk.fails("the disk is full", stage="generate", tasks="t")
        disk.enlarge()
        done = desk.run("generate", tasks="t")
    assert done.returncode == 0, done.stderr
    report = desk.report("generate")
    assert report["reused"] > 0 and report["requests_sent"] + report["reused"] == 40
    assert report["reused"] >= counted > 0  # a sample is on disk before it is counted
    assert len(list(iter_table(desk.folder / "data/own/generate", Sample))) == 40


def test_a_full_disk_keeps_the_verdicts_of_finished_chunks(small_disk):
    disk = small_disk("2m")
    desk = Desk(disk.folder / "desk")
    tasks = [question(n, reference=canonical_json({"answer": str(n)})) for n in range(256 * 8)]
    write_table(disk.folder.parent / "t", Task, tasks)
    answers = [answer(task, f"The answer is {n}.") for n, task in enumerate(tasks)]
    write_table(disk.folder.parent / "s", Sample, answers)
    desk.config("verify", {})
    inputs = {"tasks": str(disk.folder.parent / "t"), "samples": str(disk.folder.parent / "s")}
    filler = disk.fill(leave=200 << 10)
    desk.fails("the disk is full", stage="verify", **inputs)

    def stored() -> int:
        with contextlib.closing(sqlite3.connect(desk.folder / ".work/verdicts/verdicts.sqlite")) as db:
            return int(db.execute("SELECT COUNT(*) FROM judgements").fetchone()[0])

    filler.unlink()
    assert 0 < stored() < len(tasks)
    done = desk.run("verify", **inputs)
    assert done.returncode == 0, done.stderr
    assert stored() == len(tasks)
    assert {v.verdict for v in iter_table(desk.folder / "data/own/verify", Verdict)} == {"pass"}


def test_libraries_tell_of_a_full_disk_in_words_of_their_own(small_disk):
    import numpy
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch
    from safetensors.numpy import save_file

    folder = small_disk("64k").folder
    numbers = numpy.random.default_rng(0).random(100_000)
    for action in (
        lambda: save_file({"a": numbers}, folder / "a.safetensors"),
        lambda: torch.save({"a": torch.tensor(numbers)}, folder / "a.pt"),
        lambda: pq.write_table(pa.table({"a": numbers}), folder / "a.parquet"),
        lambda: (folder / "a.txt").write_text("x" * 100_000),
    ):
        with pytest.raises(Exception) as caught:
            action()
        assert full_disk(caught.value) is not None, caught.value
        for path in folder.iterdir():
            path.unlink()
    assert full_disk(ValueError("no")) is None and not says_disk_is_full("out of memory")


HOLDER = """
import sys
from pathlib import Path
from pipeline.config import StageConfig
from pipeline.work import open_work
with open_work("tasks", StageConfig(), {}, Path("data/own/tasks")):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_of_a_stage_names_the_first_and_leaves_it_alone(done):
    command = [sys.executable, "-c", HOLDER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=done.folder, env=done.environment(), **pipes) as holder:
        assert holder.stdout.readline() == "ready\n"
        done.fails(f"is being run by process {holder.pid} on {socket.gethostname()}", "one run at a time")
        assert holder.poll() is None
        holder.stdin.close()
    assert done.run("tasks", sources="sources").returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_a_stage_in_one_line_and_the_next_run_goes_on(desk, number, code):
    write_table(desk.folder / "t", Task, map(question, range(12)))
    desk.config("generate", {"teachers": [TEACHER], "samples_per_task": 1})
    with serving(StandIn(delay_s=0.1)) as server:
        desk.config("machine", {"endpoints": {"t": {"urls": [server.url], "max_in_flight": 1}}})
        run = subprocess.Popen(
            desk.command("generate", tasks="t"),
            cwd=desk.folder,
            env=desk.environment(),
            stderr=subprocess.PIPE,
            text=True,
            # Under nohup, or as a background job, the tests themselves would hand on an ignored signal.
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
        )
        deadline = time.monotonic() + 120
        while server.answered < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        run.send_signal(number)
        _, told = run.communicate(timeout=60)
        assert run.returncode == code, told
        assert told.splitlines()[-1] == (
            "warmstart generate: stopped; what finished is kept, run the same command to go on"
        )
        assert "Traceback" not in told
        assert desk.run("generate", tasks="t").returncode == 0
    report = desk.report("generate")
    assert report["reused"] >= 1 and report["requests_sent"] + report["reused"] == 12


def test_an_ignored_hangup_stays_ignored(desk):
    write_table(desk.folder / "t", Task, map(question, range(12)))
    desk.config("generate", {"teachers": [TEACHER], "samples_per_task": 1})
    with serving(StandIn(delay_s=0.1)) as server:
        desk.config("machine", {"endpoints": {"t": {"urls": [server.url], "max_in_flight": 1}}})
        run = subprocess.Popen(
            desk.command("generate", tasks="t"),
            cwd=desk.folder,
            env=desk.environment(),
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )
        while server.answered < 3 and run.poll() is None:
            time.sleep(0.02)
        run.send_signal(signal.SIGHUP)
        assert run.wait(timeout=60) == 0
    assert desk.report("generate")["requests_sent"] == 12


def test_dvc_outside_a_git_repository_says_so_and_init_mends_it(tmp_path):
    for name in ("dvc.yaml", "recipe.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "configs", tmp_path / "configs", symlinks=True)
    (tmp_path / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc/config", tmp_path / ".dvc/config")
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}

    def dvc():
        line = [sys.executable, "-m", "dvc", "stage", "list"]
        return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert "is not a git repository" in dvc().stderr
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    done = dvc()
    assert done.returncode == 0 and "evaluate" in done.stdout, done.stderr


@pytest.fixture
def setup(tmp_path):
    """The set-up script and the Makefile beside an environment that was left half-made: `uv`, no `ready`."""
    for name in ("Makefile", "scripts", "requirements", "pyproject.toml"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    programs = tmp_path / ".venv-vllm/bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "uv").write_text(
        '#!/bin/bash\n[ "$1" = --version ] && exit 0\necho "$@" >>uv.log\n'
        '[ -e hang ] && [ "$(wc -l <uv.log)" = 2 ] && { touch hanging; exec sleep 600; }\nexit 0\n'
    )
    (programs / "uv").chmod(0o755)
    return tmp_path


def test_a_set_up_killed_in_the_middle_counts_as_none_and_is_repeated(setup):
    (setup / ".venv-vllm/ready").touch()
    (setup / "hang").touch()
    command = ["bash", "scripts/setup.sh", "serving", "cpu"]
    run = subprocess.Popen(command, cwd=setup, start_new_session=True, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (setup / "hanging").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert not (setup / ".venv-vllm/ready").exists()
    (setup / "hang").unlink()
    (setup / "uv.log").unlink()
    subprocess.run(command, cwd=setup, check=True, capture_output=True)
    assert (setup / ".venv-vllm/ready").exists()
    assert len((setup / "uv.log").read_text().splitlines()) == 2


def test_make_sets_up_again_what_has_no_ready_or_an_older_one(setup):
    def planned() -> str:
        return subprocess.run(["make", "-n", "setup"], cwd=setup, check=True, capture_output=True, text=True).stdout

    assert "setup.sh pipeline cpu" in planned() and "setup.sh serving cpu" in planned()
    for name in (".venv", ".venv-vllm"):
        (setup / name).mkdir(exist_ok=True)
        (setup / name / "ready").touch()
    assert "setup.sh pipeline" not in planned() and "setup.sh serving" not in planned()
    later = time.time() + 60
    os.utime(setup / "requirements/serving.txt", (later, later))
    assert "setup.sh serving cpu" in planned() and "setup.sh pipeline" not in planned()
