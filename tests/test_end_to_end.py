"""The whole line in miniature: real DVC, real vLLM, real sandbox, real DeepSpeed on two ranks."""

import json
import re

import pytest
import yaml

from pipeline.records import Rejected, Sample, Task, Trace, Verdict
from pipeline.shards import iter_table, sha256_of
from tests.project import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("project"))
    project.dvc("repro", "tasks", "collect", "base")
    demo = demo_files(project)
    project.dvc("repro", "configs/smoke/dvc.yaml")
    project.demo_before, project.demo_after = demo, demo_files(project)
    return project


def demo_files(project):
    """The demo's lock, outputs, reports and the cached files they are linked to: contents, and when last written."""
    lock = project.folder / "dvc.lock"
    found = [lock, *(project.folder / "data/demo").rglob("*"), *(project.folder / "reports/demo").rglob("*")]
    cache = project.folder / ".dvc/cache/files/md5"
    for name in re.findall(r"md5: ([0-9a-f]{32}(?:\.dir)?)", lock.read_text()):
        if (cache / name[:2] / name[2:]).exists():
            found.append(cache / name[:2] / name[2:])
    return {path: (sha256_of(path), path.stat().st_mtime_ns) for path in found if path.is_file()}


def rows(project, stage, record_type):
    return list(iter_table(project.data(stage), record_type))


def test_every_report_is_flat_numbers_and_text(project):
    files = list((project.folder / "reports/smoke").rglob("*.json"))
    assert {file.stem for file in files} >= {"tasks", "generate", "verify", "filter", "evaluate", "general", "agentic"}
    for file in files:
        assert all(isinstance(v, int | float | str | bool) for v in json.loads(file.read_text()).values()), file


def test_no_row_is_lost_from_tasks_to_packed(project):
    tasks, samples, verdicts = (
        rows(project, "tasks", Task),
        rows(project, "generate", Sample),
        rows(project, "verify", Verdict),
    )
    train = [task.task_id for task in tasks if task.split == "train"]
    per_task = yaml.safe_load((project.folder / "configs/smoke/generate.yaml").read_text())["samples_per_task"]
    assert [(s.task_id, s.index) for s in samples] == [(t, i) for t in train for i in range(per_task)]
    assert [v.sample_id for v in verdicts] == [s.sample_id for s in samples]
    traces, rejected = rows(project, "filter", Trace), rows(project, "filter", Rejected)
    collected = rows(project, "collect", Trace)
    assert {r.id for r in rejected} <= {s.sample_id for s in samples} | {t.trace_id for t in collected}
    assert len(traces) + len(rejected) == len(samples) + len(collected)
    assert traces and all(trace.split == "train" for trace in traces)
    others = {trace.trace_id for trace in collected}
    assert all(trace.verdict == "pass" or trace.trace_id in others for trace in traces)
    for stage in ("dedup", "decontaminate"):
        before, traces = len(traces), rows(project, stage, Trace)
        assert len(traces) + len(rows(project, stage, Rejected)) == before
    mixed, packed = project.report("mix/general"), project.report("pack/general")
    assert mixed["train"] + mixed["val"] + mixed["rejected"] == len(traces)
    assert packed["documents"] + packed["rejected"] == mixed["train"]


def test_the_servers_own_counters_agree_with_the_samples_on_disk(project):
    report = project.report("generate")
    assert report["requests_sent"] == report["server_requests"] > 0
    assert report["received_tokens"] == report["server_generated_tokens"] > 0
    samples = rows(project, "generate", Sample)
    assert report["requested"] == len(samples)
    assert report["output_tokens"] == sum(s.num_output_tokens for s in samples)


def test_training_was_a_deepspeed_engine_on_two_ranks_and_the_model_reloads_equal(project):
    for phase in ("general", "agentic"):
        report = project.report(f"sft/{phase}")
        assert report["engine"] == "DeepSpeedEngine"
        assert report["world_size"] == 2
        assert report["steps"] >= 1
        assert report["reload_max_abs_diff"] == 0
        assert (project.data(f"sft/{phase}") / "config.json").exists()


def test_both_models_answered_the_same_heldout_tasks(project):
    heldout = [task.task_id for task in rows(project, "tasks", Task) if task.split == "heldout"]
    report = project.report("evaluate")
    assert report["tasks"] == len(heldout)
    for model in ("base", "tuned"):
        samples = list(iter_table(project.data("evaluate") / model, Sample))
        assert [sample.task_id for sample in samples] == heldout
        assert report[f"{model}_low"] <= report[f"{model}_accuracy"] <= report[f"{model}_high"]


def test_heldout_and_training_prompts_do_not_overlap(project):
    tasks = rows(project, "tasks", Task)
    by_split = {split: {t.prompt_id for t in tasks if t.split == split} for split in ("train", "heldout")}
    assert not by_split["train"] & by_split["heldout"]
    assert project.report("tasks")["prompt_overlap"] == 0


def test_the_smoke_recipe_leaves_the_demos_lock_cache_and_outputs_as_they_were(project):
    assert any(".dvc/cache" in str(path) for path in project.demo_before)
    assert any(path.name == "model.safetensors" for path in project.demo_before)
    assert project.demo_after == project.demo_before
    assert "Running stage" not in project.dvc("repro", "tasks", "collect", "base")


def test_the_page_and_the_last_screen_stand(project):
    page = (project.data("report") / "index.html").read_text()
    assert "<html" in page and "http://" not in page.replace("http://www.w3.org", "") and "<script src" not in page
    assert "tuned" in (project.data("report") / "summary.txt").read_text()


def test_metrics_and_plots_are_shown_by_dvc(project):
    assert "requests_sent" in project.dvc("metrics", "show", "--md")
    assert "index.html" in project.dvc("plots", "show")


def test_a_second_repro_runs_nothing_and_a_threshold_reruns_filter_and_what_follows(project):
    assert "Running stage" not in project.dvc("repro", "configs/smoke/dvc.yaml")
    config = project.folder / "configs/smoke/filter.yaml"
    before = config.read_text()
    config.write_text(yaml.safe_dump({**(yaml.safe_load(before) or {}), "max_per_task": 1}))
    try:
        printed = project.dvc("repro", "configs/smoke/dvc.yaml:pack@general")
    finally:
        config.write_text(before)
    ran = {line.split("'")[1].split(":")[-1] for line in printed.splitlines() if line.startswith("Running stage")}
    assert "filter" in ran and "pack@general" in ran
    assert not ran & {"base", "tasks", "generate", "verify"}
