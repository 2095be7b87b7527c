"""Real DeepSpeed on two ranks with a tiny random Llama, against plain torch; a kill; the refusals."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.errors import UserError
from pipeline.records import Trace
from pipeline.shards import shard_paths, write_table
from stages import pack, sft
from tests.made_traces import trace
from tests.tiny_models import CHATML, write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
STEPS = 24
RECIPE = {
    "learning_rate": 1.0e-3,
    "epochs": 3,
    "rows_per_step": 4,  # two micro-batches on each of two ranks
    "dtype": "float32",
    "save_dtype": "float32",
    "activation_checkpointing": False,
    "save_steps": 5,
}


def write_inputs(folder):
    """A model and 31 packed rows: 93 in three epochs, so that the last step needs three filler rows."""
    model = write_tiny_llama(folder / "model")
    traces = [trace(f"Question {n}?", f"The answer is {n}. " * (1 + n % 5)) for n in range(66)]
    write_table(folder / "traces", Trace, traces)
    packing = pack.Config.model_validate({"phase": "p", "phases": {"p": {"row_length": 192}}})
    pack.run(packing, {"traces": folder / "traces", "tokenizer": model}, folder / "packed")
    return {"packed": folder / "packed", "init": model}


def config(**values):
    return sft.Config.model_validate({"phase": "p", "phases": {"p": {**RECIPE, **values}}})


class Run:
    """`warmstart sft` as a process of its own in a folder of its own."""

    def __init__(self, folder: Path, inputs: dict[str, Path], **values):
        self.folder = folder
        folder.mkdir()
        (folder / "sft.yaml").write_text(yaml.safe_dump({"phase": "p", "phases": {"p": {**RECIPE, **values}}}))
        named = [word for name, path in inputs.items() for word in ("--in", f"{name}={path}")]
        self.command = [sys.executable, "-m", "pipeline", "sft", "--config", "sft.yaml", *named]
        self.command += ["--out", "data/sft", "--report", "report.json"]
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(self):
        with (self.folder / "stage.log").open("ab") as log:
            return subprocess.Popen(
                self.command, cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )

    def finish(self):
        assert self.start().wait(timeout=300) == 0, (self.folder / "stage.log").read_text()[-6000:]
        return json.loads((self.folder / "report.json").read_text())

    @property
    def output(self):
        return self.folder / "data/sft"

    def found(self, pattern):
        return list((self.folder / ".work").rglob(pattern)) if (self.folder / ".work").exists() else []

    def losses(self):
        with (self.output / "losses.csv").open() as file:
            return [float(row["loss"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def finished(inputs, tmp_path_factory):
    run = Run(tmp_path_factory.mktemp("whole") / "run", inputs)
    return run, run.finish()


def torch_baseline(inputs, epochs, rows_per_step, learning_rate, steps_taken):
    """First losses of plain torch on one process: every document by itself, mean over a step's trained tokens."""
    import torch
    from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup

    from pipeline.train.rows import plan_order

    rows = [row for path in shard_paths(inputs["packed"], "packed") for row in pq.read_table(path).to_pylist()]
    order = plan_order(len(rows), epochs, rows_per_step, 0)
    steps = len(order) // rows_per_step
    model = AutoModelForCausalLM.from_pretrained(inputs["init"], dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    scheduler = get_cosine_schedule_with_warmup(optimizer, round(0.1 * steps), steps)
    losses = []
    for step in range(steps_taken):
        total, count = torch.tensor(0.0), 0
        for number in order[step * rows_per_step : (step + 1) * rows_per_step]:
            at = 0
            for length in rows[number]["seq_lengths"] if number < len(rows) else []:
                ids, labels = (torch.tensor([rows[number][key][at : at + length]]) for key in ("input_ids", "labels"))
                logits = model(ids).logits[0, :-1]
                total = total + torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="sum")
                count += int((labels[0, 1:] != -100).sum())
                at += length
        loss = total / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_a_deepspeed_engine_on_two_ranks_sees_every_row_as_often_as_planned(inputs, finished):
    run, report = finished
    rows = json.loads((inputs["packed"] / "packing.json").read_text())
    assert rows["rows"] == 31
    assert (report["engine"], report["zero_stage"], report["world_size"]) == ("DeepSpeedEngine", 2, 2)
    assert report["steps"] == STEPS == len(run.losses()) == -(-rows["rows"] * 3 // 4)
    assert report["rows_seen"] == 3 * rows["rows"]
    assert report["tokens"] == 3 * rows["tokens"] and report["trained_tokens"] == 3 * rows["trained_tokens"]
    assert report["reload_max_abs_diff"] == 0 and report["resumed_at"] == 0
    assert report["loss_last"] < 0.9 * report["loss_first"]


@pytest.mark.slow
def test_its_losses_are_those_of_plain_torch_on_unpacked_documents(inputs, finished):
    run, _ = finished
    assert run.losses()[:8] == pytest.approx(torch_baseline(inputs, 3, 4, 1.0e-3, 8), rel=1e-4)


@pytest.mark.slow
def test_the_output_is_a_model_folder_that_generates(inputs, finished):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, report = finished
    model = AutoModelForCausalLM.from_pretrained(run.output, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(run.output, local_files_only=True)
    assert tokenizer.chat_template == CHATML
    assert model.generation_config.eos_token_id == 0
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert model.generate(**prompt.convert_to_tensors("pt", prepend_batch_axis=True), max_new_tokens=3).shape[0] == 1
    manifest = json.loads((run.output / "warmstart.json").read_text())
    assert manifest["engine"] == "DeepSpeedEngine" and manifest["loss_last"] == report["loss_last"]
    assert tensor_names(run.output) == tensor_names(inputs["init"])
    assert not run.found("checkpoint-*")


def tensor_names(folder):
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint_and_ends_alike_under_zero_3(inputs, finished, tmp_path):
    whole, _ = finished
    run = Run(tmp_path / "run", inputs, zero_stage=3)
    stage = run.start()
    deadline = time.monotonic() + 200
    while not run.found("complete.json"):
        assert stage.poll() is None and time.monotonic() < deadline, (run.folder / "stage.log").read_text()[-6000:]
        time.sleep(0.02)
    family = psutil.Process(stage.pid).children(recursive=True)
    stage.send_signal(signal.SIGKILL)
    stage.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive, "a SIGKILLed stage left ranks behind"
    assert not run.found("result.json")
    report = run.finish()
    assert 5 <= report["resumed_at"] < STEPS
    assert (report["zero_stage"], report["steps"], report["reload_max_abs_diff"]) == (3, STEPS, 0)
    assert report["rows_seen"] == 3 * report["rows"]
    assert run.losses() == pytest.approx(whole.losses(), rel=1e-4)
    assert tensor_names(run.output) == tensor_names(whole.output)
    assert largest_difference(run.output, whole.output) < 1e-4


def largest_difference(first, second):
    from safetensors.torch import load_file

    one, other = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def test_rows_that_the_ranks_cannot_share_evenly_are_refused(inputs, tmp_path):
    with pytest.raises(UserError, match="3 rows cannot be shared evenly by 2 ranks"):
        sft.run(config(rows_per_step=3), inputs, tmp_path / "out")


def test_rows_packed_with_another_template_are_refused(inputs, tmp_path):
    other = write_tiny_llama(tmp_path / "other", template=CHATML + "{# another #}")
    with pytest.raises(UserError, match="packed with another template"):
        sft.run(config(), {**inputs, "init": other}, tmp_path / "out")


def test_a_folder_that_is_no_model_or_no_pack_and_an_unknown_phase_are_refused(inputs, tmp_path):
    with pytest.raises(UserError, match="no Hugging Face model folder"):
        sft.run(config(), {**inputs, "init": tmp_path}, tmp_path / "out")
    with pytest.raises(UserError, match=r"holds no packing\.json"):
        sft.run(config(), {**inputs, "packed": tmp_path}, tmp_path / "out")
    with pytest.raises(UserError, match="there is no phase `q`; the phases are p"):
        sft.run(config().model_copy(update={"phase": "q"}), inputs, tmp_path / "out")


@pytest.mark.slow
def test_a_run_that_fails_shows_the_end_of_its_log(inputs, tmp_path, monkeypatch):
    broken = write_tiny_llama(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not weights")
    machine = tmp_path / "one.yaml"
    machine.write_text("training: {ranks: 1}\n")
    monkeypatch.setenv("WARMSTART_MACHINE", str(machine))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "work" / "out").mkdir(parents=True)
    with contextlib.chdir(tmp_path), pytest.raises(RuntimeError, match=r"(?s)exit code 1; .*(safetensors|header)"):
        sft.run(config(), {**inputs, "init": broken}, tmp_path / "work" / "out")
