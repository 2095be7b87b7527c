"""generate: every sample once, whatever the server or the operator does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from benchmarks.standin import Fault, Rule
from benchmarks.standin.sums import sum_task as task
from pipeline.config import load_config
from pipeline.engine import Teacher, fleet, key_fields, lane, make_requests, sampling, watch
from pipeline.engine.replica import RunningServer
from pipeline.errors import UserError
from pipeline.records import Sample, Task, canonical_json
from pipeline.shards import iter_table, write_table
from stages import generate
from tests.standin import StandIn, serving
from tests.tiny_models import chatml_tokenizer


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A folder with ten training tasks, two held-out ones, a config and a machine file for endpoints."""
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "tasks", Task, [*map(task, range(10)), task(90, "heldout"), task(91, "heldout")])
    engine = {"type": "endpoints", "model": "m", "model_revision": "1"}
    teacher = {"name": "t", "engine": engine, "sampling": {"max_tokens": 64}}
    (tmp_path / "generate.yaml").write_text(yaml.safe_dump({"samples_per_task": 3, "teachers": [teacher]}))
    return tmp_path


def use_server(folder, url, serving=None, **endpoint):
    machine = {"endpoints": {"t": {"urls": [url], "max_in_flight": 4, **endpoint}}, "ledger": str(folder / "ledger")}
    machine |= {"serving": {"poll_s": 0.05, **(serving or {})}, "workers": 1}
    (folder / "machine.yaml").write_text(yaml.safe_dump(machine))
    os.environ["WARMSTART_MACHINE"] = str(folder / "machine.yaml")


@pytest.fixture(autouse=True)
def machine_variable():
    yield
    os.environ.pop("WARMSTART_MACHINE", None)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(lane, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(lane, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(fleet, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(watch, "LONGEST_PAUSE_S", 0.1)


def run(folder, out="out", *overrides):
    config = load_config(generate.Config, folder / "generate.yaml", overrides)
    report = generate.run(config, {"tasks": folder / "tasks"}, folder / out)
    return report, list(iter_table(folder / out, Sample))


def test_every_training_task_gets_its_samples_in_order_and_the_outcomes_add_up(bench):
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        report, samples = run(bench)
    tasks = [t.task_id for t in iter_table(bench / "tasks", Task) if t.split == "train"]
    assert [(s.task_id, s.index) for s in samples] == [(t, i) for t in tasks for i in range(3)]
    assert report["requested"] == report["requests_sent"] == report["complete"] == 30 == server.answered
    assert report["output_tokens"] == sum(s.num_output_tokens for s in samples) == report["received_tokens"]
    assert len({body["seed"] for body in server.bodies}) == 30
    assert {s.seed for s in samples} == {body["seed"] for body in server.bodies}


def test_the_manifest_names_what_made_the_samples_and_no_address(bench):
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        run(bench)
    text = (bench / "out/generation.json").read_text()
    [teacher] = json.loads(text)["teachers"]
    assert teacher["key_fields"]["model_identity"] == "m@1" and teacher["token_limits"] == [64]
    assert server.url not in text and "127.0.0.1" not in text


def test_a_second_run_asks_nothing_and_gives_the_same_bytes(bench):
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        run(bench)
        report, _ = run(bench, "again")
    assert report["requests_sent"] == 0 and report["reused"] == 30
    first, second = (sorted((bench / out / "samples").iterdir()) for out in ("out", "again"))
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_more_samples_a_task_cost_only_the_new_ones(bench):
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        _, before = run(bench)
        report, after = run(bench, "more", "samples_per_task=5")
    assert report["requests_sent"] == 20
    assert {s.sample_id for s in before} < {s.sample_id for s in after}


@pytest.mark.parametrize(
    "override",
    [
        "teachers.0.sampling.temperature=0.5",
        "teachers.0.engine.model_revision=2",
        "seed=1",
        "teachers.0.template_kwargs={a: 1}",
    ],
)
def test_a_changed_key_field_never_reuses_an_old_sample(bench, override):
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        run(bench)
        report, _ = run(bench, "other", override)
    assert report["reused"] == 0 and report["requests_sent"] == 30


def long_for_every_third(body):
    """64 tokens for a third of the tasks, 8 for the others."""
    return "word" * (100 if int(body["messages"][0]["content"].split()[2]) % 3 == 0 else 8)


def test_a_larger_token_limit_asks_again_only_for_what_was_cut(bench):
    with serving(StandIn(text=long_for_every_third)) as server:
        use_server(bench, server.url)
        report, _ = run(bench)
        assert report["cut_in_answer"] == 12 and report["complete"] == 18
        report, samples = run(bench, "longer", "teachers.0.sampling.max_tokens=128")
        assert report["requests_sent"] == 12 and server.received == 42
        smaller, _ = run(bench, "again", "teachers.0.sampling.max_tokens=64")
        assert smaller["requests_sent"] == 0 and smaller["cut_in_answer"] == 12
    assert Counter(s.outcome for s in samples) == {"complete": 30}
    assert {body["max_tokens"] for body in server.bodies[30:]} == {128}


def test_a_second_limit_for_what_was_cut_asks_the_cut_ones_alone_and_once(bench):
    with serving(StandIn(text=long_for_every_third)) as server:
        use_server(bench, server.url)
        report, samples = run(bench, "out", "teachers.0.max_tokens_if_cut=80")
        assert Counter(body["max_tokens"] for body in server.bodies) == {64: 30, 80: 12}
        assert report["requested"] == 30 and report["requests_sent"] == 42 and report["cut_in_answer"] == 12
        again, repeated = run(bench, "again", "teachers.0.max_tokens_if_cut=80")
        assert again["requests_sent"] == 0 and repeated == samples
        whole, _ = run(bench, "whole", "teachers.0.max_tokens_if_cut=128")
    assert whole["requests_sent"] == 12 and whole["complete"] == 30 and server.received == 54


def test_edited_and_removed_tasks_cost_only_what_is_new(bench):
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        run(bench, "out", "samples_per_task=2")
        run(bench, "more", "samples_per_task=4")
        assert server.received == 40
        tasks = [*map(task, range(9)), task(50)]
        write_table(bench / "tasks", Task, tasks)
        run(bench, "edited", "samples_per_task=4")
        assert server.received == 44
        write_table(bench / "tasks", Task, tasks[1:])
        report, samples = run(bench, "fewer", "samples_per_task=4")
    assert server.received == 44 and report["reused"] == len(samples) == 36


def test_a_changed_key_field_is_named_with_what_it_costs_before_anything_is_sent(bench, capsys):
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        run(bench)
        capsys.readouterr()
        use_server(bench, "http://127.0.0.1:9/v1")
        with pytest.raises(UserError, match="no answer"):
            run(bench, "other", "teachers.0.sampling.temperature=0.5")
        said = capsys.readouterr().err
    assert "30 stored samples of t do not fit any more, since sampling.temperature 0.8 -> 0.5" in said
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        run(bench, "other", "teachers.0.sampling.temperature=0.5")
        run(bench, "rounds", "seed=3", "target={tries: 2}")
    assert (
        "20 stored samples of t do not fit any more, since sampling.temperature 0.5 -> 0.8; seed 0 -> 3"
        in capsys.readouterr().err
    )


def test_two_models_that_differ_in_one_bit_share_no_key(tmp_path):
    teacher = Teacher(name="t")
    keys = []
    for name, weight in (("one", b"\x00" * 64), ("other", b"\x00" * 63 + b"\x01"), ("copy", b"\x00" * 64)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(weight)
        fields = key_fields(teacher, folder, tmp_path / "cache.json", 0)
        keys.append([request.key for request in make_requests(map(task, range(5)), fields, range(2))])
    assert not set(keys[0]) & set(keys[1]) and keys[0] == keys[2]


def test_prompts_that_a_local_model_cannot_take_are_settled_before_anything_is_sent(bench, monkeypatch):
    chatml_tokenizer().save_pretrained(bench / "model")
    (bench / "model/config.json").write_text("{}")
    long = task(10)
    long = replace(long, task_id="long", messages=canonical_json([{"role": "user", "content": "x" * 2000}]))
    # No token has less than a byte: this one may be too long by its bytes, and is not by its tokens.
    near = replace(long, task_id="near", messages=canonical_json([{"role": "user", "content": "x" * 900}]))
    write_table(bench / "tasks", Task, [task(0), long, near])
    engine = {"type": "local", "max_model_len": 1024, "model": str(bench / "model")}
    teacher = {"name": "t", "engine": engine, "sampling": {"max_tokens": 64}}
    (bench / "generate.yaml").write_text(yaml.safe_dump({"samples_per_task": 3, "teachers": [teacher]}))
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        monkeypatch.setattr(sampling, "replicas_of", lambda *_: [RunningServer(server.url)])
        report, samples = run(bench)
    assert report["prompt_too_long"] == 3 and report["complete"] == 6 and server.received == 6
    assert [s.outcome for s in samples] == ["complete"] * 3 + ["prompt_too_long"] * 3 + ["complete"] * 3
    assert {s.messages for s in samples[3:6]} == {"[]"}


@pytest.mark.parametrize("overrides", [[], ["target={tries: 3, passing: 3}"]], ids=["fixed", "rounds"])
def test_damaged_answers_are_asked_again_and_the_output_is_whole(bench, monkeypatch, overrides):
    monkeypatch.setattr(generate, "_BLOCK", 4)  # several blocks: damage in the first counts as well
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        _, before = run(bench, "out", *overrides)
        file = bench / "ledger/segments/000001.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        for number in (1, 7, 20):
            lines[number] = lines[number].replace(b"The answer", b"The answxr")
        file.write_bytes(b"".join(lines))
        report, after = run(bench, "again", *overrides)
    assert after == before and report["complete"] == 30
    assert server.received == 33 and report["requests_sent"] == 3
    assert report["requested"] == report["reused"] + report["requests_sent"] == 30 and report["left_out"] == 0


def test_a_budget_ends_the_run_in_order_and_the_next_one_goes_on(bench):
    with serving(StandIn(delay_s=0.1)) as server:
        use_server(bench, server.url)
        report, samples = run(bench, "out", "budget.output_tokens=60")
        assert report["budget_reached"] is True and 60 <= report["received_tokens"] < 240
        assert report["requested"] == 30 == len(samples) + report["left_out"] and report["left_out"] > 0
        first = server.received
        assert first == len(samples) == report["requests_sent"]
        report, _ = run(bench, "again", "budget.output_tokens=2000")
    assert report["complete"] == 30 and report["reused"] == first and server.received == 30


def test_rounds_ask_until_enough_samples_pass_real_verification(bench, capsys):
    write_table(bench / "tasks", Task, [*map(task, range(60))])

    def text(body):
        number = int(body["messages"][0]["content"].split()[2])
        return f"The answer is {2 * number + (body['seed'] % 10 >= 3)}."

    with serving(StandIn(text=text)) as server:
        use_server(bench, server.url)
        report, samples = run(bench, "out", "target={rows: 20, tries: 4}")
        assert report["passing"] == 20 and report["target_reached"] is True
        use_server(bench, server.url, max_in_flight=1)
        again, repeated = run(bench, "again", "target={rows: 20, tries: 4}")
        assert again["requests_sent"] == 0 and repeated == samples
        assert "not reached" not in capsys.readouterr().err
        few, _ = run(bench, "few", "target={rows: 20, tries: 1}", "limit=10")
    assert few["target_reached"] is False and few["passing"] < 20
    assert "target: not reached" in capsys.readouterr().err


def test_faults_of_the_server_are_retried_and_lose_nothing(bench):
    faults = {0: web.Response(status=429), 3: web.Response(status=503), 5: None, 7: web.Response(status=500)}
    with serving(StandIn(faults=faults)) as server:
        use_server(bench, server.url)
        report, samples = run(bench)
    assert len(samples) == 30 and report["complete"] == 30
    assert len(server.bodies) == 34


def test_a_prompt_that_is_too_long_is_an_outcome_and_the_rest_goes_on(bench):
    message = {"error": {"message": "This model's maximum context length is 2048 tokens"}}
    with serving(StandIn(faults={4: web.json_response(message, status=400)})) as server:
        use_server(bench, server.url)
        report, samples = run(bench)
    assert report["prompt_too_long"] == 1 and report["complete"] == 29 and len(samples) == 30


def test_every_odd_answer_has_its_outcome_and_the_outcomes_add_up(bench):
    faults = {
        0: Fault("null_content"),
        3: Fault("reasoning"),
        5: Fault("reasoning", field="reasoning_content"),
        8: Fault("cut_in_thinking"),
        11: Fault("cut_in_thinking", field="content"),
        14: Fault("no_choices"),
        17: Fault("truncated_json"),
        20: Fault("drop_midway"),
        23: Fault("context_length"),
        25: Fault("status", 400),
    }
    with serving(StandIn(text=lambda _: "<think>two and two</think>4", faults=faults)) as server:
        use_server(bench, server.url, max_in_flight=1)
        report, samples = run(bench, "out", "max_lost=0.1", "teachers.0.thinking=true")
    outcomes = {"complete": 25, "no_answer": 1, "cut_in_thinking": 2, "prompt_too_long": 1, "no_thinking": 0}
    outcomes["no_thinking"] = 29 - sum(outcomes.values())
    assert Counter(s.outcome for s in samples) == Counter(outcomes) and report["lost"] == 1
    assert report["requested"] == 30 == sum(outcomes.values()) + report["lost"] and report["left_out"] == 0
    thoughts = [json.loads(s.messages)[0].get("reasoning_content") for s in samples if s.outcome == "complete"]
    assert set(thoughts) == {"two and two"}
    assert server.received == 33


def test_refused_requests_fail_the_stage_at_its_end_unless_max_lost_allows_them(bench):
    rule = Rule(Fault("status", 400, "bad field"), lambda _, body: "What is 3" in str(body["messages"]))
    with serving(StandIn(rules=[rule])) as server:
        use_server(bench, server.url)
        with pytest.raises(UserError, match=r"(?s)3 of 30 samples.*max_lost: 0.0.*HTTP 400.*bad field"):
            run(bench)
        assert server.received == 30 and server.answered == 27
        report, samples = run(bench, "out", "max_lost=0.1")
        assert report["lost"] == 3 and report["reused"] == len(samples) == 27 == report["complete"]
        assert report["requested"] == report["complete"] + report["lost"] and server.received == 33
        server.rules = []
        report, _ = run(bench)
    assert report["complete"] == 30 and server.answered == 30


def test_many_refusals_that_max_lost_allows_do_not_end_a_later_run(bench):
    rule = Rule(Fault("status", 400), lambda _, body: "What is 3" in str(body["messages"]))
    allowed = ["max_lost=0.1", "samples_per_task=30"]
    with serving(StandIn(rules=[rule])) as server:
        use_server(bench, server.url)
        first, _ = run(bench, "out", *allowed)
        again, _ = run(bench, "again", *allowed)
    assert first["lost"] == again["lost"] == 30 and again["reused"] == 270 and server.received == 330


@pytest.mark.parametrize("status", [401, 404])
def test_a_wrong_key_or_model_ends_the_stage_at_once(bench, status):
    rule = Rule(Fault("status", status), lambda *_: True)
    with serving(StandIn(rules=[rule])) as server:
        use_server(bench, server.url)
        with pytest.raises(UserError, match=f"HTTP {status}"):
            run(bench, "out", "max_lost=1.0")
    assert server.received <= 4


def test_a_refused_request_ends_the_stage_and_keeps_what_finished(bench):
    with serving(StandIn(faults={12: web.Response(status=401, text="bad key")})) as server:
        use_server(bench, server.url)
        with pytest.raises(UserError, match="401"):
            run(bench)
        kept = server.answered
        report, _ = run(bench)
    assert report["requests_sent"] + report["reused"] == 30
    assert 0 < report["reused"] <= kept


def test_an_unreachable_server_is_a_user_error(bench, monkeypatch):
    monkeypatch.setattr(fleet, "MAX_TRIES", 1)
    use_server(bench, "http://127.0.0.1:9/v1")
    with pytest.raises(UserError, match="no answer after 1 tries"):
        run(bench)


def test_the_key_comes_from_the_environment_and_never_into_a_file(bench, monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "secret-canary")
    with serving(StandIn()) as server:
        use_server(bench, server.url, api_key_env="TEACHER_KEY")
        run(bench)
    assert {h["Authorization"] for h in server.headers} == {"Bearer secret-canary"}
    assert not [p for p in bench.rglob("*") if p.is_file() and b"secret-canary" in p.read_bytes()]


def test_a_missing_key_variable_is_named(bench):
    use_server(bench, "http://127.0.0.1:9/v1", api_key_env="NO_SUCH_KEY")
    with pytest.raises(UserError, match="NO_SUCH_KEY"):
        run(bench)


def test_text_that_is_no_unicode_is_kept_as_far_as_it_is(bench):
    message = {"role": "assistant", "content": "half \ud83d, whole \ud83d\ude00 and more"}
    odd = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 9}}
    with serving(StandIn(faults={4: web.json_response(odd)})) as server:
        use_server(bench, server.url)
        _, samples = run(bench)
    texts = {json.loads(s.messages)[0]["content"] for s in samples}
    assert "half \ufffd, whole \U0001f600 and more" in texts and len(samples) == 30


def test_limit_takes_the_first_tasks(bench):
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        report, _ = run(bench, "few", "limit=2")
    assert report["tasks"] == 2 and report["requested"] == 6


COMMAND = [sys.executable, "-m", "pipeline", "generate", "--config", "generate.yaml", "--in", "tasks=tasks"]
COMMAND += ["--out", "out", "--report", "report.json", "--set", "samples_per_task=20"]


def start(bench, interrupt=signal.SIG_DFL):
    environment = {**os.environ, "PYTHONPATH": str(Path(generate.__file__).parents[1])}
    # As a background job of a script the tests themselves would hand on an ignored signal.
    signals = partial(signal.signal, signal.SIGINT, interrupt)
    pipe = subprocess.PIPE
    return subprocess.Popen(COMMAND, cwd=bench, env=environment, stderr=pipe, text=True, preexec_fn=signals)


def wait_for(condition, process):
    while not condition():
        time.sleep(0.01)
        assert process.poll() is None


@pytest.mark.parametrize(
    ("metrics", "interrupt"), [(True, signal.SIG_DFL), (False, signal.SIG_DFL), (True, signal.SIG_IGN)]
)
def test_sigterm_keeps_what_is_on_its_way_and_the_next_run_asks_for_the_rest(bench, metrics, interrupt):
    if not metrics:
        config = yaml.safe_load((bench / "generate.yaml").read_text())
        config["teachers"][0]["engine"]["vllm"] = False
        (bench / "generate.yaml").write_text(yaml.safe_dump(config))
    with serving(StandIn(delay_s=0.4)) as server:
        use_server(bench, server.url, max_in_flight=8)
        process = start(bench, interrupt)
        wait_for(lambda: server.answered >= 8 and server.concurrent == 8, process)
        if interrupt is signal.SIG_IGN:
            process.send_signal(signal.SIGINT)  # means nothing to it
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[1]
        assert process.returncode == 143 and "stopping: waiting" in said and "Traceback" not in said
        assert server.answered == server.received < 200
        answered, server.delay_s = server.answered, 0.0
        process = start(bench)
        assert process.wait() == 0, process.communicate()
    report = json.loads((bench / "report.json").read_text())
    assert report["reused"] == answered and server.received == 200 == report["complete"]


def test_a_second_signal_ends_the_wait(bench):
    with serving(StandIn(faults={9: Fault("dead_core")})) as server:
        use_server(bench, server.url, serving={"drain_s": 600})
        process = start(bench)
        wait_for(lambda: server.dead and server.concurrent == 4, process)
        process.send_signal(signal.SIGTERM)
        while "stopping" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 143 and "Traceback" not in said
        answered = server.answered
        server.revive()
        process = start(bench)
        assert process.wait() == 0, process.communicate()
    assert json.loads((bench / "report.json").read_text())["reused"] == answered


def test_after_a_sigkill_only_the_missing_samples_are_asked_for(bench):
    with serving(StandIn(delay_s=0.05)) as server:
        use_server(bench, server.url)
        process = start(bench)
        wait_for(lambda: server.answered >= 60, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not (bench / "out").exists()
        answered = server.answered
        process = start(bench)
        assert process.wait() == 0, process.communicate()
    report = json.loads((bench / "report.json").read_text())
    samples = list(iter_table(bench / "out", Sample))
    assert report["requests_sent"] == 200 - report["reused"]
    # At most what was in flight or not yet on disk at the kill is asked again: 4 in flight make 80 answers a second.
    assert answered - 8 - 80 * 2 * fleet.GATHER_LEAST_S <= report["reused"] <= answered
    assert len({(s.task_id, s.index) for s in samples}) == len(samples) == 200
