"""Judge every sample with its task's verifier: pass, fail or unknown, with a reason and evidence.

In: `tasks` (with references) and `samples`. Out: `verdicts`, one a sample, in the order of the samples.

    warmstart verify --config configs/demo/verify.yaml --in tasks=data/demo/tasks --in samples=data/demo/generate \\
      --out data/demo/verify --report reports/demo/verify.json

A sample that is not complete fails with its outcome as the reason. Untrusted programs run in boxes only. What a busy
machine left undecided is tried once more at the end, with nothing beside it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from pipeline.config import StageConfig, load_machine
from pipeline.errors import UserError
from pipeline.records import Report, Sample, Task, Verdict
from pipeline.shards import iter_table, write_table
from pipeline.verdicts import judge_samples
from pipeline.verify import Limits
from pipeline.work import progress_folder

INPUTS: Mapping[str, str] = {
    "tasks": "tasks with the references that decide right or wrong",
    "samples": "samples of a teacher, from `generate`",
}


class Config(StageConfig):
    """Settings of verify. `max_rejected` is the largest fraction of `unknown` verdicts."""

    limits: Limits = Limits()
    """What judging one answer may cost; past it the verdict is `unknown` or `fail`, as each verifier says."""


def summarise(domains: Mapping[str, str], verdicts: Iterable[Verdict]) -> Report:
    """Flat counts of verdicts and reasons, and the pass rate of each domain among its decided samples."""
    by_verdict: Counter[str] = Counter()
    by_reason: Counter[str] = Counter()
    by_domain: Counter[tuple[str, str]] = Counter()
    for verdict in verdicts:
        by_verdict[verdict.verdict] += 1
        by_reason[verdict.reason] += 1
        by_domain[domains[verdict.sample_id], verdict.verdict] += 1
    report: Report = {"samples": by_verdict.total()}
    report.update({name: by_verdict[name] for name in ("pass", "fail", "unknown")})
    report.update({f"reason_{name}": count for name, count in sorted(by_reason.items())})
    for domain in sorted({name for name, _ in by_domain}):
        right, wrong = by_domain[domain, "pass"], by_domain[domain, "fail"]
        report[f"samples_{domain}"] = right + wrong + by_domain[domain, "unknown"]
        if right + wrong:
            report[f"pass_rate_{domain}"] = round(right / (right + wrong), 6)
    return report


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Judge all samples; restartable, and equal for any number of workers."""
    tasks = {task.task_id: task for task in iter_table(inputs["tasks"], Task)}
    samples = list(islice(iter_table(inputs["samples"], Sample), config.limit))
    workers = load_machine().workers
    write_table(output, Verdict, judge_samples(tasks, samples, config.limits, progress_folder(output), workers))
    domains = {sample.sample_id: tasks[sample.task_id].domain for sample in samples}
    report = summarise(domains, iter_table(output, Verdict))
    num_unknown = int(report["unknown"])
    if num_unknown > config.max_rejected * len(samples):
        raise UserError(
            f"verify: {num_unknown} of {len(samples)} verdicts are `unknown`, more than max_rejected = "
            f"{config.max_rejected} allows; see their reasons: "
            + ", ".join(f"{key.removeprefix('reason_')} {n}" for key, n in report.items() if key.startswith("reason_"))
        )
    return report
