"""Gather what a report shows from reports and tables; whatever is absent stays empty."""

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import UserError
from pipeline.records import Rejected, Report, Sample, Task, Trace, Verdict
from pipeline.report.charts import Point
from pipeline.shards import iter_table

Reports = Mapping[str, Report]
"""Flat numbers by stage, `sft/general` where a stage runs once a phase."""


def load_reports(folder: Path) -> dict[str, Report]:
    """Every report below a folder, by name. Raises UserError for one that is no JSON object."""
    reports = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{path}: not valid JSON ({error}); run the stage that writes it again") from None
        if not isinstance(value, dict):
            raise UserError(f"{path}: holds a {type(value).__name__}, but a report is an object of numbers")
        reports[path.relative_to(folder).with_suffix("").as_posix()] = value
    return reports


def load_losses(folder: Path, phases: Sequence[str] = ()) -> dict[str, list[Point]]:
    """(step, loss) by phase, from every `losses.csv` in or below a folder; named phases first, in their order."""

    def order(path: Path) -> tuple[int, str]:
        phase = path.parent.name
        return (phases.index(phase) if phase in phases else len(phases), phase)

    losses = {}
    for path in sorted(folder.rglob("losses.csv"), key=order):
        with path.open(newline="", encoding="utf-8") as file:
            losses[path.parent.name] = [(float(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
    return {phase: points for phase, points in losses.items() if points}


@dataclass(slots=True)
class Counts:
    """What the tables say, counted."""

    splits: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Reasons of the verifier for what it did not pass."""
    pass_rates: dict[str, list[float]] = field(default_factory=dict)
    """Pass rates of the judged tasks, by domain."""
    lengths: dict[str, list[int]] = field(default_factory=lambda: {"complete": [], "other": []})
    """Output tokens of complete and of other samples."""


def count_tables(tasks: Path | None, samples: Path | None, verdicts: Path | None) -> Counts:
    """Count tasks, samples and verdicts; holds ids and numbers, no texts."""
    counts = Counts()
    domains: dict[str, str] = {}
    for task in iter_table(tasks, Task) if tasks else ():
        counts.splits[task.split] += 1
        domains[task.task_id] = task.domain
    judged: dict[str, str] = {}
    for verdict in iter_table(verdicts, Verdict) if verdicts else ():
        judged[verdict.sample_id] = verdict.verdict
        counts.verdicts[verdict.verdict] += 1
        if verdict.verdict != "pass":
            counts.reasons[verdict.reason] += 1
    by_task: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in iter_table(samples, Sample) if samples else ():
        counts.outcomes[sample.outcome] += 1
        counts.lengths["complete" if sample.outcome == "complete" else "other"].append(sample.num_output_tokens)
        by_task[sample.task_id][judged.get(sample.sample_id, "unknown")] += 1
    rates: dict[str, list[float]] = defaultdict(list)
    for task_id, found in by_task.items():
        if found["pass"] + found["fail"]:
            rates[domains.get(task_id, "unknown")].append(found["pass"] / (found["pass"] + found["fail"]))
    counts.pass_rates = dict(sorted(rates.items()))
    return counts


@dataclass(frozen=True, slots=True)
class Overlap:
    """Prompts that stand both among training traces and held-out tasks."""

    trained: int
    heldout: int
    both: int


def count_overlap(tasks: Path, traces: Path) -> Overlap:
    """Compare the prompts of traces with those of held-out tasks."""
    heldout = {task.prompt_id for task in iter_table(tasks, Task) if task.split == "heldout"}
    trained = {trace.prompt_id for trace in iter_table(traces, Trace)}
    return Overlap(len(trained), len(heldout), len(trained & heldout))


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation to show, as (role, text) pairs."""

    title: str
    verdict: str
    kept: bool
    messages: tuple[tuple[str, str], ...]


def pick_kept(traces: Path, per_domain: int) -> list[Example]:
    """The first traces of each domain."""
    shown: Counter[str] = Counter()
    examples = []
    for trace in iter_table(traces, Trace):
        if shown[trace.domain] < per_domain:
            shown[trace.domain] += 1
            rate = "" if trace.pass_rate is None else f", pass rate of the task {trace.pass_rate:.2f}"
            title = f"{trace.domain}, {trace.source}{rate}"
            examples.append(Example(title, "kept", True, _turns(trace.messages)))
    return examples


def pick_rejected(traces: Path, tasks: Path, samples: Path, per_reason: int) -> list[Example]:
    """The first rejected samples of each reason, from the rejected rows beside the traces."""
    shown: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for row in iter_table(traces / "rejected", Rejected):
        if shown[row.reason] < per_reason:
            shown[row.reason] += 1
            reasons[row.id] = row.reason
    chosen = [sample for sample in iter_table(samples, Sample) if sample.sample_id in reasons]
    wanted = {sample.task_id for sample in chosen}
    asked = {task.task_id: task for task in iter_table(tasks, Task) if task.task_id in wanted}
    examples = []
    for sample in chosen:
        task = asked.get(sample.task_id)
        turns = json.loads(sample.turns)
        raw = tuple(("assistant, raw", str(turn.get("text", ""))) for turn in turns)
        title = f"{task.domain}, {task.source}, {sample.outcome}" if task else sample.outcome
        told = _turns(task.messages) if task else ()
        examples.append(Example(title, reasons[sample.sample_id], False, told + raw))
    return examples


def _turns(messages: str) -> tuple[tuple[str, str], ...]:
    turns: list[tuple[str, str]] = []
    for message in json.loads(messages):
        if message.get("reasoning_content"):
            turns.append((f"{message['role']}, thinking", str(message["reasoning_content"])))
        if message.get("content"):
            turns.append((str(message["role"]), str(message["content"])))
        if message.get("tool_calls"):
            turns.append((f"{message['role']}, tool calls", json.dumps(message["tool_calls"], ensure_ascii=False)))
    return tuple(turns)
