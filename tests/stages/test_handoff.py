"""Every training task is a prompt or excluded for one reason; held-out tasks never leave."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import validate
from pipeline.errors import UserError
from pipeline.records import Sample, Task, Verdict, canonical_json, content_id
from pipeline.shards import sha256_of, write_table
from stages.handoff import EXCLUDED, Config, Rate, excluded_as, prompt_row, run

MATH, CODE = {"answer": "12"}, {"function": "add", "tests": [{"args": [1, [2]], "expected": None}]}


def config_of(**keys) -> Config:
    return validate(Config, keys, "test")


def task(name: str, split: str = "train", domain: str = "math") -> Task:
    messages = canonical_json([{"role": "system", "content": "Be brief."}, {"role": "user", "content": name}])
    reference = canonical_json(MATH if domain == "math" else CODE)
    return Task(name, content_id(name), "own", name, None, "MIT", domain, messages, None, domain, reference, split)


def sample(task_id: str, index: int) -> Sample:
    return Sample(f"{task_id}/{index}", task_id, index, "t", "[]", "[]", "complete", 1, 1, 0)


@pytest.fixture
def bundle(tmp_path):
    """Run on tasks and their verdicts; gives the report, the lines and the output folder."""

    def make(tasks: dict[Task, list[str]], **keys):
        inputs = {name: tmp_path / name for name in ("tuned", "tasks", "samples", "verdicts")}
        inputs["tuned"].mkdir(exist_ok=True)
        for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
            (inputs["tuned"] / name).write_text("{}")
        samples = {sample(t.task_id, i): verdict for t, found in tasks.items() for i, verdict in enumerate(found)}
        write_table(inputs["tasks"], Task, tasks)
        write_table(inputs["samples"], Sample, samples)
        judged = [Verdict(s.sample_id, "math", "1", verdict, None, "made", "{}") for s, verdict in samples.items()]
        write_table(inputs["verdicts"], Verdict, judged)
        output = tmp_path / "output"
        output.mkdir(exist_ok=True)
        report = run(config_of(**keys), inputs, output)
        lines = [json.loads(line) for line in (output / "rl_prompts.jsonl").read_text().splitlines()]
        return report, lines, output

    return make


def test_only_tasks_that_are_solved_sometimes_become_prompts(bundle):
    tasks = {
        task("sometimes"): ["pass", "fail", "unknown", "pass"],
        task("always"): ["pass", "pass"],
        task("never"): ["fail", "fail"],
        task("undecided"): ["unknown", "not_checked"],
        task("unsampled"): [],
        task("held out", split="heldout"): ["pass", "fail"],
        task("code", domain="code"): ["pass", "fail"],
    }
    report, lines, _ = bundle(tasks)
    assert [line["task_id"] for line in lines] == ["sometimes", "code"]
    assert (lines[0]["pass_rate"], lines[0]["num_samples"]) == (0.666667, 3)
    assert report == {
        "training_tasks": 6,
        "prompts": 2,
        "prompts_code": 1,
        "prompts_math": 1,
        "excluded_all_pass": 1,
        "excluded_all_fail": 1,
        "excluded_undecided": 2,
        "excluded_too_easy": 0,
        "excluded_too_hard": 0,
    }


@settings(max_examples=200)
@given(st.lists(st.integers(0, 4).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))), st.data())
def test_training_tasks_are_prompts_and_excluded(rates, data):
    above, below = sorted(
        data.draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]), min_size=2, max_size=2, unique=True))
    )
    config = config_of(pass_rate_above=above, pass_rate_below=below)
    found = [excluded_as(Rate(*rate), config) for rate in rates]
    assert set(found) <= {None, *EXCLUDED}
    for (passed, decided), reason in zip(rates, found, strict=True):
        assert (reason is None) == (0 < passed < decided and above < passed / decided < below)


def test_bounds_leave_out_the_easy_and_the_hard(bundle):
    tasks = {
        task("easy"): ["pass"] * 3 + ["fail"],
        task("hard"): ["fail"] * 3 + ["pass"],
        task("even"): ["pass", "fail"],
    }
    report, lines, _ = bundle(tasks, pass_rate_above=0.25, pass_rate_below=0.75)
    assert [line["task_id"] for line in lines] == ["even"]
    assert (report["excluded_too_easy"], report["excluded_too_hard"]) == (1, 1)


def test_a_line_has_the_shape_that_rl_trainers_read():
    row = prompt_row(task("1 + 11?"), Rate(1, 4))
    assert row["prompt"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 11?"}]
    assert row["answer"] == "12"
    assert json.loads(row["info"])["reference"] == MATH
    code = prompt_row(task("add", domain="code"), Rate(1, 4))
    assert (code["answer"], json.loads(code["info"])["reference"]) == ("", CODE)


@pytest.mark.slow
def test_load_dataset_reads_the_prompts_with_one_type_a_column(bundle, tmp_path):
    from datasets import load_dataset

    tasks = {task("a"): ["pass", "fail"], task("b", domain="code"): ["pass", "fail"]}
    _, lines, output = bundle(tasks)
    rows = load_dataset(
        "json", data_files=str(output / "rl_prompts.jsonl"), split="train", cache_dir=tmp_path / "cache"
    )
    assert [dict(row) for row in rows] == lines


def test_the_manifest_names_every_file_by_content(bundle):
    _, _, output = bundle({task("a"): ["pass", "fail"]}, reasoning_parser="deepseek_r1")
    manifest = json.loads((output / "manifest.json").read_text())
    assert {path.name for path in output.iterdir()} == {*manifest["files"], "manifest.json"}
    for name, said in manifest["files"].items():
        assert said["sha256"] == sha256_of(output / name)
    model = json.loads((output / "model.json").read_text())
    assert model["reasoning_parser"] == "deepseek_r1"
    assert {"config.json", "model.safetensors", "tokenizer_config.json"} == set(model["files"])


def test_equal_inputs_give_equal_bytes(bundle):
    tasks = {task(f"t{i}"): ["pass", "fail"] for i in range(20)}
    _, _, output = bundle(tasks)
    first = {path.name: path.read_bytes() for path in output.iterdir()}
    assert {path.name: path.read_bytes() for path in bundle(tasks)[2].iterdir()} == first


def test_a_folder_without_a_model_is_refused(bundle, tmp_path):
    bundle({task("a"): ["pass", "fail"]})
    (tmp_path / "tuned/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"lacks \*.safetensors"):
        run(config_of(), {"tuned": tmp_path / "tuned"}, tmp_path / "output")


def test_a_sample_without_a_verdict_is_refused(bundle, tmp_path):
    bundle({task("a"): ["pass", "fail"]})
    write_table(tmp_path / "verdicts", Verdict, [])
    inputs = {name: tmp_path / name for name in ("tuned", "tasks", "samples", "verdicts")}
    with pytest.raises(UserError, match="no verdict for sample a/0"):
        run(config_of(), inputs, tmp_path / "output")


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(UserError, match="no rate lies above"):
        config_of(pass_rate_above=0.5, pass_rate_below=0.5)
