"""Drop traces that hold a held-out task, in the prompt or in the response.

in:   traces  the output of `dedup`
      tasks   the output of `tasks`; the held-out ones are the benchmark
out:  traces/         kept, in the order of the input
      rejected/       the others, each with the task that it holds and the text that shows it
      benchmark.json  how each kind of item could be checked, and the items that could be checked in part only

A trace leaks an item that it holds verbatim, or edited: enough of the item's own words (`coverage`) in order, with
equal numbers, symbols and names. Runs of words that many traces or items share are no item's own. A part of an item
counts (`answer_coverage`) if it is quoted unbroken and the response states the item's answer.

    warmstart decontaminate --config configs/demo/decontaminate.yaml --in traces=data/demo/dedup \\
      --in tasks=data/demo/tasks --out data/demo/decontaminate --report reports/demo/decontaminate.json
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from pipeline.cluster import map_tasks
from pipeline.config import StageConfig, load_machine
from pipeline.curate.conversation import answer_of, question_of, said_by
from pipeline.curate.leaks import Benchmark, Gram, Item, Match, Rules, grams_of, shared_by_items, tokens_text
from pipeline.errors import UserError
from pipeline.records import Rejected, Report, Task, Trace, canonical_json
from pipeline.shards import Part, iter_part, iter_table, split_parts, write_json, write_sifted

INPUTS: Mapping[str, str] = {
    "traces": "traces, output of `dedup`",
    "tasks": "tasks, output of `tasks`; the held-out ones are looked for",
}
EXCERPT = 300
"""Characters of a match kept as evidence."""


class Config(StageConfig):
    """What counts as a leak."""

    ngram: int = Field(8, ge=3)
    """Words in the runs by which edited items are found."""
    coverage: float = Field(0.7, gt=0, le=1)
    """Share of an item's own words that a trace has to hold."""
    answer_coverage: float = Field(0.35, gt=0, le=1)
    """The same where the words are unbroken and the response states the answer."""
    common_share: float = Field(0.01, gt=0, le=1)
    """Runs of words in a larger share of the prompts are nobody's own."""
    common_prompts: int = Field(5, ge=1)
    """Runs in so few prompts are never common, however small the set."""
    common_items: int = Field(3, ge=1)
    """Runs in more items than this are nobody's own."""

    def rules(self) -> Rules:
        """The thresholds of a match."""
        return Rules(self.ngram, self.coverage, self.answer_coverage)


def benchmark_items(tasks: Iterator[Task]) -> list[Item]:
    """The held-out tasks. Raises UserError if there are none."""
    items = []
    for task in tasks:
        if task.split == "heldout":
            reference = json.loads(task.reference) if task.reference else {}
            answer = tokens_text(str(reference.get("answer", reference.get("function", ""))))
            items.append(Item(task.task_id, task.prompt_id, tokens_text(question_of(task.messages)), answer))
    if not items:
        raise UserError(
            "--in tasks: none is held out, so there is nothing to look for; set heldout_fraction in the config of "
            "tasks, or leave decontaminate out"
        )
    return items


@dataclass(frozen=True, slots=True)
class CountPart:
    """Count in which prompts of a part the items' grams stand; sent to workers."""

    grams: Set[Gram]
    size: int

    def __call__(self, part: Part) -> dict[Gram, set[str]]:
        """Ids of prompts by gram."""
        found: dict[Gram, set[str]] = defaultdict(set)
        for trace in iter_part(part, Trace):
            for text in texts_of(trace):
                for gram in grams_of(tokens_text(text), self.size):
                    if gram in self.grams:
                        found[gram].add(trace.prompt_id)
        return dict(found)


@dataclass(frozen=True, slots=True)
class MatchPart:
    """Look for items in a part; sent to workers."""

    benchmark: Benchmark

    def __call__(self, part: Part) -> list[tuple[str, str] | None]:
        """Reason and evidence of each trace, None for clean ones."""
        return [find_leak(self.benchmark, trace) for trace in iter_part(part, Trace)]


def texts_of(trace: Trace) -> tuple[str, str, str]:
    """What the user asks, what else stands in the prompt, and the response."""
    messages = json.loads(trace.messages)
    return question_of(trace.messages), said_by(messages, "system", "tool"), answer_of(trace.messages)


def find_leak(benchmark: Benchmark, trace: Trace) -> tuple[str, str] | None:
    """(reason, evidence) of a trace that holds an item."""
    question, context, response = texts_of(trace)
    if trace.prompt_id in benchmark.prompts:
        same = Match(benchmark.prompts[trace.prompt_id], "verbatim", 1.0, 0, len(question))
        return _leak(trace, "prompt", question, same)
    for where, text in (("prompt", question), ("prompt", context), ("response", response)):
        match = benchmark.match(text, response, whole=text is question)
        if match is not None:
            return _leak(trace, where, text, match)
    return None


def _leak(trace: Trace, where: str, text: str, match: Match) -> tuple[str, str]:
    evidence = {
        "item": match.item_id,
        "prompt_id": trace.prompt_id,
        "coverage": match.coverage,
        "span": [match.start, match.end],
        "text": text[match.start : match.end][:EXCERPT],
    }
    return f"{match.kind}_in_{where}", canonical_json(evidence)


def find_common(config: Config, benchmark: Benchmark, parts: list[Part], workers: int) -> set[Gram]:
    """Grams in too many prompts or items to tell anything."""
    prompts: dict[Gram, set[str]] = defaultdict(set)
    for _, found in map_tasks(CountPart(benchmark.grams(), config.ngram), parts, workers):
        for gram, ids in found.items():
            prompts[gram] |= ids
    total = len({trace.prompt_id for part in parts for trace in iter_part(part, Trace)})
    most = max(config.common_prompts, config.common_share * total)
    common = {gram for gram, ids in prompts.items() if len(ids) > most}
    return common | shared_by_items(benchmark.items, config.ngram, config.common_items)


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Count what is common, look for every item, write in the order of the input."""
    benchmark = Benchmark(benchmark_items(iter_table(inputs["tasks"], Task)), config.rules())
    parts, workers = split_parts(inputs["traces"], Trace, config.limit), load_machine().workers
    benchmark.set_common(find_common(config, benchmark, parts, workers))
    matched = dict(map_tasks(MatchPart(benchmark), parts, workers))
    leaks = [leak for index in range(len(parts)) for leak in matched[index]]

    def sift() -> Iterator[Trace | Rejected]:
        traces = itertools.islice(iter_table(inputs["traces"], Trace), config.limit)
        for trace, leak in zip(traces, leaks, strict=True):
            yield trace if leak is None else Rejected(trace.trace_id, "decontaminate", *leak)

    sifted = write_sifted(output, Trace, sift(), config.max_rejected)
    checks = benchmark.checks()
    write_json(output / "benchmark.json", checks)
    return {
        "traces": sifted.read,
        "kept": sifted.kept,
        **sifted.report(),
        "items": len(benchmark.items),
        **{f"items_{kind}": len(names) for kind, names in checks.items()},
        "items_found": len({json.loads(leak[1])["item"] for leak in leaks if leak}),
    }
