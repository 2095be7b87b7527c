"""peek, why, clean, new and doctor: what they print, what they refuse, and that they write nowhere else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from pipeline.cli.main import main
from pipeline.config import load_config
from pipeline.records import Rejected, Sample, Task, Trace, Verdict, canonical_json, content_id
from pipeline.shards import write_table
from stages.tasks import Config
from tests.project import Project

ROOT = Path(__file__).resolve().parents[2]
ASKED = [{"role": "user", "content": "2 + 2?"}]


def task(number: int) -> Task:
    messages, reference = canonical_json(ASKED), canonical_json({"answer": "4"})
    ids = (content_id("task", number), content_id("prompt", number))
    return Task(*ids, "sums", str(number), None, "MIT", "math", messages, None, "math", reference, "train")


def sample(of: Task, index: int, said: str) -> Sample:
    messages = canonical_json([{"role": "assistant", "content": said}])
    return Sample(content_id(of.task_id, index), of.task_id, index, "t", "[]", messages, "complete", 5, 9, 1)


def trace_of(of: Task, made: Sample) -> Trace:
    messages = canonical_json(json.loads(of.messages) + json.loads(made.messages))
    ids = (content_id("trace", made.sample_id), of.task_id, of.prompt_id)
    return Trace(*ids, "sums", "1", "MIT", "math", "train", messages, None, "t", "pass", 1.0, 0.5, 2, 9)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Two tasks; the first is solved once of twice, and its trace is dropped by a later stage as a duplicate."""
    monkeypatch.chdir(tmp_path)
    one, two = task(1), task(2)
    right, wrong = sample(one, 0, "It is 4."), sample(one, 1, "It is 5.")
    trace = trace_of(one, right)
    write_table(Path("data/own/tasks"), Task, [one, two])
    write_table(Path("data/own/tasks"), Rejected, [Rejected("feed" * 8, "tasks", "malformed_json", '{"where":"a:7"}')])
    write_table(Path("data/own/generate"), Sample, [right, wrong])
    for made, verdict in ((right, "pass"), (wrong, "fail")):
        verdicts = [Verdict(made.sample_id, "math", "1", verdict, float(verdict == "pass"), "equal", '{"answer":"4"}')]
        write_table(Path(f"data/own/{'verify' if made is right else 'verify_more'}"), Verdict, verdicts)
    write_table(Path("data/own/filter"), Trace, [trace])
    write_table(Path("data/own/filter"), Rejected, [Rejected(wrong.sample_id, "filter", "fail", '{"index":1}')])
    write_table(Path("data/own/zz_later"), Trace, [])
    write_table(Path("data/own/zz_later"), Rejected, [Rejected(trace.trace_id, "zz_later", "duplicate", '{"of":"x"}')])
    return one, two, right, wrong, trace


def said_of(capsys, *argv: str) -> str:
    assert main(argv) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def problem_of(capsys, *argv: str) -> str:
    assert main(argv) == 1
    found = capsys.readouterr()
    assert "Traceback" not in found.err
    return found.err


def test_why_follows_a_sample_to_its_task_verdict_and_trace(data, capsys):
    one, _, right, wrong, trace = data
    said = said_of(capsys, "why", right.sample_id[:9])
    for expected in (
        f"sample {right.sample_id}",
        f"tasks: task {one.task_id}, train",
        "asked: 2 + 2?",
        "said: It is 4.",
        "verify: pass (equal, score 1) by math version 1",
        f"filter: kept as trace {trace.trace_id}",
        "zz_later: rejected",
        "last seen in zz_later",
    ):
        assert expected in said
    assert wrong.sample_id not in said


def test_why_follows_a_trace_back_and_a_task_forward(data, capsys):
    one, two, right, wrong, trace = data
    said = said_of(capsys, "why", trace.trace_id)
    assert right.sample_id in said and wrong.sample_id not in said and "duplicate" in said
    said = said_of(capsys, "why", one.task_id)
    assert right.sample_id in said and f"filter: rejected {wrong.sample_id}, fail" in said
    said = said_of(capsys, "why", two.task_id)
    assert "last seen in tasks" in said and "generate" not in said
    said = said_of(capsys, "why", "feedfeed")
    assert "rejected row feed" in said and "malformed_json" in said and "a:7" in said


def test_why_says_where_a_trace_was_silently_not_used(data, capsys):
    *_, trace = data
    write_table(Path("data/own/zz_later"), Rejected, [])
    assert "zz_later: neither kept nor rejected" in said_of(capsys, "why", trace.trace_id)


def test_why_refuses_an_unknown_and_an_ambiguous_beginning(data, capsys):
    assert "no task, sample, trace or rejected row below data" in problem_of(capsys, "why", "nothere")
    rows = [Rejected(f"abcd{n}", "tasks", "duplicate", "{}") for n in range(3)]
    write_table(Path("data/own/tasks"), Rejected, rows)
    assert "abcd: 3 ids begin so" in problem_of(capsys, "why", "abcd")
    assert "rejected row abcd2" in said_of(capsys, "why", "abcd2")
    assert "ID is empty" in problem_of(capsys, "why", "")
    assert "is no folder" in problem_of(capsys, "why", "ab", "--data", "elsewhere")


def test_peek_shows_rows_of_tables_and_files(data, capsys, tmp_path):
    one, *_ = data
    said = said_of(capsys, "peek", "data/own/tasks", "-n", "1")
    assert "table tasks, 2 rows" in said and "table rejected, 1 row\n" in said
    assert "messages.user: 2 + 2?" in said and said.count("task_id: ") == 1 and one.task_id in said
    assert "sample_id" in said_of(capsys, "peek", str(next(Path("data/own/generate").rglob("*.parquet"))))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Hi"}\n{broken\n')
    said = said_of(capsys, "peek", "rows.jsonl")
    assert "prompt: Hi" in said and "line 2 is not JSON" in said
    (tmp_path / "r.json").write_text('{"tasks": 3}')
    assert "tasks: 3" in said_of(capsys, "peek", "r.json")


def test_peek_cuts_long_text_and_escapes_what_could_steer_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    row = {"prompt": "\x1b[2J\x1b]0;gone\x07 \u202eabc\u2028 caf\u00e9" + "x" * 900, "k\x1by": 1}
    Path("rows.jsonl").write_text(json.dumps(row))
    said = said_of(capsys, "peek", "rows.jsonl", "--width", "50")
    assert not set(said) & {"\x1b", "\x07", "\u202e", "\u2028"}
    assert "\\x1b[2J" in said and "caf\u00e9" in said and "more characters)" in said and "x" * 60 not in said


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("peek", "nowhere"), "nowhere: does not exist"),
        (("peek", "empty"), "is an empty folder"),
        (("peek", "binary.bin"), "binary data"),
        (("peek", "bad.parquet"), "cannot be read as Parquet"),
        (("peek", "bad.json"), "not valid JSON"),
        (("peek", "empty", "-n", "0"), "1 or more"),
        (("peek",), "PATH"),
        (("clean", "--everything"), "--everything"),
        (("why",), "ID"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_answered_without_a_traceback(tmp_path, monkeypatch, capsys, argv, expected):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    for name in ("binary.bin", "bad.parquet", "bad.json"):
        Path(name).write_bytes(b"\0\1{")
    assert expected in problem_of(capsys, *argv)


def test_peek_into_a_closed_pipe_is_no_error(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Hi"}\n' * 50_000)
    command = f"{sys.executable} -m pipeline peek {tmp_path}/rows.jsonl -n 50000 | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Leftovers of a killed run beside things that must stay."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WARMSTART_MACHINE", raising=False)
    for name in (
        ".work/demo/tasks/0123456789abcdef/progress/a.json",
        ".work/demo/sft/general/fedcba9876543210/output/b",
        "data/demo/.tasks.old-0123abcd/tasks/x",
    ):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_bytes(b"x" * 1000)
    kept = [".work/ledger/segments/000001.jsonl", ".work/fingerprints.json", ".work/ledger/0123456789abcdef/output/x"]
    kept += ["data/demo/tasks/tasks/manifest.json", ".work/demo/tasks/notes/output/x"]
    for name in kept:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"y")
    return [Path(name) for name in kept]


def test_clean_lists_first_and_removes_with_yes_alone(work, capsys):
    said = said_of(capsys, "clean")
    assert "1.0 kB" in said and "0123456789abcdef" in said and "fedcba9876543210" in said and ".tasks.old" in said
    assert "3.0 kB in 3 places" in said and "ledger" not in said
    assert Path(".work/demo/tasks/0123456789abcdef/progress/a.json").exists()
    assert "removed 3.0 kB; the ledger stays" in said_of(capsys, "clean", "--yes")
    assert not Path(".work/demo/tasks/0123456789abcdef").exists()
    assert not Path(".work/demo/sft/general/fedcba9876543210").exists()
    assert not Path("data/demo/.tasks.old-0123abcd").exists()
    assert all(path.exists() for path in work)
    assert "nothing to clean" in said_of(capsys, "clean")
    assert "ledger of finished samples" in said_of(capsys, "clean", "--ledger", "--yes")
    assert not Path(".work/ledger/segments").exists()


def test_clean_removes_the_verdicts_and_a_torn_compaction_only_where_they_are_meant(work, capsys):
    for path in (".work/verdicts/verdicts.sqlite", ".work/ledger/compacting/000002.jsonl"):
        Path(path).parent.mkdir(parents=True)
        Path(path).write_text("x")
    said = said_of(capsys, "clean", "--yes")
    assert "compacting" in said and "verdicts" not in said.replace("--verdicts", "")
    assert not Path(".work/ledger/compacting").exists() and Path(".work/verdicts/verdicts.sqlite").exists()
    assert "warmstart clean --yes --verdicts" in said_of(capsys, "clean", "--verdicts")
    assert "verdicts known so far" in said_of(capsys, "clean", "--verdicts", "--yes")
    assert not Path(".work/verdicts").exists() and Path(".work/ledger/segments").exists()


def test_clean_removes_nothing_while_a_stage_runs(work, capsys):
    code = (
        "import sys; from filelock import FileLock\n"
        "with FileLock('.work/demo/tasks/lock'): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    Path(".work/demo/tasks/lock.json").write_text('{"pid": 77, "host": "node7", "since": "noon"}')
    try:
        problem = problem_of(capsys, "clean", "--yes", "--ledger")
    finally:
        holder.communicate()
    assert "a stage is running here (process 77 on node7 since noon); nothing was removed" in problem
    assert Path(".work/demo/tasks/0123456789abcdef/progress/a.json").exists()
    assert all(path.exists() for path in work)
    assert FileLock(".work/demo/tasks/lock").acquire(timeout=0)


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """A folder with the recipes alone."""
    monkeypatch.chdir(tmp_path)
    for name in ("dvc.yaml", "recipe.yaml"):
        shutil.copy(ROOT / name, name)
    shutil.copytree(ROOT / "configs", "configs", symlinks=True)
    shutil.copytree(ROOT / "sources", "sources")
    shutil.copytree(ROOT / "data_cards", "data_cards", symlinks=True)


def test_new_makes_a_recipe_whose_tasks_stage_runs(tmp_path, monkeypatch, capsys):
    copy = Project(tmp_path)
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"What is {n} + {n}?", "final_answer": 2 * n} for n in range(20)]
    (copy.folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = said_of(capsys, "new", "sums", "--from", "demo", "--tasks", "mine.jsonl", "--license", "CC0-1.0")
    assert "20 rows; columns: prompt = `question`, answer = `final_answer`; judged by the verifier math" in said
    assert "dvc repro configs/sums/dvc.yaml:tasks" in said
    recipe = yaml.safe_load(Path("configs/sums/recipe.yaml").read_text())
    assert (recipe["recipe"], recipe["root"], recipe["sources"]) == ("sums", "../..", "sums")
    assert recipe["phases"] == yaml.safe_load(Path("recipe.yaml").read_text())["phases"]
    assert os.readlink("configs/sums/dvc.yaml") == "../../dvc.yaml"
    assert "data/demo" not in "".join(path.read_text() for path in Path("configs/sums").glob("[a-ce-z]*.yaml"))
    assert "domains: [math]" in Path("configs/sums/mix.yaml").read_text()
    card = Path("data_cards/sums.md").read_text()
    assert "pretty_name: sums" in card and "license: cc0-1.0" in card and "{NAME}" not in card
    copy.dvc("repro", "configs/sums/dvc.yaml:tasks", "configs/sums/dvc.yaml:collect")
    assert copy.report("collect", "sums")["traces"] == 0
    report = copy.report("tasks", "sums")
    assert (report["tasks"], report["tasks_math"], report["rejected"]) == (20, 20, 0)


def test_new_without_tasks_keeps_the_sources_of_its_model(recipes, capsys):
    said_of(capsys, "new", "twin", "--from", "smoke")
    assert yaml.safe_load(Path("configs/twin/recipe.yaml").read_text())["sources"] == "demo"
    assert Path("configs/twin/tasks.yaml").read_text() == Path("configs/smoke/tasks.yaml").read_text()
    assert not Path("sources/twin").exists()


@pytest.mark.parametrize(
    ("row", "verifier", "columns"),
    [
        ({"messages": [{"role": "user", "content": "Hi"}], "answer": "x"}, "math", {}),
        ({"prompt": "f", "function": "f", "tests": [{"args": [], "expected": 1}]}, "code", {}),
        ({"instruction": "Short.", "constraints": [{"type": "no_commas"}]}, "instruction", {"prompt": "instruction"}),
        ({"id": 3, "problem": "2?", "solution": "2", "level": 1}, "math", {"prompt": "problem", "answer": "solution"}),
    ],
)
def test_new_detects_columns(recipes, capsys, row, verifier, columns):
    Path("mine.jsonl").write_text(json.dumps(row))
    said_of(capsys, "new", "own", "--from", "demo", "--tasks", "mine.jsonl")
    config = load_config(Config, Path("configs/own/tasks.yaml"))
    assert config.sources[0].verifier == verifier
    assert columns.items() <= config.sources[0].columns.model_dump().items()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("new", "Bad Name", "--from", "demo"), "use small letters"),
        (("new", "../up", "--from", "demo"), "use small letters"),
        (("new", "smoke", "--from", "demo"), "configs/smoke exists already"),
        (("new", "machines", "--from", "demo"), "configs/machines exists already"),
        (("new", "demo", "--from", "smoke"), "exists already"),
        (("new", "own", "--from", "nothing"), "no such recipe; there are demo, "),
        (("new", "own"), "--from"),
        (("new", "own", "--from", "demo", "--tasks", "no.jsonl"), "no.jsonl: is no file"),
        (("new", "own", "--from", "demo", "--tasks", "empty.jsonl"), "it is empty"),
        (("new", "own", "--from", "demo", "--tasks", "utf16.jsonl"), "none of its 1 lines is a JSON object in UTF-8"),
        (("new", "own", "--from", "demo", "--tasks", "odd.jsonl"), "the columns are: colour, shape"),
        (("new", "own", "--from", "demo", "--tasks", "asks.jsonl"), "no column with an answer"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, tuple) else "",
)
def test_new_refuses_before_anything_is_written(recipes, capsys, argv, expected):
    Path("empty.jsonl").write_text("")
    Path("utf16.jsonl").write_text('{"prompt": "Hi"}', encoding="utf-16")
    Path("odd.jsonl").write_text('{"colour": 1, "shape": 2}')
    Path("asks.jsonl").write_text('{"prompt": "Hi"}')
    before = sorted(Path("configs").rglob("*"))
    assert expected in problem_of(capsys, *argv)
    assert sorted(Path("configs").rglob("*")) == before
    assert not Path("sources/own").exists()


def doctor(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline", "doctor"]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


def test_doctor_finds_nothing_missing_where_the_demo_runs():
    done = doctor(ROOT)
    assert done.returncode == 0, done.stdout
    for expected in ("pins hold", "a program ran in a box", "git repository", "loads"):
        assert expected in done.stdout
    assert done.stdout.endswith("ready: make demo\n")


def test_doctor_names_each_gap_with_its_remedy(tmp_path):
    (tmp_path / "machine.yaml").write_text("serving: {pithon: x}\n")
    (tmp_path / "bin").mkdir()
    done = doctor(tmp_path, PATH=str(tmp_path / "bin"), PYTHONPATH=str(ROOT), WARMSTART_MACHINE="machine.yaml")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for name, remedy in (
        ("serving", "make setup"),
        ("git", "apt-get install --yes git"),
        ("dvc", "root of the repository"),
        ("machine", "mend the file"),
    ):
        lines = done.stdout.splitlines()
        index = next(i for i, line in enumerate(lines) if line.startswith(f"MISSING  {name}"))
        assert remedy in lines[index + 1], lines[index : index + 2]
    lines = done.stdout.splitlines()
    [index] = [i for i, line in enumerate(lines) if line.split()[1:2] == ["sandbox"]]
    assert not lines[index].startswith("ok") and "apt-get install --yes bubblewrap" in lines[index + 1]
    assert "no C++ compiler" in done.stdout
    assert "missing for the demo" in done.stdout


def test_doctor_says_that_a_folder_is_no_git_repository(tmp_path):
    done = doctor(tmp_path, PYTHONPATH=str(ROOT), GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
    assert "is no git repository" in done.stdout and "git init" in done.stdout
