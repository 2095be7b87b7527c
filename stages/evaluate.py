"""Measure base and tuned model on the held-out tasks, with the same prompts, sampling and verifiers.

In: tasks and the two model folders. Out: `base/` and `tuned/`, each with `samples/` and `verdicts/`, and
`accuracy.csv` for plots. Accuracy counts `pass` among all tasks (an `unknown` verdict is no pass), with Wilson 95 %
intervals; base against tuned by McNemar's exact test on the tasks that exactly one of the two solves.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import Field

from pipeline.config import Machine, StageConfig, load_machine
from pipeline.engine import LocalEngine, Sampler, Sampling, SamplingCounts, Teacher
from pipeline.errors import UserError
from pipeline.ledger import Ledger
from pipeline.records import Report, Sample, Task, Verdict
from pipeline.shards import iter_table, write_table
from pipeline.verdicts import Judge
from pipeline.verify import Limits
from pipeline.work import progress_folder

INPUTS = {
    "tasks": "output of the stage tasks",
    "base": "model folder before fine-tuning",
    "tuned": "model folder after fine-tuning",
}
MODELS = ("base", "tuned")


class Config(StageConfig):
    """How both models are asked and judged."""

    engine: LocalEngine = Field(default_factory=LocalEngine)
    """The server that both models run on."""
    sampling: Sampling = Field(default_factory=lambda: Sampling(temperature=0.0, top_p=1.0, max_tokens=512))
    """Greedy by default."""
    limits: Limits = Field(default_factory=Limits)
    """Limits of the verifiers; keep them equal to those of the stage verify."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Passes among tasks with a Wilson 95 % interval."""

    passed: int
    tasks: int
    accuracy: float
    low: float
    high: float


def accuracy_of(passed: Sequence[bool]) -> Accuracy:
    """Accuracy with its Wilson score interval (Wilson 1927), which stays within 0..1 for small counts."""
    from scipy.stats import binomtest

    interval = binomtest(sum(passed), len(passed)).proportion_ci(0.95, method="wilson")
    share = sum(passed) / len(passed)
    return Accuracy(sum(passed), len(passed), round(share, 4), round(interval.low, 4), round(interval.high, 4))


def paired_p_value(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Two-sided p of McNemar's exact test: among tasks that one of two models solves, is either share one half?"""
    from scipy.stats import binomtest

    only_first = sum(a and not b for a, b in zip(first, second, strict=True))
    only_second = sum(b and not a for a, b in zip(first, second, strict=True))
    if only_first + only_second == 0:
        return 1.0
    return float(binomtest(only_second, only_first + only_second, 0.5).pvalue)


def answer_and_judge(
    name: str, tasks: Sequence[Task], config: Config, model: Path, output: Path, machine: Machine
) -> tuple[list[bool], SamplingCounts]:
    """Sample every task once with one model and judge the answers; returns passes in task order."""
    teacher = Teacher(name=name, engine=config.engine, sampling=config.sampling)
    with Ledger(machine.ledger) as ledger:
        with Sampler(teacher, model, config.seed, machine, ledger, progress_folder(output)) as sampler:
            samples = sampler.ask_and_collect(tasks, [0])
    if sampler.lost:
        why = next(iter(sampler.lost.values()))
        raise UserError(f"{len(sampler.lost)} of {len(tasks)} answers of {name} could not be had; the first: {why}")
    write_table(output / name, Sample, samples)
    by_id = {task.task_id: task for task in tasks}
    with Judge(config.limits, machine) as judge:
        verdicts = [verdict for _, verdict in judge.verdicts(lambda ids: by_id, samples, len(samples))]
    write_table(output / name, Verdict, verdicts)
    return [verdict.verdict == "pass" for verdict in verdicts], sampler.counts


def compare(tasks: Sequence[Task], passed: Mapping[str, Sequence[bool]]) -> Report:
    """Accuracies of both models over all tasks and per domain, and the paired test."""
    report: Report = {"tasks": len(tasks)}
    for domain in (None, *sorted({task.domain for task in tasks})):
        chosen = [i for i, task in enumerate(tasks) if domain in (None, task.domain)]
        infix = "" if domain is None else f"{domain}_"
        if domain is not None:
            report[f"{domain}_tasks"] = len(chosen)
        for model in MODELS:
            result = accuracy_of([passed[model][i] for i in chosen])
            report[f"{model}_{infix}accuracy"] = result.accuracy
            report[f"{model}_{infix}low"], report[f"{model}_{infix}high"] = result.low, result.high
    base, tuned = passed["base"], passed["tuned"]
    report["only_base"] = sum(a and not b for a, b in zip(base, tuned, strict=True))
    report["only_tuned"] = sum(b and not a for a, b in zip(base, tuned, strict=True))
    report["paired_p_value"] = round(paired_p_value(base, tuned), 6)
    return report


def write_accuracy_table(path: Path, domains: Iterable[str], report: Report) -> None:
    """model,domain,accuracy,low,high: the rows behind `dvc plots show`."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["model", "domain", "accuracy", "low", "high"])
        for model in MODELS:
            for domain in ("all", *domains):
                infix = "" if domain == "all" else f"{domain}_"
                rows.writerow(
                    [model, domain, *(report[f"{model}_{infix}{key}"] for key in ("accuracy", "low", "high"))]
                )


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Answer and judge with both models, one after the other, and compare."""
    machine = load_machine()
    heldout = (task for task in iter_table(inputs["tasks"], Task) if task.split == "heldout")
    tasks = list(islice(heldout, config.limit))
    if not tasks:
        raise UserError(f"{inputs['tasks']}: holds no held-out task; raise heldout_fraction in the config of `tasks`")
    passed: dict[str, list[bool]] = {}
    counters: Report = {}
    for model in MODELS:
        passed[model], counts = answer_and_judge(model, tasks, config, inputs[model], output, machine)
        counters[f"{model}_requests_sent"] = counts.requests_sent
        counters[f"{model}_server_requests"] = counts.server_requests
        counters[f"{model}_server_generated_tokens"] = counts.server_generated_tokens
    report = compare(tasks, passed)
    write_accuracy_table(output / "accuracy.csv", sorted({task.domain for task in tasks}), report)
    return report | counters
