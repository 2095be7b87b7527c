"""`warmstart ledger`: what it says is true, what it drops nobody can be given, and a kill loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pipeline.cli.main import main
from pipeline.ledger import Answer, Ledger, upkeep
from pipeline.ledger import segments as segment_files
from pipeline.ledger.index import Index
from pipeline.records import Sample, Task, canonical_json, content_id, prompt_id_of
from pipeline.shards import iter_table, write_table
from tests.standin import StandIn, serving

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"teacher": "t", "model_identity": "0123456789abcdef" * 2, "sampling": {"temperature": 0.8}, "seed": 3}


def key(number):
    return int(number).to_bytes(16, "big")


def answer(text, finish_reason="stop", max_tokens=64):
    return Answer(text, finish_reason, None, 10, 5, max_tokens, 1)


def fill(folder, fields=FIELDS):
    """Thirty answers, ten of them asked twice, and three under a second limit."""
    with Ledger(folder) as ledger:
        ledger.declare(fields)
        for n in range(30):
            ledger.put([(key(n), answer(f"first {n}"))])
        ledger.put((key(n), answer(f"again {n}")) for n in range(10))
        ledger.put((key(n), answer(f"longer {n}", "length", 128)) for n in range(3))


def contents(folder):
    """(key number, token limit) -> text of everything that can be read, with an index made from nothing."""
    for path in folder.glob("index.sqlite*"):
        path.unlink()
    with Ledger(folder) as ledger:
        found = ledger.find([key(n) for n in range(100)])
        places = [(k, one) for k, stored in found.items() for one in stored]
        read = list(ledger.read(places))
        assert None not in read
        return {
            (int.from_bytes(k, "big"), one.max_tokens): a.text for (k, one), a in zip(places, read, strict=True)
        }, ledger.known_fields()


WHOLE = (
    {(n, 64): f"{'again' if n < 10 else 'first'} {n}" for n in range(30)} | {(n, 128): f"longer {n}" for n in range(3)},
    [FIELDS],
)


def said_of(capsys, *argv, code=0):
    assert main(("ledger", *map(str, argv))) == code, capsys.readouterr().err
    return capsys.readouterr().out


def problem_of(capsys, *argv):
    assert main(("ledger", *map(str, argv))) == 1
    found = capsys.readouterr()
    assert "Traceback" not in found.err
    return found.err


def damage(folder, word):
    path = folder / "segments" / "000001.jsonl"
    data = path.read_bytes()
    assert word in data
    path.write_bytes(data.replace(word, word[:-1] + b"#"))


def test_stats_counts_answers_and_tokens_by_key_fields_and_reason(tmp_path, capsys):
    fill(tmp_path)
    fill(tmp_path, {**FIELDS, "teacher": "u", "model_identity": "org/model@main", "template_kwargs": {"a": 1}})
    said = said_of(capsys, "stats", "--ledger", tmp_path)
    assert f"{tmp_path}: 33 answers" in said and "in 1 segment" in said
    assert "t: model 0123456789ab, temperature 0.8, seed 3\n  no answers" in said
    assert 'u: model org/model@main, temperature 0.8, seed 3, template_kwargs {"a": 1}' in said
    lines = [line.split() for line in said.splitlines() if " prompt and " in line]
    assert [(line[0], line[1], line[3], line[6]) for line in lines] == [
        ("length", "3", "30", "15"),
        ("stop", "30", "300", "150"),
    ]


def test_stats_and_verify_need_no_lock(tmp_path, capsys):
    fill(tmp_path)
    with Ledger(tmp_path) as writing:
        assert "33 answers" in said_of(capsys, "stats", "--ledger", tmp_path)
        writing.put([(key(50), answer("more"))])
        said = said_of(capsys, "verify", "--ledger", tmp_path)
    assert "34 answers whole and found by the index" in said and "10 answers superseded" in said
    assert "nothing is damaged" in said


def test_verify_names_file_and_line_of_damage_and_what_it_costs(tmp_path, capsys):
    fill(tmp_path)
    damage(tmp_path, b"first 20")
    said = said_of(capsys, "verify", "--ledger", tmp_path, code=1)
    assert f"DAMAGED {tmp_path}/segments/000001.jsonl:22" in said  # line 1 names the key fields
    assert "1 damaged line" in said and "1 answer that the index names cannot be read" in said
    assert "warmstart ledger compact --yes" in said and "asks for the lost samples again" in said


def test_a_torn_line_of_a_kill_is_damage_that_cost_no_answer(tmp_path, capsys):
    fill(tmp_path)
    with (tmp_path / "segments" / "000001.jsonl").open("ab") as file:
        file.write(b'01234567 {"key": "ha')
    said = said_of(capsys, "verify", "--ledger", tmp_path, code=1)
    assert "no answer that the index names is lost by it" in said


def test_verify_leaves_a_line_alone_that_is_being_written(tmp_path, monkeypatch, capsys):
    fill(tmp_path)
    path = tmp_path / "segments" / "000001.jsonl"
    line = segment_files.frame(answer("late").to_record(key(60), 1))
    with path.open("ab") as file:
        file.write(line[:30])

    def meanwhile(seconds):
        with path.open("ab") as file:
            file.write(line[30:])

    monkeypatch.setattr(time, "sleep", meanwhile)
    assert "nothing is damaged" in said_of(capsys, "verify", "--ledger", tmp_path)
    assert "1 answer that the index has not come to yet" in said_of(capsys, "verify", "--ledger", tmp_path)


def test_verify_finds_an_index_that_disagrees(tmp_path, capsys):
    fill(tmp_path)
    with Ledger(tmp_path) as ledger:
        ledger.index.forget([(key(15), 64)])
        ledger.index.add([(key(70), 64, "stop", 1, 1, 1, 0, 10, 1)], 1, 10**9)
    said = said_of(capsys, "verify", "--ledger", tmp_path, code=1)
    assert "1 whole answer that the index does not find" in said


def test_compact_says_what_it_would_win_and_changes_no_segment(tmp_path, capsys):
    fill(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "segments").iterdir()}
    said = said_of(capsys, "compact", "--ledger", tmp_path)
    assert "kept        33 answers" in said and "superseded  10 answers" in said and "--yes" in said
    assert {path: path.read_bytes() for path in (tmp_path / "segments").iterdir()} == before


@pytest.mark.parametrize("segment_bytes", [300, 2000, 1 << 20])
def test_compact_keeps_what_can_be_given_and_nothing_else(tmp_path, monkeypatch, capsys, segment_bytes):
    monkeypatch.setattr(segment_files, "SEGMENT_BYTES", segment_bytes)
    fill(tmp_path)
    said_of(capsys, "compact", "--ledger", tmp_path, "--yes")
    said = said_of(capsys, "verify", "--ledger", tmp_path)
    assert "34 lines" in said and "33 answers whole" in said and "superseded" not in said
    assert "nothing to win" in said_of(capsys, "compact", "--ledger", tmp_path, "--yes")
    assert contents(tmp_path) == WHOLE
    assert not (tmp_path / upkeep.COMPACTING).exists()


def test_compact_drops_damage_and_brings_back_the_whole_answer_behind_it(tmp_path, capsys):
    fill(tmp_path)
    damage(tmp_path, b"again 4")
    damage(tmp_path, b"first 20")
    said = said_of(capsys, "compact", "--ledger", tmp_path, "--yes")
    assert "kept        32 answers" in said and "damaged     2 lines" in said
    assert "nothing is damaged" in said_of(capsys, "verify", "--ledger", tmp_path)
    answers = {**WHOLE[0], (4, 64): "first 4"}
    del answers[20, 64]
    assert contents(tmp_path) == (answers, [FIELDS])


def test_compact_writes_key_fields_anew_whose_line_is_damaged(tmp_path, capsys):
    fill(tmp_path)
    damage(tmp_path, b'"teacher"')
    said_of(capsys, "compact", "--ledger", tmp_path, "--yes")
    assert contents(tmp_path) == WHOLE


def test_a_ledger_goes_on_after_compact(tmp_path, capsys):
    fill(tmp_path)
    with Ledger(tmp_path) as ledger:
        upkeep.compact(ledger)
        ledger.put([(key(80), answer("new"))])
        places = [(k, stored[0]) for k, stored in ledger.find([key(80), key(29)]).items()]
        assert sorted(a.text for a in ledger.read(places)) == ["first 29", "new"]
    assert contents(tmp_path) == ({**WHOLE[0], (80, 64): "new"}, [FIELDS, {}])


def compact_in_a_child(folder, kill_at):
    """Compact in a process of its own that is killed before the n-th rename, sync, removal or step of the index.

    Gives its exit status (minus the signal's number), and how many such steps there were.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        steps = 0

        def watched(owner, name):
            real = getattr(owner, name)

            def action(*given, **named):
                nonlocal steps
                steps += 1
                if steps == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*given, **named)

            setattr(owner, name, action)

        try:
            with Ledger(folder) as ledger:
                for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink"), (Index, "add"), (Index, "drop")):
                    watched(owner, name)
                upkeep.compact(ledger)
            os.write(write, str(steps).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as told:
        steps = told.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), int(steps or 0)


def test_a_sigkill_at_any_step_of_compact_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_files, "SEGMENT_BYTES", 1500)
    fill(tmp_path / "0")
    status, steps = compact_in_a_child(tmp_path / "0", 0)
    assert status == 0 and contents(tmp_path / "0") == WHOLE
    assert steps > 20
    for step in range(1, steps + 1):
        folder = tmp_path / str(step)
        fill(folder)
        assert compact_in_a_child(folder, step)[0] == -signal.SIGKILL
        with Ledger(folder, write=False) as reader:  # whoever reads before anybody writes again
            assert len(reader) == 33
            assert upkeep.check(reader, progress=False).gone == 0
        assert contents(folder) == WHOLE, f"killed at step {step} of {steps}"
        with Ledger(folder) as ledger:
            upkeep.compact(ledger)
            assert upkeep.check(ledger, progress=False).superseded == 0
        assert contents(folder) == WHOLE


def test_a_full_disk_under_compact_loses_nothing(tmp_path, capsys):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here (needs root and mount)")
    try:
        folder = small / "ledger"
        with Ledger(folder) as ledger:
            ledger.declare(FIELDS)
            for _ in range(2):
                ledger.put((key(n), answer(f"{n} " * 900)) for n in range(40))
        before = {path: path.read_bytes() for path in (folder / "segments").iterdir()}
        assert "the disk is full" in problem_of(capsys, "compact", "--ledger", folder, "--yes")
        assert {path: path.read_bytes() for path in (folder / "segments").iterdir()} == before
        assert not (folder / upkeep.COMPACTING).exists()
        subprocess.run(["mount", "-o", "remount,size=4m", str(small)], check=True)
        said_of(capsys, "compact", "--ledger", folder, "--yes")
        assert contents(folder)[0] == {(n, 64): f"{n} " * 900 for n in range(40)}
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_compact_waits_for_nobody_and_says_who_writes(tmp_path, capsys):
    fill(tmp_path)
    code = (
        "import sys; from pathlib import Path; from pipeline.ledger import Ledger\n"
        f"with Ledger(Path({str(tmp_path)!r})): print('open', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as holder:
        assert holder.stdout.readline() == "open\n"
        assert f"process {holder.pid}" in problem_of(capsys, "compact", "--ledger", tmp_path, "--yes")
        holder.stdin.close()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ((), "ACTION"),
        (("mend",), "invalid choice: 'mend'"),
        (("stats", "--ledger", "nowhere"), "nowhere: holds no ledger"),
        (("verify", "--ledger", "nowhere"), "nowhere: holds no ledger"),
        (("compact", "--ledger", "nowhere", "--yes"), "nowhere: holds no ledger"),
        (("stats", "--ledger", "bare"), "index.sqlite: missing or damaged; `warmstart ledger compact`"),
        (("stats", "--ledger", "bare", "--in", "tasks=x"), "belong to `warmstart ledger import`"),
        (("import",), "needs --config FILE"),
        (("import", "--config", "x.yaml", "--in", "tasks=bare"), "needs --in samples=PATH"),
        (("import", "--config", "x.yaml", "--in", "task=bare"), "this command reads tasks, samples, teacher"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_answered_without_a_traceback(tmp_path, monkeypatch, capsys, argv, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare" / "segments").mkdir(parents=True)
    assert expected in problem_of(capsys, *argv)
    assert not (tmp_path / "nowhere").exists()


def test_help_comes_without_loading_arrow(tmp_path):
    code = "import sys; from pipeline.cli.main import main; main(['ledger', '--help']); print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "warmstart ledger import --config" in done.stdout and done.stdout.endswith("False\n")


def task(i, split="train"):
    messages, reference = [{"role": "user", "content": f"What is {i} + {i}?"}], canonical_json({"answer": str(2 * i)})
    ids = (content_id(messages, reference), prompt_id_of(messages))
    return Task(*ids, "sums", str(i), None, "CC0", "math", canonical_json(messages), None, "math", reference, split)


@pytest.fixture
def generated(tmp_path, monkeypatch):
    """A finished generate run of two teachers, whose ledger is then lost; gives the server, still there."""
    monkeypatch.chdir(tmp_path)
    write_table(Path("tasks"), Task, [*map(task, range(10)), task(90, "heldout")])
    engine = {"type": "endpoints", "model": "m", "model_revision": "1"}
    teachers = [{"name": name, "engine": engine, "sampling": {"max_tokens": 64}} for name in ("t", "u")]
    teachers[1]["sampling"]["temperature"] = 0.5
    Path("generate.yaml").write_text(yaml.safe_dump({"samples_per_task": 3, "teachers": teachers}))
    monkeypatch.setenv("WARMSTART_MACHINE", "machine.yaml")
    with serving(
        StandIn(text=lambda body: "<think>2</think> \U0001f600\u2028 " + "4 " * (body["seed"] % 200))
    ) as server:
        endpoint = {"urls": [server.url]}
        machine = {"endpoints": {"t": endpoint, "u": endpoint}, "ledger": "ledger", "workers": 1}
        Path("machine.yaml").write_text(yaml.safe_dump(machine))
        run_stage("first")
        Path("ledger").rename("lost")
        yield server


def run_stage(out):
    command = ["generate", "--config", "generate.yaml", "--in", "tasks=tasks", "--out", out, "--report", f"{out}.json"]
    assert main(command) == 0
    return json.loads(Path(f"{out}.json").read_text())


IMPORT = ("import", "--config", "generate.yaml", "--in", "tasks=tasks", "--in", "samples=first")


def test_an_imported_ledger_spares_every_request_and_gives_the_same_bytes(generated, capsys):
    asked = generated.answered
    assert "60 of 60 samples imported, 0 there already" in said_of(capsys, *IMPORT)
    report = run_stage("second")
    assert generated.answered == asked and report["requests_sent"] == 0 and report["reused"] == 60
    first, second = (sorted(Path(out, "samples").iterdir()) for out in ("first", "second"))
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
    outcomes = {sample.outcome for sample in iter_table(Path("first"), Sample)}
    assert len(outcomes) > 1  # whole and cut answers
    capsys.readouterr()
    assert "0 of 60 samples imported, 60 there already" in said_of(capsys, *IMPORT)
    said = said_of(capsys, "verify")
    assert "60 answers whole" in said and "superseded" not in said


def test_samples_of_other_key_fields_are_left_out_by_number(generated, capsys):
    said = said_of(capsys, *IMPORT, "--set", "teachers.1.sampling.temperature=0.9")
    assert "30 of 60 samples imported" in said
    assert "30 left out: they were made with other key fields" in said and "30 of u" in said
    write_table(Path("few"), Task, [task(n) for n in range(4)])
    said = said_of(capsys, *IMPORT[:3], "--in", "tasks=few", "--in", "samples=first", "--set", "teachers.0.name=x")
    assert "12 of 60 samples imported" in said and "18 left out: they belong to a task" in said
    assert "30 left out: they are of a teacher" in said


def test_samples_of_another_model_alone_are_a_user_error(generated, capsys):
    problem = problem_of(capsys, *IMPORT, "--set", "seed=5")
    assert "all 60 samples that could be compared have another seed" in problem
    assert "the config or the model is not that of the samples" in problem
    assert "0 answers" in said_of(capsys, "stats")
