"""Judge samples on worker processes: a window at a time, joined with their tasks, each verdict stored once known.

What is in memory is bounded by the window. A kill costs at most the chunk that each worker was at.
"""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pipeline.cluster import Workers
from pipeline.config import Machine
from pipeline.errors import UserError
from pipeline.progress import Progress, say
from pipeline.records import Sample, Task, Verdict, canonical_json
from pipeline.sandbox import box_setup
from pipeline.verdicts.store import VerdictStore
from pipeline.verify import RETRY_REASONS, VERIFIERS, Item, Judgement, Limits, close_verifiers, judge_once

WINDOW = 8_192
"""Samples in memory together."""
CHUNK, COSTLY_CHUNK = 256, 16
"""Answers that a worker judges and hands back together, of a cheap verifier and of one that starts programs."""
_WORTH_TELLING_S = 5.0
BOXED = frozenset({"code"})
"""Verifiers that run untrusted programs."""
Tasks = Callable[[Collection[str]], Mapping[str, Task]]
"""Gives the tasks of the named ids, by id."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Answers of one verifier to judge together."""

    keys: tuple[bytes, ...]
    items: tuple[Item, ...]
    limits: Limits


def judge_chunk(chunk: Chunk) -> tuple[list[Judgement], float]:
    """The judgements of a chunk in order, and the seconds that they took."""
    started = time.perf_counter()
    return judge_once(chunk.items, chunk.limits), time.perf_counter() - started


class Judge:
    """`with Judge(limits, machine) as judge: judge.verdicts(tasks, samples, total)`, as often as wanted.

    Verdicts are equal for any number of workers, and for a store that is full or empty.
    """

    def __init__(self, limits: Limits, machine: Machine) -> None:
        self._limits, self._open = limits, ExitStack()
        self._workers = Workers(machine.workers)
        self._store = VerdictStore(machine.verdicts)
        self._seconds: dict[str, float] = {}
        self._judged: Counter[str] = Counter()

    def __enter__(self) -> "Judge":
        self._open.enter_context(self._store)
        self._open.callback(close_verifiers)
        self._open.enter_context(self._workers)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def verdicts(self, tasks: Tasks, samples: Iterable[Sample], total: int) -> Iterator[tuple[Task, Verdict]]:
        """Each sample's task and verdict, in order; `total` is the number of samples.

        Raises UserError for a sample whose task or verifier is not there, and where this machine cannot build a box
        for untrusted programs. What a busy machine left undecided is tried once more with nothing beside it.
        """
        counts: Counter[str] = Counter()
        remaining = iter(samples)
        with Progress("verify", total, "samples") as progress:
            while window := list(islice(remaining, WINDOW)):
                by_id = tasks({sample.task_id for sample in window})
                items = [make_item(by_id, sample) for sample in window]
                for sample, item, judgement in zip(window, items, self._judge(items, counts, progress), strict=True):
                    yield by_id[sample.task_id], verdict_of(item, judgement)
        self._tell_costs()

    def _tell_costs(self) -> None:
        """Which verifiers took how long, the slowest first."""
        if sum(self._seconds.values()) > _WORTH_TELLING_S:
            slowest = sorted(self._seconds, key=lambda name: -self._seconds[name])
            costs = (f"{name} {self._seconds[name]:.0f} s for {self._judged[name]}" for name in slowest)
            say(f"verify: workers were busy with {', '.join(costs)}")
        self._seconds.clear()
        self._judged.clear()

    def passes(self, tasks: Mapping[str, Task], samples: Sequence[Sample]) -> list[bool]:
        """Whether each sample passes."""
        return [verdict.verdict == "pass" for _, verdict in self.verdicts(lambda _: tasks, samples, len(samples))]

    def _judge(self, items: Sequence[Item], counts: Counter[str], progress: Progress) -> list[Judgement]:
        """One judgement an item, in order: what is stored or decided without a verifier, and the rest judged now."""
        keys = [None if is_decided(item) else key_of(item, self._limits) for item in items]
        times = Counter(key for key in keys if key is not None)  # equal answers are judged once
        known = self._store.find(list(times))
        decided = {i: judge_once([item], self._limits)[0] for i, item in enumerate(items) if keys[i] is None}
        missing = {key: item for key, item in zip(keys, items, strict=True) if key is not None and key not in known}
        counts.update(judgement.verdict for judgement in decided.values())

        def show(judgements: Mapping[bytes, Judgement]) -> None:
            for key, judgement in judgements.items():
                counts[judgement.verdict] += times[key]
            told = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
            progress.advance(sum(times[key] for key in judgements), told)

        progress.advance(len(decided))
        show(known)
        known |= self._judge_missing(missing, show)
        return [decided[i] if key is None else known[key] for i, key in enumerate(keys)]

    def _judge_missing(
        self, missing: Mapping[bytes, Item], show: Callable[[Mapping[bytes, Judgement]], None]
    ) -> dict[bytes, Judgement]:
        chunks = make_chunks(missing, self._limits)
        found: dict[bytes, Judgement] = {}
        for index, (judgements, seconds) in self._workers.map(judge_chunk, chunks):
            chunk = chunks[index]
            made = dict(zip(chunk.keys, judgements, strict=True))
            self._store.put(made)
            found |= made
            name = chunk.items[0].verifier
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            self._judged[name] += len(chunk.items)
            show(made)
        undecided = [key for key, judgement in found.items() if judgement.reason in RETRY_REASONS]
        if undecided:
            say(f"verify: {len(undecided)} undecided on a busy machine, tried once more alone")
            again = {key: judge_once([missing[key]], self._limits)[0] for key in sorted(undecided)}
            self._store.put(again)
            found |= again
        return found


def final_answer(messages: str) -> str:
    """What the last assistant message says, without its thinking."""
    said = [message for message in json.loads(messages) if message.get("role") == "assistant"]
    return str(said[-1].get("content") or "") if said else ""


def make_item(tasks: Mapping[str, Task], sample: Sample) -> Item:
    """Join a sample with its task. Raises UserError where the task or its verifier is not there."""
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
    return Item(sample.sample_id, task.verifier, final_answer(sample.messages), sample.outcome, reference)


def is_decided(item: Item) -> bool:
    """Whether no verifier has to look at it: it did not end by itself, or says nothing."""
    return item.outcome != "complete" or not item.answer.strip()


def key_of(item: Item, limits: Limits) -> bytes:
    """16 bytes of all that decides a judgement: answer, reference, the verifier with its limits, and the box's tier."""
    own_limits = limits.model_dump(mode="json").get(item.verifier)
    box = box_setup().tier.name if item.verifier in BOXED else None
    parts = [item.verifier, VERIFIERS[item.verifier].VERSION, own_limits, box, item.answer, item.reference]
    return hashlib.blake2b(canonical_json(parts).encode(errors="surrogatepass"), digest_size=16).digest()


def verification_manifest(limits: Limits, verifiers: Collection[str]) -> dict[str, Any]:
    """What gave the verdicts: versions of the verifiers, their limits, and how programs were kept in."""
    return {
        "verifiers": {name: VERIFIERS[name].VERSION for name in sorted(verifiers)},
        "limits": limits.model_dump(mode="json"),
        "sandbox": box_setup().describe() if BOXED & set(verifiers) else None,
    }


def make_chunks(missing: Mapping[bytes, Item], limits: Limits) -> list[Chunk]:
    """Chunks of one verifier each, those that start programs in front: at the end no worker waits long for another."""
    by_verifier: dict[str, list[tuple[bytes, Item]]] = {}
    for key, item in missing.items():
        by_verifier.setdefault(item.verifier, []).append((key, item))
    chunks = []
    for name, pairs in sorted(by_verifier.items(), key=lambda pair: (pair[0] not in BOXED, pair[0])):
        size = COSTLY_CHUNK if name in BOXED else CHUNK
        for start in range(0, len(pairs), size):
            keys, items = zip(*pairs[start : start + size], strict=True)
            chunks.append(Chunk(keys, items, limits))
    return chunks


def verdict_of(item: Item, judgement: Judgement) -> Verdict:
    """The record of a judgement."""
    return Verdict(
        sample_id=item.key,
        verifier=item.verifier,
        verifier_version=VERIFIERS[item.verifier].VERSION,
        verdict=judgement.verdict,
        score=judgement.score,
        reason=judgement.reason,
        evidence=canonical_json(judgement.evidence),
    )
