"""Judge every sample with its task's verifier: pass, fail or unknown, with a reason and evidence.

In: `tasks` (with references) and `samples`. Out: `verdicts`, one a sample, in the order of the samples,
and verification.json: versions and limits of the verifiers, and the sandbox.

    warmstart verify --config configs/demo/verify.yaml --in tasks=data/demo/tasks --in samples=data/demo/generate \\
      --out data/demo/verify --report reports/demo/verify.json

A sample that is not complete fails with its outcome as the reason. Untrusted programs run in boxes only. What a busy
machine left undecided is tried once more at the end, with nothing beside it.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from pipeline.config import StageConfig, load_machine
from pipeline.errors import UserError
from pipeline.records import Report, Sample, Task, Verdict
from pipeline.shards import iter_table, read_manifest, write_json, write_table
from pipeline.verdicts import Judge, TasksInStep, verification_manifest
from pipeline.verify import Limits

INPUTS: Mapping[str, str] = {
    "tasks": "tasks with the references that decide right or wrong",
    "samples": "samples of a teacher, from `generate`",
}


class Config(StageConfig):
    """Settings of verify. `max_rejected` is the largest fraction of `unknown` verdicts."""

    limits: Limits = Limits()
    """What judging one answer may cost; past it the verdict is `unknown` or `fail`, as each verifier says."""


Count = tuple[str, str, str, str]
"""Domain, verifier, verdict, reason."""


def count(judged: Iterable[tuple[Task, Verdict]], counts: Counter[Count]) -> Iterator[Verdict]:
    """Pass verdicts through, counting them."""
    for task, verdict in judged:
        counts[task.domain, verdict.verifier, verdict.verdict, verdict.reason] += 1
        yield verdict


def summarise(counts: Mapping[Count, int]) -> Report:
    """Flat counts of verdicts and reasons, and the pass rate of each domain among its decided samples."""
    by_verdict: Counter[str] = Counter()
    by_reason: Counter[str] = Counter()
    by_domain: Counter[tuple[str, str]] = Counter()
    for (domain, _, verdict, reason), number in counts.items():
        by_verdict[verdict] += number
        by_reason[reason] += number
        by_domain[domain, verdict] += number
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
    tasks, counts = TasksInStep(inputs["tasks"]), Counter[Count]()
    total = min(read_manifest(inputs["samples"], "samples").rows, config.limit or sys.maxsize)
    samples = islice(iter_table(inputs["samples"], Sample), config.limit)
    with Judge(config.limits, load_machine()) as judge:
        write_table(output, Verdict, count(judge.verdicts(tasks.find, samples, total), counts))
    verifiers = {verifier for _, verifier, _, _ in counts}
    write_json(output / "verification.json", verification_manifest(config.limits, verifiers))
    report = summarise(counts)
    num_unknown = int(report["unknown"])
    if num_unknown > config.max_rejected * total:
        raise UserError(
            f"verify: {num_unknown} of {total} verdicts are `unknown`, more than max_rejected = "
            f"{config.max_rejected} allows; see their reasons: "
            + ", ".join(f"{key.removeprefix('reason_')} {n}" for key, n in report.items() if key.startswith("reason_"))
        )
    return report
