"""Fine-tune a model on packed rows with DeepSpeed.

In: packed rows and the model folder to start from. Out: the tuned model as a Hugging Face folder, reloaded and
compared tensor by tensor before it counts, with `warmstart.json` (what was trained on what), `metrics.jsonl` and
`losses.csv` (one line per optimizer step). Every packed row is seen exactly `epochs` times, also after a kill.

    warmstart sft --config configs/demo/sft.yaml --set phase=general --in packed=data/demo/pack/general \\
        --in init=data/demo/base --out data/demo/sft/general --report reports/demo/sft/general.json
"""

import csv
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.chat.template import load_chat_format
from pipeline.config import Machine, PhasedConfig, load_machine
from pipeline.errors import UserError
from pipeline.launch.torchrun import run_training
from pipeline.records import Report
from pipeline.shards import read_manifest, write_json, write_text
from pipeline.train.metrics import read_metrics
from pipeline.train.recipe import TrainRecipe, TrainSpec
from pipeline.train.rows import PACKED_TABLE, plan_order
from pipeline.work import fingerprint, progress_folder

INPUTS: Mapping[str, str] = {
    "packed": "packed rows of the phase",
    "init": "model folder to start from",
}
CODE_IN_DIGEST = False
"""A comment in the code must never cost a training run; versions are recorded in warmstart.json instead."""


class PhaseConfig(TrainRecipe):
    """How one phase is trained."""


class Config(PhasedConfig[PhaseConfig]):
    """Which phase to train, and how."""


def check_inputs(config: Config, inputs: Mapping[str, Path], machine: Machine) -> None:
    """Raise UserError for what would fail, or go wrong in silence, after the ranks have started."""
    phase, ranks = config.chosen(), machine.training.ranks
    if phase.rows_per_step % ranks:
        raise UserError(
            f"phases.{config.phase}.rows_per_step: {phase.rows_per_step} rows cannot be shared evenly by {ranks} "
            "ranks (training.ranks of the machine file); make one a multiple of the other"
        )
    for name in ("config.json", "tokenizer_config.json"):
        if not (inputs["init"] / name).is_file():
            raise UserError(f"--in init={inputs['init']}: is no Hugging Face model folder: it lacks {name}")
    packing = inputs["packed"] / "packing.json"
    if not packing.is_file():
        raise UserError(f"--in packed={inputs['packed']}: holds no packing.json; give the output of `warmstart pack`")
    packed = json.loads(packing.read_text(encoding="utf-8"))
    for part, digest in load_chat_format(inputs["init"]).digest().items():
        if packed[part] != digest:
            raise UserError(
                f"{packing}: the rows were packed with another {part} than that of {inputs['init']}; pack them again "
                "with this model's folder as --in tokenizer"
            )


def tidy_metrics(lines: list[dict[str, Any]], output: Path) -> None:
    """The run's lines without timings, and the plot of the loss."""
    kept = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    write_text(output / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
    with (output / "losses.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["step", "loss", "learning_rate"], extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Train one phase and describe what came out."""
    phase, machine = config.chosen(), load_machine()
    check_inputs(config, inputs, machine)
    rows = min(read_manifest(inputs["packed"], PACKED_TABLE).rows, config.limit or 2**63)
    spec = TrainSpec(
        recipe=phase,
        init=inputs["init"].resolve(),
        packed=inputs["packed"].resolve(),
        output=output.resolve(),
        progress=progress_folder(output).resolve(),
        device=machine.training.device,
        seed=config.seed,
        limit=config.limit,
    )
    steps = len(plan_order(rows, phase.epochs, phase.rows_per_step, config.seed)) // phase.rows_per_step
    run_training(spec, machine, steps)
    result = json.loads(spec.result.read_text(encoding="utf-8"))
    lines = read_metrics(spec.metrics)
    tidy_metrics(lines, output)
    resumed_at = result.pop("resumed_at")
    report: Report = {
        **result,
        "tokens": sum(line["tokens"] for line in lines),
        "trained_tokens": sum(line["trained_tokens"] for line in lines),
        "loss_first": lines[0]["loss"],
        "loss_last": lines[-1]["loss"],
    }
    write_json(
        output / "warmstart.json",
        {
            "phase": config.phase,
            "seed": config.seed,
            "recipe": phase.model_dump(mode="json"),
            **report,
            "inputs": {name: fingerprint(path) for name, path in sorted(inputs.items())},
            "versions": {name: version(name) for name in ("torch", "transformers", "trl", "deepspeed", "accelerate")},
        },
    )
    seconds = sum(line["seconds"] for line in lines)
    return {**report, "resumed_at": resumed_at, "tokens_per_s": round(int(report["tokens"]) / seconds, 1)}
