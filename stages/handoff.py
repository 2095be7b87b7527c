"""Make the bundle that an RL run starts from: the tuned model and the prompts it can learn from.

in:   tuned     model folder, output of the last phase of `sft`
      tasks, samples, verdicts  the outputs of `tasks`, `generate` and `verify`
out:  rl_prompts.jsonl  training tasks that are neither always solved nor never, in the order of the tasks
      model.json        where the model lies, sha256 of its files, and the parsers to serve it with
      manifest.json     sha256 of both

A line of rl_prompts.jsonl: `prompt` is a list of messages, `answer` the expected answer (empty where tests decide), and
`info` a JSON text with the verifier and its whole reference. A task whose samples were judged pass, fail, unknown and
pass has `pass_rate` 0.6667 over `num_samples` 3: only what was decided counts.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from pipeline.config import StageConfig
from pipeline.errors import UserError
from pipeline.records import Report, Sample, Task, Verdict, canonical_json
from pipeline.shards import iter_table, sha256_of, write_json

INPUTS: Mapping[str, str] = {
    "tuned": "model folder, output of the last phase of `sft`",
    "tasks": "tasks, output of `tasks`",
    "samples": "samples that pass rates come from, output of `generate`",
    "verdicts": "verdicts on them, output of `verify`",
}
EXCLUDED = ("all_pass", "all_fail", "undecided", "too_easy", "too_hard")
"""Why a training task is no RL prompt."""


class Config(StageConfig):
    """Which tasks become RL prompts, and how the model is served. Held-out tasks never do."""

    pass_rate_above: float = Field(0.0, ge=0, lt=1)
    """Tasks must be solved more often than this; 0 leaves out only those never solved."""
    pass_rate_below: float = Field(1.0, gt=0, le=1)
    """Tasks must be solved less often than this; 1 leaves out only those always solved."""
    reasoning_parser: str | None = None
    """vLLM's `--reasoning-parser` for the model."""
    tool_call_parser: str | None = None
    """vLLM's `--tool-call-parser` for the model."""
    renderer: str | None = None
    """prime-rl's renderer for the model, whose own matching by name never finds a fine-tune."""

    @model_validator(mode="after")
    def _pass_rates_are_in_order(self) -> "Config":
        if self.pass_rate_above >= self.pass_rate_below:
            raise ValueError(f"no rate lies above {self.pass_rate_above} and below {self.pass_rate_below}")
        return self


@dataclass(frozen=True, slots=True)
class Rate:
    """Passes among the decided samples of a task."""

    passed: int = 0
    decided: int = 0

    @property
    def value(self) -> float:
        """The pass rate; 0 where nothing was decided."""
        return self.passed / self.decided if self.decided else 0.0


def pass_rates(samples: Iterable[Sample], verdicts: Path) -> dict[str, Rate]:
    """Pass rates by task. Holds ids and counts, no texts. Raises UserError for a sample without a verdict."""
    found = {row.sample_id: row.verdict for row in iter_table(verdicts, Verdict)}
    counts: dict[str, Counter[str]] = {}
    for sample in samples:
        if sample.sample_id not in found:
            raise UserError(f"{verdicts}: no verdict for sample {sample.sample_id}; run verify on these samples again")
        counts.setdefault(sample.task_id, Counter())[found[sample.sample_id]] += 1
    return {name: Rate(count["pass"], count["pass"] + count["fail"]) for name, count in counts.items()}


def excluded_as(rate: Rate, config: Config) -> str | None:
    """Why a task with this pass rate is no RL prompt, None if it is one."""
    rules = (
        ("undecided", rate.decided == 0),
        ("all_fail", rate.passed == 0),
        ("all_pass", rate.passed == rate.decided),
        ("too_hard", rate.value <= config.pass_rate_above),
        ("too_easy", rate.value >= config.pass_rate_below),
    )
    return next((reason for reason, holds in rules if holds), None)


def prompt_row(task: Task, rate: Rate) -> dict[str, Any]:
    """One line of rl_prompts.jsonl."""
    reference = json.loads(task.reference) if task.reference else {}
    info = {
        "verifier": task.verifier,
        "reference": reference,
        "tools": json.loads(task.tools) if task.tools else [],
        "source": task.source,
        "source_id": task.source_id,
        "license": task.license,
        "prompt_id": task.prompt_id,
    }
    return {
        "task_id": task.task_id,
        "prompt": json.loads(task.messages),
        "answer": str(reference.get("answer", "")),
        "info": canonical_json(info),
        "verifier": task.verifier,
        "domain": task.domain,
        "pass_rate": round(rate.value, 6),
        "num_samples": rate.decided,
    }


def describe_model(folder: Path, config: Config) -> dict[str, Any]:
    """What model.json says. Raises UserError where the folder is no Hugging Face model."""
    for pattern in ("config.json", "tokenizer_config.json", "*.safetensors"):
        if not list(folder.glob(pattern)):
            raise UserError(f"--in tuned={folder}: is no Hugging Face model folder: it lacks {pattern}")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    generation = folder / "generation_config.json"
    stops = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id") if generation.is_file() else None
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {
        "path": folder.as_posix(),
        "architectures": settings.get("architectures"),
        "dtype": settings.get("dtype"),
        "eos_token_id": settings.get("eos_token_id") if stops is None else stops,
        "reasoning_parser": config.reasoning_parser,
        "tool_call_parser": config.tool_call_parser,
        "renderer": config.renderer,
        "files": {
            path.relative_to(folder).as_posix(): {"sha256": sha256_of(path), "bytes": path.stat().st_size}
            for path in files
        },
    }


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Write prompts, the description of the model, and the manifest of both."""
    write_json(output / "model.json", describe_model(inputs["tuned"], config))
    rates = pass_rates(iter_table(inputs["samples"], Sample), inputs["verdicts"])
    excluded: Counter[str] = Counter()
    domains: Counter[str] = Counter()

    def lines() -> Iterator[str]:
        for task in itertools.islice(iter_table(inputs["tasks"], Task), config.limit):
            if task.split != "train":
                continue
            rate = rates.get(task.task_id, Rate())
            domains.setdefault(task.domain, 0)
            if reason := excluded_as(rate, config):
                excluded[reason] += 1
                continue
            domains[task.domain] += 1
            yield canonical_json(prompt_row(task, rate)) + "\n"

    with (output / "rl_prompts.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(lines())
    names = ("model.json", "rl_prompts.jsonl")
    files = {name: {"sha256": sha256_of(output / name), "bytes": (output / name).stat().st_size} for name in names}
    write_json(output / "manifest.json", {"files": files, "prompts": domains.total()})
    return {
        "training_tasks": domains.total() + excluded.total(),
        "prompts": domains.total(),
        **{f"prompts_{domain}": domains[domain] for domain in sorted(domains)},
        **{f"excluded_{reason}": excluded[reason] for reason in EXCLUDED},
    }
