"""Accepted-row targets: ask, verify, and ask again only where it pays.

Attempt r of every open task is asked for and verified before anybody gets attempt r + 1, and limits cut by task order,
so the result depends on the answers and never on who answered first. Tasks are taken in windows whose size follows
from the verdicts of the windows before, so that a small target does not ask the whole set.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pydantic import Field

from pipeline.config import StrictModel
from pipeline.engine.sampling import Sampler
from pipeline.errors import UserError
from pipeline.progress import say
from pipeline.records import Report, Sample, Task

_WINDOW, _BLOCK = 10_000, 500  # tasks in memory at most, and assembled at a time
Passes = Callable[[Mapping[str, Task], Sequence[Sample]], Sequence[bool]]
"""Judges samples of tasks (by task_id)."""


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt at a task."""

    index: int
    tokens: int
    """Output tokens."""
    right: bool


@dataclass(slots=True)
class Attempts:
    """What is known of one task."""

    tries: list[Try] = field(default_factory=list)

    @property
    def right(self) -> int:
        """Passing attempts."""
        return sum(one.right for one in self.tries)


class GiveUp(StrictModel):
    """When a task is not worth another attempt."""

    pass_rate: float = Field(0.05, gt=0, lt=1)
    """A task is given up when its pass rate is below this ..."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """... with so much posterior probability, under a uniform prior."""


class Target(StrictModel):
    """How many passing samples are wanted, and what they may cost."""

    passing: int = Field(1, ge=1)
    """Passing samples wanted of each task."""
    tries: int = Field(8, ge=1)
    """Attempts at a task at most."""
    rows: int | None = Field(None, ge=1)
    """Passing samples wanted in all; the set ends with the sample that reaches it."""
    tokens: int | None = Field(None, ge=1)
    """Output tokens of the set at most; it ends before the sample that would exceed them."""
    give_up: GiveUp | None = None
    """Leave tasks that are hardly ever solved; null makes all `tries`."""

    def is_open(self, attempts: Attempts) -> bool:
        """Whether a task gets one more attempt."""
        right, made = attempts.right, len(attempts.tries)
        if right >= self.passing or made >= self.tries:
            return False
        return self.give_up is None or not hopeless(right, made - right, self.give_up)


def hopeless(right: int, wrong: int, rule: GiveUp) -> bool:
    """Whether P(pass rate < rule.pass_rate) suffices under Beta(1 + right, 1 + wrong), a uniform prior's posterior."""
    from scipy.stats import beta

    return bool(beta.cdf(rule.pass_rate, 1 + right, 1 + wrong) >= rule.confidence)


@dataclass(slots=True)
class Found:
    """The tasks that were tried, in order, and how far the set goes. No text is held: the ledger has it."""

    target: Target
    attempts: list[Attempts] = field(default_factory=list)
    exhausted: bool = False
    """No task, or no budget, was left before the target was reached."""
    made: int = 0
    """Attempts in all."""
    passing: int = 0
    """Passing ones among them."""
    spent: int = 0
    """Output tokens of all attempts."""

    def add(self, attempts: Attempts, one: Try) -> None:
        """Note one more attempt."""
        attempts.tries.append(one)
        self.made += 1
        self.passing += one.right
        self.spent += one.tokens

    def chosen(self) -> Iterator[list[Try]]:
        """The set: of each task that was tried the attempts in it, up to the row or token that ends it."""
        rows = tokens = 0
        ended = False
        for attempts in self.attempts:
            kept: list[Try] = []
            for one in attempts.tries:
                tokens += one.tokens
                ended = ended or (self.target.tokens is not None and tokens > self.target.tokens)
                if ended:
                    break
                kept.append(one)
                rows += one.right
                ended = self.target.rows is not None and rows >= self.target.rows
            yield kept

    def rows(self) -> int:
        """Passing samples in the set."""
        return sum(one.right for kept in self.chosen() for one in kept)

    def reached(self) -> bool:
        """Whether the set is what was wanted: its rows, or else its tokens, or else all tasks."""
        if self.target.rows is not None:
            return self.rows() >= self.target.rows
        return not self.exhausted

    def enough(self) -> bool:
        """Whether the set has reached its rows or tokens."""
        if self.target.rows is not None and self.passing >= self.target.rows:
            return True
        return self.target.tokens is not None and self.spent > self.target.tokens

    def report(self) -> Report:
        """Flat numbers of the target."""
        served = sum(attempts.right >= self.target.passing for attempts in self.attempts)
        return {
            "tasks_tried": len(self.attempts),
            "tasks_with_enough": served,
            "passing": self.rows(),
            "target_reached": self.reached(),
        }

    def next_window(self) -> int:
        """How many tasks to take next: what the yield so far says is missing."""
        wanted = _WINDOW
        tried = len(self.attempts)
        if self.target.rows is not None:
            each = max(self.passing, 1) / tried if tried else self.target.passing
            wanted = min(wanted, math.ceil((self.target.rows - self.passing) / each))
        if self.target.tokens is not None:
            left = self.target.tokens - self.spent
            wanted = min(wanted, math.ceil(left * tried / max(self.spent, 1)) if tried else 64)
        return max(1, wanted)


def run_rounds(
    tasks: Callable[[], Iterable[Task]], samplers: Sequence[Sampler], target: Target, passes: Passes
) -> Found:
    """Ask and verify until the target is reached, or no task is left. A task is asked of the first teacher that takes
    its domain. Raises UserError for a task that no teacher takes.
    """
    found, remaining = Found(target), iter(tasks())
    while not found.enough():
        window = [(task, Attempts()) for task in islice(remaining, found.next_window())]
        if not window:
            found.exhausted = target.rows is not None or target.tokens is not None
            break
        found.attempts += [attempts for _, attempts in window]
        for index in range(target.tries):
            open_tasks = [(task, attempts) for task, attempts in window if target.is_open(attempts)]
            if not open_tasks or any(sampler.budget_reached for sampler in samplers):
                break
            _attempt(found, open_tasks, samplers, index, passes)
            _tell(found, index)
        if any(sampler.budget_reached for sampler in samplers):
            found.exhausted = not found.enough()
            break
    if not found.reached():
        say(f"target: not reached; {found.rows()} samples pass after {len(found.attempts)} tasks")
    return found


def _tell(found: Found, index: int) -> None:
    """One line after each round: what has passed so far."""
    wanted = "" if found.target.rows is None else f" of {found.target.rows} wanted"
    share = found.passing / max(found.made, 1)
    say(f"target: attempt {index + 1}: {found.passing} samples pass{wanted}, {share:.0%} of {found.made}")


def _attempt(
    found: Found, open_tasks: Sequence[tuple[Task, Attempts]], samplers: Sequence[Sampler], index: int, passes: Passes
) -> None:
    """One more attempt at each task."""
    by_id = {task.task_id: (task, attempts) for task, attempts in open_tasks}
    for sampler in samplers:
        own = {task.task_id: task for task, _ in open_tasks if teacher_of(task, samplers) is sampler}
        samples = sampler.ask_and_collect(list(own.values()), [index])
        judged = passes(own, samples)
        sampler.note_verdicts(len(judged), sum(judged))
        for sample, right in zip(samples, judged, strict=True):
            found.add(by_id[sample.task_id][1], Try(index, sample.num_output_tokens, right))


def collect_set(found: Found, tasks: Iterable[Task], samplers: Sequence[Sampler]) -> Iterator[Sample]:
    """The samples of the set by task and index, read from the ledger; `tasks` as they were given to `run_rounds`.

    Raises UserError where an answer was damaged after it had been judged.
    """
    pairs = zip(tasks, found.chosen(), strict=False)
    while block := list(islice(pairs, _BLOCK)):
        wanted = {(task.task_id, one.index) for task, kept in block for one in kept}
        indices = sorted({index for _, index in wanted})
        by_task: dict[str, list[Sample]] = {}
        for sampler in samplers:
            own = [task for task, kept in block if kept and teacher_of(task, samplers) is sampler]
            requests = (r for r in sampler.requests(own, indices) if (r.task.task_id, r.index) in wanted)
            for sample in sampler.collect(requests):
                by_task.setdefault(sample.task_id, []).append(sample)
        if sum(map(len, by_task.values())) != len(wanted):
            raise UserError(
                "the ledger: an answer was damaged after it had been judged (`warmstart ledger verify` names the "
                "file); the same command asks for it again"
            )
        for task, _ in block:
            yield from by_task.get(task.task_id, ())


def teacher_of(task: Task, samplers: Sequence[Sampler]) -> Sampler:
    """The first teacher that takes the task's domain."""
    for sampler in samplers:
        if sampler.teacher.takes(task.domain):
            return sampler
    raise UserError(f"task {task.task_id}: no teacher takes the domain {task.domain}; name it under `domains`")
