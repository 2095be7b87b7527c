"""Join tasks, samples and verdicts, and keep the traces worth training on.

in:   tasks, samples, verdicts  the outputs of `tasks`, `generate` and `verify`
      collected                 traces of others, output of `collect`; they pass the rules that apply to them
out:  traces/    one conversation a kept sample: the task's messages and the answer
      rejected/  every other sample or trace with the first rule that it broke

With `max_per_task: 2`, a task whose four samples were judged pass, fail, pass, pass keeps samples 0 and 2 with a pass
rate of 0.75; 1 is rejected as `fail`, 3 as `over_max_per_task`.
"""

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, model_validator

from pipeline.config import StageConfig
from pipeline.errors import UserError
from pipeline.records import Rejected, Report, Sample, Task, Trace, Verdict, canonical_json, content_id
from pipeline.shards import iter_table, write_sifted

INPUTS: Mapping[str, str] = {
    "tasks": "tasks, output of `tasks`",
    "samples": "samples, output of `generate`",
    "verdicts": "verdicts, output of `verify`",
}
OPTIONAL_INPUTS: Mapping[str, str] = {"collected": "traces of others, output of `collect`"}


class Config(StageConfig):
    """Which samples to keep. Only complete answers to training tasks ever are."""

    require_pass: bool = True
    """Keep only samples that the verifier passed; `false` keeps failed and unjudged ones too. Collected traces that
    carry no reference are kept either way."""
    licenses: list[str] | None = None
    """Licences to keep, by SPDX name; left out, all are."""
    min_pass_rate: float = Field(0.0, ge=0, le=1)
    """Lowest pass rate of a task, over its judged samples."""
    max_pass_rate: float = Field(1.0, ge=0, le=1)
    """Highest pass rate of a task: below 1 leaves out what the teacher always solves."""
    max_per_task: int | None = Field(None, ge=1)
    """Samples to keep of one task, lowest index first."""
    max_output_tokens: int | None = Field(None, ge=1)
    """Longest answer to keep, in tokens of the teacher."""

    @model_validator(mode="after")
    def _pass_rates_are_in_order(self) -> "Config":
        if self.min_pass_rate > self.max_pass_rate:
            raise ValueError(f"min_pass_rate {self.min_pass_rate} is above max_pass_rate {self.max_pass_rate}")
        return self


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the rules look at: one sample without its text."""

    sample_id: str
    index: int
    outcome: str
    verdict: str
    num_output_tokens: int
    answer: str
    """Id of the answer's text."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Passes among the judged samples of one task. `unknown` is no judgement and never counts."""

    passed: int
    judged: int

    @property
    def value(self) -> float | None:
        """The pass rate, None where nothing was judged."""
        return self.passed / self.judged if self.judged else None


def rate_of(attempts: list[Attempt]) -> Rate:
    """The pass rate of a task's attempts."""
    counts = Counter(attempt.verdict for attempt in attempts)
    return Rate(counts["pass"], counts["pass"] + counts["fail"])


@dataclass(frozen=True, slots=True)
class Terms:
    """What a task says about the use of its samples."""

    split: str
    license: str


def broken_terms(terms: Terms, config: Config) -> str | None:
    """The first rule that a task or a collected trace breaks, None if it may be used."""
    if terms.split != "train":
        return "heldout"
    return "license" if config.licenses is not None and terms.license not in config.licenses else None


def broken_rule(attempt: Attempt, terms: Terms, rate: float | None, config: Config) -> str | None:
    """The first rule that an attempt breaks by itself, None if it may stay."""
    unusable = broken_terms(terms, config)
    rules = (
        (unusable or "", unusable is not None),
        (f"not_complete:{attempt.outcome}", attempt.outcome != "complete"),
        (attempt.verdict, config.require_pass and attempt.verdict != "pass"),
        ("pass_rate_low", rate is not None and rate < config.min_pass_rate),
        ("pass_rate_high", rate is not None and rate > config.max_pass_rate),
        ("too_long", config.max_output_tokens is not None and attempt.num_output_tokens > config.max_output_tokens),
    )
    return next((reason for reason, broken in rules if broken), None)


def choose(attempts: list[Attempt], terms: Terms, config: Config) -> dict[str, str]:
    """Reasons by sample id for the attempts of one task that are not kept. Lower indices are preferred."""
    rate = rate_of(attempts).value
    reasons: dict[str, str] = {}
    kept: set[str] = set()
    for attempt in sorted(attempts, key=lambda a: (a.index, a.sample_id)):
        reason = broken_rule(attempt, terms, rate, config)
        if reason is None and attempt.answer in kept:
            reason = "duplicate_answer"
        if reason is None and config.max_per_task is not None and len(kept) >= config.max_per_task:
            reason = "over_max_per_task"
        if reason is None:
            kept.add(attempt.answer)
        else:
            reasons[attempt.sample_id] = reason
    return reasons


@dataclass(frozen=True, slots=True)
class Choice:
    """Everything decided about the samples, by id."""

    rates: dict[str, Rate]
    reasons: dict[str, str]
    verdicts: dict[str, tuple[str, float | None]]
    kept: dict[str, int]
    """Kept samples by task; every task that has samples stands here."""


def choose_all(samples: Iterator[Sample], verdicts: Path, terms: Mapping[str, Terms], config: Config) -> Choice:
    """Decide about every sample. Holds ids and numbers, no texts.

    Raises UserError where samples, tasks and verdicts do not belong together.
    """
    found: dict[str, tuple[str, float | None]] = {}
    for row in iter_table(verdicts, Verdict):
        if row.sample_id in found:
            raise UserError(f"{verdicts}: two verdicts for sample {row.sample_id}; give the output of one verify run")
        found[row.sample_id] = (row.verdict, row.score)
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    for sample in samples:
        if sample.sample_id not in found:
            raise UserError(f"{verdicts}: no verdict for sample {sample.sample_id}; run verify on these samples again")
        if sample.task_id not in terms:
            raise UserError(f"sample {sample.sample_id} answers task {sample.task_id}, which is not in --in tasks")
        verdict, _ = found[sample.sample_id]
        answer = content_id("answer", sample.messages)
        attempts[sample.task_id].append(
            Attempt(sample.sample_id, sample.index, sample.outcome, verdict, sample.num_output_tokens, answer)
        )
    reasons = {name: choose(tried, terms[name], config) for name, tried in attempts.items()}
    return Choice(
        rates={name: rate_of(tried) for name, tried in attempts.items()},
        reasons={sample: reason for of_task in reasons.values() for sample, reason in of_task.items()},
        verdicts=found,
        kept={name: len(tried) - len(reasons[name]) for name, tried in attempts.items()},
    )


def make_traces(samples: Iterator[Sample], tasks: Mapping[str, Task], choice: Choice) -> Iterator[Trace | Rejected]:
    """One trace or rejected row a sample, in the order of the samples. `tasks` holds those with a kept sample."""
    for sample in samples:
        rate = choice.rates[sample.task_id]
        verdict, score = choice.verdicts[sample.sample_id]
        reason = choice.reasons.get(sample.sample_id)
        if reason is not None:
            evidence = {"task_id": sample.task_id, "index": sample.index, "verdict": verdict, "pass_rate": rate.value}
            yield Rejected(sample.sample_id, "filter", reason, canonical_json(evidence))
            continue
        task = tasks[sample.task_id]
        messages = canonical_json(json.loads(task.messages) + json.loads(sample.messages))
        yield Trace(
            trace_id=content_id("trace", task.task_id, messages),
            task_id=task.task_id,
            prompt_id=task.prompt_id,
            source=task.source,
            source_id=task.source_id,
            license=task.license,
            domain=task.domain,
            split=task.split,
            messages=messages,
            tools=task.tools,
            teacher=sample.teacher,
            verdict=verdict,
            score=score,
            pass_rate=rate.value,
            num_samples=rate.judged,
            num_output_tokens=sample.num_output_tokens,
        )


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Write kept traces and rejected samples."""

    def samples() -> Iterator[Sample]:
        return itertools.islice(iter_table(inputs["samples"], Sample), config.limit)

    terms, domains = {}, {}
    for task in iter_table(inputs["tasks"], Task):
        terms[task.task_id], domains[task.task_id] = Terms(task.split, task.license), task.domain
    choice = choose_all(samples(), inputs["verdicts"], terms, config)
    tasks = {task.task_id: task for task in iter_table(inputs["tasks"], Task) if choice.kept.get(task.task_id)}
    collected = Counter[str]()
    records = make_traces(samples(), tasks, choice)
    if "collected" in inputs:
        others = itertools.islice(iter_table(inputs["collected"], Trace), config.limit)
        records = itertools.chain(records, pass_collected(others, config, collected))
    sifted = write_sifted(output, Trace, records, config.max_rejected)
    return {
        "samples": sifted.read - collected["read"],
        **({f"collected_{name}": collected[name] for name in ("read", "kept")} if "collected" in inputs else {}),
        "kept": sifted.kept,
        **sifted.report(),
        "tasks_with_kept": sum(1 for kept in choice.kept.values() if kept),
        "tasks_without": sum(1 for kept in choice.kept.values() if not kept),
        **by_domain(choice, domains),
    }


def pass_collected(traces: Iterator[Trace], config: Config, counts: Counter[str]) -> Iterator[Trace | Rejected]:
    """Collected traces that break no rule that applies to them; `counts` gets how many were read and kept."""
    for trace in traces:
        counts["read"] += 1
        judged = config.require_pass and trace.verdict not in ("pass", "not_checked")
        reason = broken_terms(Terms(trace.split, trace.license), config) or (trace.verdict if judged else None)
        tokens = trace.num_output_tokens
        if reason is None and config.max_output_tokens is not None and (tokens or 0) > config.max_output_tokens:
            reason = "too_long"
        if reason is None:
            counts["kept"] += 1
            yield trace
        else:
            evidence = {"source": trace.source, "source_id": trace.source_id, "verdict": trace.verdict}
            yield Rejected(trace.trace_id, "filter", reason, canonical_json(evidence))


def by_domain(choice: Choice, domains: Mapping[str, str]) -> Report:
    """Kept samples and the mean pass rate of the tasks of each domain."""
    report: Report = {}
    for domain in sorted({domains[task_id] for task_id in choice.kept}):
        members = [task_id for task_id in choice.kept if domains[task_id] == domain]
        rates = [rate for task_id in members if (rate := choice.rates[task_id].value) is not None]
        report[f"kept_{domain}"] = sum(choice.kept[task_id] for task_id in members)
        if rates:
            report[f"pass_rate_{domain}"] = round(math.fsum(rates) / len(rates), 4)
    return report
