"""A pilot: some of the tasks asked and verified as the stage generate would, and how fast the servers were."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice

from pipeline.config import Machine
from pipeline.engine.forecast import Rule, Tried, choose_pilot
from pipeline.engine.importing import answer_of, is_after_a_cut
from pipeline.engine.requests import Request
from pipeline.engine.rounds import Target, collect_set, hopeless, run_rounds
from pipeline.engine.sampling import Requests, Sampler
from pipeline.engine.settings import EndpointEngine, Teacher
from pipeline.engine.wanted import Wanted, asked_of
from pipeline.errors import UserError
from pipeline.ledger import choose
from pipeline.records import Sample, Task
from pipeline.verdicts import Judge

_BLOCK = 2_000  # requests looked up together


@dataclass(frozen=True, slots=True)
class Stretch:
    """One call of the servers."""

    tokens: int
    """Output tokens."""
    seconds: float
    cold: bool
    """Whether the servers were started in it."""


@dataclass(slots=True)
class MeasuredSampler(Sampler):
    """A sampler that remembers how long its servers took."""

    stretches: list[Stretch] = field(default_factory=list)

    def ask(self, requests: Requests, total: int, again: bool = False) -> None:
        """Ask, and note tokens and time."""
        before, started, cold = self.counts.received_tokens, time.monotonic(), self._fleet is None
        Sampler.ask(self, requests, total, again)
        tokens = self.counts.received_tokens - before
        if tokens:
            self.stretches.append(Stretch(tokens, time.monotonic() - started, cold))

    def missing(self, tasks: Iterable[Task], indices: Sequence[int]) -> Iterator[Request]:
        """The requests that the ledger cannot serve."""
        requests = self.requests(tasks, indices)
        while block := list(islice(requests, _BLOCK)):
            found = self.ledger.find([request.key for request in block])
            for request in block:
                if choose(found.get(request.key, ()), self.teacher.limits)[0] is None:
                    yield request

    def stored(self, tasks: Sequence[Task], indices: Sequence[int]) -> list[int]:
        """How many samples of each index the ledger holds."""
        counts = [len(tasks)] * len(indices)
        for request in self.missing(tasks, indices):
            counts[indices.index(request.index)] -= 1
        return counts

    def warm_up(self, tasks: Sequence[Task], indices: Sequence[int]) -> None:
        """Start the servers with one missing sample, so that loading a model is not taken for sampling."""
        first = next(self.missing(tasks, indices), None)
        if first is not None:
            self.ask(lambda: [first], 1)

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens a second in the longest call of running servers, None where there was none.

        Of a target's rounds the first is the fullest, and so the nearest to those of a long run.
        """
        warm = [stretch for stretch in self.stretches if not stretch.cold]
        longest = max(warm, key=lambda stretch: stretch.tokens, default=None)
        return None if longest is None else longest.tokens / max(longest.seconds, 1e-9)

    @property
    def num_gpus(self) -> int:
        """Servers times `tensor_parallel`, as the machine file names them."""
        serving = self.machine.serving
        if isinstance(self.teacher.engine, EndpointEngine):
            endpoint = self.machine.endpoints.get(self.teacher.name)
            return len(endpoint.urls) * serving.tensor_parallel if endpoint else serving.tensor_parallel
        return serving.servers * serving.tensor_parallel


@dataclass(frozen=True, slots=True)
class Pilot:
    """What the pilot's tasks gave."""

    tasks: list[Task]
    samples: list[Sample]
    passed: list[bool]
    teachers: dict[str, Teacher]

    def paid(self, sample: Sample) -> tuple[int, int]:
        """Prompt and output tokens that a sample cost: twice the prompt where the first token limit cut it."""
        teacher, answer = self.teachers[sample.teacher], answer_of(sample)
        twice = answer is not None and is_after_a_cut(answer, teacher)
        return sample.num_prompt_tokens * (1 + twice), sample.num_output_tokens + twice * teacher.limits[0]

    def by_task(self, teacher: str | None = None) -> dict[str, list[tuple[Sample, bool]]]:
        """Samples with their verdicts by task, of one teacher or of all; tasks without any are there too."""
        found: dict[str, list[tuple[Sample, bool]]] = {task.task_id: [] for task in self.tasks}
        for sample, right in zip(self.samples, self.passed, strict=True):
            if teacher is None or sample.teacher == teacher:
                found[sample.task_id].append((sample, right))
        return found

    def tried(self) -> list[Tried]:
        """The pilot's tasks for a forecast of the target."""
        rows = [pairs for pairs in self.by_task().values() if pairs]
        return [
            Tried(
                sum(right for _, right in pairs),
                sum(not right for _, right in pairs),
                sum(self.paid(sample)[1] for sample, _ in pairs) / len(pairs),
            )
            for pairs in rows
        ]


def run_pilot(
    config: Wanted, tasks: Sequence[Task], samplers: Sequence[MeasuredSampler], size: int, machine: Machine
) -> Pilot:
    """Ask and verify a pilot of `size` tasks. Raises UserError if nothing came.

    Every sample goes through the ledger, and is one that the stage asks for as well.
    """
    chosen_ids = choose_pilot({task.task_id: task.domain for task in tasks}, size, config.seed)
    chosen = [task for task in tasks if task.task_id in chosen_ids]
    teachers = [sampler.teacher for sampler in samplers]
    own = [o for _, o in asked_of(teachers, chosen, first_only=config.target is not None)]
    with Judge(config.limits, machine) as judge:
        if config.target is None:
            samples: list[Sample] = []
            for sampler, tasks_of_it in zip(samplers, own, strict=True):
                with sampler:  # one teacher's servers at a time, as in the stage: two may not fit
                    sampler.warm_up(tasks_of_it, [0])
                    samples += sampler.ask_and_collect(tasks_of_it, range(config.samples_per_task))
            passed = judge.passes({task.task_id: task for task in chosen}, samples)
        else:
            with ExitStack() as servers:
                for sampler, tasks_of_it in zip(samplers, own, strict=True):
                    servers.enter_context(sampler)
                    sampler.warm_up(tasks_of_it, [0])  # an attempt that the stage makes in any case
                without_end = config.target.model_copy(update={"rows": None, "tokens": None})
                found = run_rounds(lambda: chosen, samplers, without_end, judge.passes)
            samples = list(collect_set(found, chosen, samplers))
            passed = [one.right for attempts in found.attempts for one in attempts.tries]
    if not samples:
        why = "\n".join(f"  {reason}" for sampler in samplers for reason in list(sampler.lost.values())[:3])
        raise UserError(f"the pilot got no sample, so there is nothing to forecast from\n{why}".rstrip())
    return Pilot(chosen, samples, passed, {teacher.name: teacher for teacher in teachers})


def rule_of(target: Target) -> Rule:
    """A target as the forecast plays it."""
    given_up = target.give_up
    states = [(right, wrong) for right in range(target.passing) for wrong in range(target.tries + 1)]
    hopeless_states = frozenset(state for state in states if given_up is not None and hopeless(*state, given_up))
    return Rule(target.passing, target.tries, target.rows, target.tokens, hopeless_states)
