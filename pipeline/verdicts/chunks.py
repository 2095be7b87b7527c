"""Chunks of answers: the unit that a worker judges, that a kill may cost, and that a later run finds finished."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from pipeline.cluster import map_tasks
from pipeline.errors import UserError
from pipeline.progress import Progress, say
from pipeline.records import Sample, Task, Verdict, canonical_json, content_id
from pipeline.sandbox import box_setup
from pipeline.shards import write_text
from pipeline.verify import RETRY_REASONS, VERIFIERS, Item, Judgement, Limits, judge_once

CHUNK = 64
"""Samples judged and stored together; a kill loses at most one chunk a worker."""


def judge_samples(
    tasks: Mapping[str, Task], samples: Iterable[Sample], limits: Limits, folder: Path, workers: int
) -> Iterator[Verdict]:
    """One verdict a sample, in order, equal for any number of workers.

    `tasks` by task_id. Chunks that lie finished in `folder` are not judged again. Untrusted programs run in boxes only;
    what a busy machine left undecided is tried once more at the end, with nothing beside it.
    """
    chunks = make_chunks(make_items(tasks, samples), limits, folder)
    judge_all(chunks, workers)
    return verdicts_of(chunks)


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
