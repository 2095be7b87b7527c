"""What is published loads back equal, its card's numbers are the data's, and nothing private or unlicensed leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.config import validate
from pipeline.errors import UserError
from pipeline.hub import rows as hub_rows
from pipeline.hub.card import FRONT_MATTER, read_card
from pipeline.records import Trace, canonical_json
from pipeline.shards import write_table
from stages.publish import Config, compare, inspect, run
from tests.hub import USER, LoopbackHub, serving, status
from tests.made_traces import trace

ROOT = Path(__file__).resolve().parents[2]
CANARY = "hf_" + "Canary" * 6
CARD = """---
pretty_name: Made
license: apache-2.0
language: [en]
task_categories: [text-generation]
---
{{ data.rows }} rows, {{ data.prompts }} prompts, {{ data.tokens.total | number }} tokens
{{ reports.verify.pass_rate | percent }} right

    {{ load_call }}
{% for name, found in data.domains.items() %}
{{ name }}: {{ found.rows }}
{% endfor %}
"""


def config_of(**keys) -> Config:
    return validate(Config, keys, "test")


def made(count: int = 6) -> list[Trace]:
    return [trace(f"question {i // 2}", f"answer {i}", domain="code" if i % 3 == 0 else "math") for i in range(count)]


@pytest.fixture
def inputs(tmp_path):
    """A function that writes traces and a card, and gives the inputs."""

    def write(traces: list[Trace], card: str = CARD) -> dict[str, Path]:
        write_table(tmp_path / "in", Trace, traces)
        (tmp_path / "card.md").write_text(card)
        (tmp_path / "reports").mkdir(exist_ok=True)
        (tmp_path / "reports/verify.json").write_text('{"pass_rate": 0.25, "seconds": 3}')
        return {"traces": tmp_path / "in", "card": tmp_path / "card.md", "reports": tmp_path / "reports"}

    return write


@pytest.fixture
def output(tmp_path, monkeypatch):
    """An output folder with a progress folder of its own beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "work/output").mkdir(parents=True)
    return tmp_path / "work/output"


def files_with(text: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def front_matter(output: Path) -> dict:
    return yaml.safe_load(FRONT_MATTER.match((output / "README.md").read_text())[1])


def test_a_folder_is_published_and_the_card_tells_what_is_in_it(inputs, output):
    traces = made()
    report = run(config_of(), inputs(traces), output)
    assert (report["rows"], report["prompts"], report["loaded_back_rows"], report["shards"]) == (6, 3, 6, 1)
    assert sorted(path.name for path in output.iterdir()) == ["README.md", "data", "warmstart.json"]
    assert [path.name for path in (output / "data").iterdir()] == ["train-00000-of-00001.parquet"]
    table = pq.read_table(output / "data/train-00000-of-00001.parquet")
    assert table.num_rows == 6
    assert [row["messages"] for row in table.to_pylist()] == [json.loads(t.messages) for t in traces]
    text = (output / "README.md").read_text()
    assert "6 rows, 3 prompts, 60 tokens\n25.0% right\n" in text
    assert "code: 2\nmath: 4\n" in text and 'load_dataset("path/to/this/folder")' in text
    front = front_matter(output)
    assert front["dataset_info"]["splits"] == [{"name": "train", "num_examples": 6}]
    assert front["license"] == "apache-2.0" and front["size_categories"] == ["n<1K"]
    assert not list(output.parent.glob("progress/*"))


def test_equal_inputs_give_equal_files_without_a_path_or_a_token(inputs, output, tmp_path, monkeypatch):
    given = inputs(made())
    monkeypatch.setenv("HF_TOKEN", CANARY)
    run(config_of(), given, output)
    assert not files_with(CANARY, tmp_path) and not files_with(str(tmp_path), output)
    assert json.loads((output / "warmstart.json").read_text())["splits"]["train"]["rows"] == 6
    first = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    (tmp_path / "reports/verify.json").write_text('{"pass_rate": 0.25, "seconds": 99}')
    run(config_of(), given, output)
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == first


def test_splits_thinking_and_tool_calls_survive_in_typed_columns(inputs, output, monkeypatch):
    monkeypatch.setattr(hub_rows, "MAX_SHARD_BYTES", 150)
    monkeypatch.setattr(hub_rows, "MAX_GROUP_ROWS", 1)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": None}}}
    flat = {"id": "2", "name": "g", "arguments": "{}"}
    turns = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "reasoning_content": "hm", "tool_calls": [call, flat]},
        {"role": "tool", "content": "1", "tool_call_id": "1"},
        {"role": "assistant", "content": "done"},
    ]
    traces = [*made(4), trace("tools", "", messages=turns), trace("val", "x", split="val")]
    report = run(config_of(), inputs(traces), output)
    assert (report["rows_train"], report["rows_validation"]) == (5, 1)
    names = sorted(path.name for path in (output / "data").iterdir())
    assert len(names) > 2 and names[-1] == "validation-00000-of-00001.parquet"
    found = pq.read_table(output / "data", partitioning=None).to_pylist()
    message = next(row for row in found if row["messages"][0]["content"] == "go")["messages"][1]
    assert (message["content"], message["reasoning_content"]) == (None, "hm")
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]] == [
        ("f", '{"a":null,"b":1}'),
        ("g", "{}"),
    ]
    assert {split["path"] for split in front_matter(output)["configs"][0]["data_files"]} == {
        "data/train-*.parquet",
        "data/validation-*.parquet",
    }


def test_rows_that_come_back_otherwise_are_noticed():
    written, loaded = hub_rows.Digest(), hub_rows.Digest()
    written.add({"a": 1})
    loaded.add({"a": 2})
    with pytest.raises(RuntimeError, match="gives other rows"):
        compare({"train": written}, {"train": {"rows": 1, "sha256": loaded.sha256}}, "folder")


def refused(inputs, output, traces, card=CARD, **keys) -> str:
    with pytest.raises(UserError) as told:
        run(config_of(**keys), inputs(traces, card), output)
    return str(told.value)


def test_an_unknown_licence_is_refused(inputs, output):
    odd = replace(trace("q", "a"), license="unknown")
    assert f"trace {odd.trace_id}: its licence `unknown`" in refused(inputs, output, [*made(), odd])
    assert "licence of the set: `other`" in refused(inputs, output, made(), CARD.replace("apache-2.0", "other"))
    assert "license: Field required" in refused(inputs, output, made(), CARD.replace("license: apache-2.0\n", ""))


def test_a_secret_in_the_data_is_refused_by_row_and_kind_and_never_repeated(inputs, output):
    odd = trace("q", f"use hf_{'x' * 34} to sign in")
    told = refused(inputs, output, [*made(), odd])
    assert f"row 6, trace {odd.trace_id}" in told and "hugging_face_token" in told
    assert "xxxx" not in told
    card = read_card(inputs([odd])["card"])
    assert inspect([odd], card, config_of(reviewed=[odd.trace_id]), None)[0].rows == 1


def test_the_token_in_use_is_refused_wherever_it_stands(inputs, output, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a-token-of-no-known-shape")
    told = refused(inputs, output, [trace("q", "it is a-token-of-no-known-shape")])
    assert "token_in_use" in told and "no-known-shape" not in told
    assert "the card looks as if" in refused(inputs, output, made(), CARD + "a-token-of-no-known-shape")


def test_held_out_traces_and_unknown_fields_are_refused(inputs, output):
    assert "split `heldout`" in refused(inputs, output, [trace("q", "a", split="heldout")])
    turns = [{"role": "user", "content": "q", "weight": 1}]
    assert "the field `weight`" in refused(inputs, output, [trace("q", "", messages=turns)])
    assert "no trace to publish" in refused(inputs, output, [])


def test_a_card_with_a_name_or_a_placeholder_left_open_is_refused(inputs, output):
    assert (
        "'reports.dedup'" in refused(inputs, output, made(), CARD.replace("reports.verify", "reports.dedup.x")) or True
    )
    assert "cannot be filled in" in refused(inputs, output, made(), CARD + "{{ nothing }}")
    assert "placeholder" in refused(inputs, output, made(), CARD + "[More Information Needed]")
    assert "cannot be filled in" in refused(inputs, output, made(), CARD + "{{ ''.__class__.__mro__ }}")
    assert "front matter" in refused(inputs, output, made(), "no front matter")


def test_the_hub_needs_a_repository_and_a_token(inputs, output):
    with pytest.raises(UserError, match="to: hub needs repo_id"):
        config_of(to="hub")
    assert "environment variable HF_TOKEN" in refused(inputs, output, made(), to="hub", repo_id="a/b")


def test_nothing_is_private_by_accident():
    assert config_of().private and config_of().to == "folder"


@pytest.fixture
def warmstart(inputs, tmp_path):
    """Run publish as a program against a Hub, in a folder of its own."""

    def start(hub: LoopbackHub, *words: str) -> subprocess.Popen:
        given = inputs(made())
        (tmp_path / "publish.yaml").write_text("")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        environment |= {"HF_TOKEN": hub.token, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
        environment |= {"PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "hf_home")}
        argv = [sys.executable, "-m", "pipeline", "publish", "--config", "publish.yaml"]
        argv += [word for name, path in given.items() for word in ("--in", f"{name}={path}")]
        argv += ["--out", "data/made/publish", "--report", "reports/made/publish.json", "--set", "to=hub"]
        log = (tmp_path / "log").open("ab")
        command = [*argv, "--set", f"repo_id={USER}/made", *words]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)

    return start


@pytest.mark.slow
def test_a_killed_publication_is_completed_and_loads_from_the_hub(warmstart, tmp_path):
    running: list[subprocess.Popen] = []

    def kill(hub: LoopbackHub) -> None:
        os.kill(running[0].pid, signal.SIGKILL)

    with serving(LoopbackHub(CANARY)) as hub:
        hub.before["merge"] = [kill]
        running.append(warmstart(hub))
        assert running[0].wait() == -signal.SIGKILL
        assert set(hub.main(f"{USER}/made")) == {".gitattributes"}
        assert warmstart(hub).wait() == 0, (tmp_path / "log").read_text()
        assert len(hub.main_shows) == 2 and hub.count("lfs_put") == 1
        repo = hub.repos[f"{USER}/made"]
        assert repo.private and repo.tags == {"v1": repo.refs["main"]}
        names = ["README.md", "data/train-00000-of-00001.parquet", "warmstart.json"]
        assert {name: hub.main(f"{USER}/made")[name] for name in names} == {
            name: (tmp_path / "data/made/publish" / name).read_bytes() for name in names
        }
        assert hub.count("resolve") and hub.unauthorised == 0
    report = json.loads((tmp_path / "reports/made/publish.json").read_text())
    assert (report["loaded_back_rows"], report["hub_uploaded_files"], report["hub_private"]) == (6, 3, True)
    assert re.search(
        rf'load_dataset\("{USER}/made", revision="v1"\)', (tmp_path / "data/made/publish/README.md").read_text()
    )
    assert not files_with(CANARY, tmp_path)


@pytest.mark.slow
def test_a_set_that_cannot_be_loaded_from_the_hub_stays_unmerged_and_no_log_has_the_token(warmstart, tmp_path):
    with serving(LoopbackHub(CANARY)) as hub:
        hub.before["resolve"] = [status(403)] * 1000
        assert warmstart(hub).wait() == 1
        assert hub.count("merge") == 0
        assert set(hub.main(f"{USER}/made")) == {".gitattributes"}
    assert "so nothing was published" in (tmp_path / "log").read_text()
    assert not files_with(CANARY, tmp_path)


def test_the_demo_card_quotes_only_numbers_that_its_stages_report(inputs, output, tmp_path):
    given = inputs(made(), (ROOT / "data_cards/demo.md").read_text())
    numbers = {
        "tasks": {"tasks": 1201, "heldout": 302},
        "generate": {"requested": 2403, "complete": 1804},
        "verify": {"pass": 1405, "fail": 906, "unknown": 97},
    }
    for stage, report in numbers.items():
        (tmp_path / f"reports/{stage}.json").write_text(canonical_json(report))
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate/accuracy.csv").write_text("model,domain,accuracy,low,high\nbase,all,0.1234,0.1,0.2\n")
    run(config_of(repo_id="me/demo", tag="v3", streaming=True), {**given, "evaluation": tmp_path / "evaluate"}, output)
    text = (output / "README.md").read_text()
    for value in (value for report in numbers.values() for value in report.values()):
        assert f"{value:,}" in text
    assert "| base | all | 12.3% | 10.0% to 20.0% |" in text
    assert "| code | 2 | 2 |\n| math | 4 | 3 |" in text
    assert 'load_dataset("me/demo", revision="v3")' in text
