"""generate: every sample once, whatever the server or the operator does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from pipeline.config import load_config
from pipeline.engine import fleet, lane
from pipeline.errors import UserError
from pipeline.records import Sample, Task, canonical_json, content_id, prompt_id_of
from pipeline.shards import iter_table, write_table
from stages import generate
from tests.standin import StandIn, serving


def task(i, split="train"):
    messages = [{"role": "user", "content": f"What is {i} + {i}?"}]
    reference = canonical_json({"answer": str(2 * i)})
    return Task(
        task_id=content_id(messages, reference),
        prompt_id=prompt_id_of(messages),
        source="sums",
        source_id=str(i),
        source_revision=None,
        license="CC0-1.0",
        domain="math",
        messages=canonical_json(messages),
        tools=None,
        verifier="math",
        reference=reference,
        split=split,
    )


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A folder with ten training tasks, two held-out ones, a config and a machine file for endpoints."""
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "tasks", Task, [*map(task, range(10)), task(90, "heldout"), task(91, "heldout")])
    engine = {"type": "endpoints", "model": "m", "model_revision": "1"}
    teacher = {"name": "t", "engine": engine, "sampling": {"max_tokens": 64}}
    (tmp_path / "generate.yaml").write_text(yaml.safe_dump({"samples_per_task": 3, "teachers": [teacher]}))
    return tmp_path


def use_server(folder, url, **endpoint):
    machine = {"endpoints": {"t": {"urls": [url], "max_in_flight": 4, **endpoint}}, "ledger": str(folder / "ledger")}
    (folder / "machine.yaml").write_text(yaml.safe_dump(machine))
    os.environ["WARMSTART_MACHINE"] = str(folder / "machine.yaml")


@pytest.fixture(autouse=True)
def machine_variable():
    yield
    os.environ.pop("WARMSTART_MACHINE", None)


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


def test_a_larger_token_limit_asks_again_only_for_what_was_cut(bench):
    with serving(StandIn(finish_reason="length")) as server:
        use_server(bench, server.url)
        run(bench)
        server.finish_reason = "stop"
        report, samples = run(bench, "longer", "teachers.0.sampling.max_tokens=128")
    assert report["requests_sent"] == 30
    assert Counter(s.outcome for s in samples) == {"complete": 30}


def test_faults_of_the_server_are_retried_and_lose_nothing(bench, monkeypatch):
    monkeypatch.setattr(fleet.random, "uniform", lambda low, high: 0.0)
    monkeypatch.setattr(lane, "FIRST_PAUSE_S", 0.01)
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


def test_limit_takes_the_first_tasks(bench):
    with serving(StandIn()) as server:
        use_server(bench, server.url)
        report, _ = run(bench, "few", "limit=2")
    assert report["tasks"] == 2 and report["requested"] == 6


def test_after_a_sigkill_only_the_missing_samples_are_asked_for(bench):
    root = Path(generate.__file__).parents[1]
    command = [sys.executable, "-m", "pipeline", "generate", "--config", "generate.yaml", "--in", "tasks=tasks"]
    command += ["--out", "out", "--report", "report.json", "--set", "samples_per_task=20"]
    with serving(StandIn(delay_s=0.05)) as server:
        use_server(bench, server.url)
        environment = {**os.environ, "PYTHONPATH": str(root)}
        process = subprocess.Popen(command, cwd=bench, env=environment, stderr=subprocess.DEVNULL)
        while server.answered < 60:
            time.sleep(0.01)
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (bench / "out").exists()
        answered = server.answered
        subprocess.run(command, cwd=bench, env=environment, check=True, stderr=subprocess.DEVNULL)
    report = json.loads((bench / "report.json").read_text())
    samples = list(iter_table(bench / "out", Sample))
    assert report["requests_sent"] == 200 - report["reused"]
    # At most what was in flight or not yet on disk at the kill is asked again.
    assert answered - 8 <= report["reused"] <= answered
    assert len({(s.task_id, s.index) for s in samples}) == len(samples) == 200
