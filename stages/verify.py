"""Judge every sample with its task's verifier: pass, fail or unknown, with a reason and evidence.

In: `tasks` (with references) and `samples`. Out: `verdicts`, one a sample, in the order of the samples.

    warmstart verify --config configs/demo/verify.yaml --in tasks=data/demo/tasks --in samples=data/demo/generate \\
      --out data/demo/verify --report reports/demo/verify.json

A sample that is not complete fails with its outcome as the reason. Untrusted programs run in boxes only. What a busy
machine left undecided is tried once more at the end, with nothing beside it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from pipeline.cluster import map_tasks
from pipeline.config import StageConfig, load_machine
from pipeline.errors import UserError
from pipeline.progress import Progress, say
from pipeline.records import Report, Sample, Task, Verdict, canonical_json, content_id
from pipeline.sandbox import box_setup
from pipeline.shards import iter_table, write_table, write_text
from pipeline.verify import RETRY_REASONS, VERIFIERS, Item, Judgement, Limits, judge_once
from pipeline.work import progress_folder

INPUTS: Mapping[str, str] = {
    "tasks": "tasks with the references that decide right or wrong",
    "samples": "samples of a teacher, from `generate`",
}

CHUNK = 64
"""Samples judged and stored together; a kill loses at most one chunk a worker."""


class Config(StageConfig):
    """Settings of verify. `max_rejected` is the largest fraction of `unknown` verdicts."""

    limits: Limits = Limits()
    """What judging one answer may cost; past it the verdict is `unknown` or `fail`, as each verifier says."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Answers to judge together, and the file that holds their judgements afterwards."""

    items: tuple[Item, ...]
    limits: Limits
    file: Path


def final_answer(messages: str) -> str:
    """What the last assistant message says, without its thinking."""
    said = [message for message in json.loads(messages) if message.get("role") == "assistant"]
    return str(said[-1].get("content") or "") if said else ""


def make_items(tasks: Mapping[str, Task], samples: Iterable[Sample]) -> Iterator[Item]:
    """Join samples with their tasks. Raises UserError for a sample whose task or verifier is not there."""
    for sample in samples:
        task = tasks.get(sample.task_id)
        if task is None:
            raise UserError(
                f"samples: {sample.sample_id} belongs to task {sample.task_id}, which is not among the tasks; give "
                "the tasks that the samples were generated from"
            )
        if task.verifier not in VERIFIERS:
            raise UserError(
                f"tasks: {task.task_id}: verifier {task.verifier!r} is not known; known are {', '.join(VERIFIERS)}"
            )
        reference = json.loads(task.reference) if task.reference else None
        yield Item(sample.sample_id, task.verifier, final_answer(sample.messages), sample.outcome, reference)


def make_chunks(items: Iterable[Item], limits: Limits, folder: Path, size: int = CHUNK) -> list[Chunk]:
    """Fixed-size chunks, each with a file named by what its judgements depend on."""
    chunks = []
    remaining = iter(items)
    while group := tuple(islice(remaining, size)):
        versions = {item.verifier: VERIFIERS[item.verifier].VERSION for item in group}
        name = content_id(versions, limits.model_dump(mode="json"), [asdict(item) for item in group])
        chunks.append(Chunk(group, limits, folder / f"{name}.json"))
    return chunks


def judge_chunk(chunk: Chunk) -> dict[str, int]:
    """Judge a chunk and store its judgements. Returns the count of each verdict."""
    judgements = judge_once(chunk.items, chunk.limits)
    write_text(chunk.file, canonical_json([asdict(judgement) for judgement in judgements]))
    return dict(Counter(judgement.verdict for judgement in judgements))


def read_judgements(chunk: Chunk) -> list[Judgement]:
    """The stored judgements of a chunk."""
    return [Judgement(**value) for value in json.loads(chunk.file.read_text(encoding="utf-8"))]


def judge_all(chunks: list[Chunk], workers: int) -> None:
    """Judge every chunk that a killed run has not finished, then retry alone what a busy machine left undecided."""
    open_chunks = [chunk for chunk in chunks if not chunk.file.exists()]
    if any(item.verifier == "code" and item.outcome == "complete" for c in open_chunks for item in c.items):
        box_setup()  # say what is missing before any work is done
    counts: Counter[str] = Counter()
    total = sum(len(chunk.items) for chunk in chunks)
    done = total - sum(len(chunk.items) for chunk in open_chunks)
    with Progress("verify", total, "samples", done) as progress:
        for index, verdicts in map_tasks(judge_chunk, open_chunks, workers):
            counts.update(verdicts)
            progress.advance(
                len(open_chunks[index].items), ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
            )
    for chunk in chunks:
        judgements = read_judgements(chunk)
        undecided = [i for i, judgement in enumerate(judgements) if judgement.reason in RETRY_REASONS]
        if undecided:
            say(f"verify: {len(undecided)} undecided on a busy machine, tried once more alone")
            for index in undecided:
                judgements[index] = judge_once([chunk.items[index]], chunk.limits)[0]
            write_text(chunk.file, canonical_json([asdict(judgement) for judgement in judgements]))


def verdicts_of(chunks: Iterable[Chunk]) -> Iterator[Verdict]:
    """One verdict a sample, in order."""
    for chunk in chunks:
        for item, judgement in zip(chunk.items, read_judgements(chunk), strict=True):
            yield Verdict(
                sample_id=item.key,
                verifier=item.verifier,
                verifier_version=VERIFIERS[item.verifier].VERSION,
                verdict=judgement.verdict,
                score=judgement.score,
                reason=judgement.reason,
                evidence=canonical_json(judgement.evidence),
            )


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
    chunks = make_chunks(make_items(tasks, samples), config.limits, progress_folder(output))
    judge_all(chunks, load_machine().workers)
    write_table(output, Verdict, verdicts_of(chunks))
    domains = {sample.sample_id: tasks[sample.task_id].domain for sample in samples}
    report = summarise(domains, verdicts_of(chunks))
    num_unknown = int(report["unknown"])
    if num_unknown > config.max_rejected * len(samples):
        raise UserError(
            f"verify: {num_unknown} of {len(samples)} verdicts are `unknown`, more than max_rejected = "
            f"{config.max_rejected} allows; see their reasons: "
            + ", ".join(f"{key.removeprefix('reason_')} {n}" for key, n in report.items() if key.startswith("reason_"))
        )
    return report
