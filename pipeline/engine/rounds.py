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

_WINDOW = 10_000  # tasks in memory at most
Passes = Callable[[Mapping[str, Task], Sequence[Sample]], Sequence[bool]]
"""Judges samples of tasks (by task_id)."""


@dataclass(slots=True)
class Attempts:
    """What is known of one task."""

    task: Task
    samples: list[Sample] = field(default_factory=list)
    passed: list[bool] = field(default_factory=list)


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
        right = sum(attempts.passed)
        if right >= self.passing or len(attempts.passed) >= self.tries:
            return False
        return self.give_up is None or not hopeless(right, len(attempts.passed) - right, self.give_up)


def hopeless(right: int, wrong: int, rule: GiveUp) -> bool:
    """Whether P(pass rate < rule.pass_rate) suffices under Beta(1 + right, 1 + wrong), a uniform prior's posterior."""
    from scipy.stats import beta

    return bool(beta.cdf(rule.pass_rate, 1 + right, 1 + wrong) >= rule.confidence)


@dataclass(slots=True)
class Found:
    """The tasks that were tried, in order, and how far the set goes."""

    target: Target
    attempts: list[Attempts] = field(default_factory=list)
    exhausted: bool = False
    """No task, or no budget, was left before the target was reached."""

    def samples(self) -> Iterator[Sample]:
        """The set: samples by task and index, up to the row or token that ends it."""
        rows = tokens = 0
        for attempts in self.attempts:
            for sample, right in zip(attempts.samples, attempts.passed, strict=True):
                tokens += sample.num_output_tokens
                if self.target.tokens is not None and tokens > self.target.tokens:
                    return
                yield sample
                rows += right
                if self.target.rows is not None and rows >= self.target.rows:
                    return

    def rows(self) -> int:
        """Passing samples in the set."""
        in_set = {sample.sample_id for sample in self.samples()}
        return sum(
            right and sample.sample_id in in_set
            for attempts in self.attempts
            for sample, right in zip(attempts.samples, attempts.passed, strict=True)
        )

    def reached(self) -> bool:
        """Whether the set is what was wanted: its rows, or else its tokens, or else all tasks."""
        if self.target.rows is not None:
            return self.rows() >= self.target.rows
        return not self.exhausted

    def passing(self) -> int:
        """Passing samples among all that were asked."""
        return sum(sum(attempts.passed) for attempts in self.attempts)

    def enough(self) -> bool:
        """Whether the set has reached its rows or tokens."""
        if self.target.rows is not None and self.passing() >= self.target.rows:
            return True
        spent = sum(sample.num_output_tokens for attempts in self.attempts for sample in attempts.samples)
        return self.target.tokens is not None and spent > self.target.tokens

    def report(self) -> Report:
        """Flat numbers of the target."""
        served = sum(sum(attempts.passed) >= self.target.passing for attempts in self.attempts)
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
            each = max(self.passing(), 1) / tried if tried else self.target.passing
            wanted = min(wanted, math.ceil((self.target.rows - self.passing()) / each))
        if self.target.tokens is not None:
            spent = sum(sample.num_output_tokens for attempts in self.attempts for sample in attempts.samples)
            wanted = min(wanted, math.ceil((self.target.tokens - spent) * tried / max(spent, 1)) if tried else 64)
        return max(1, wanted)


def run_rounds(
    tasks: Callable[[], Iterable[Task]], samplers: Sequence[Sampler], target: Target, passes: Passes
) -> Found:
    """Ask and verify until the target is reached, or no task is left. A task is asked of the first teacher that takes
    its domain. Raises UserError for a task that no teacher takes.
    """
    found, remaining = Found(target), iter(tasks())
    while not found.enough():
        window = [Attempts(task) for task in islice(remaining, found.next_window())]
        if not window:
            found.exhausted = target.rows is not None or target.tokens is not None
            break
        found.attempts += window
        for index in range(target.tries):
            open_tasks = [attempts for attempts in window if target.is_open(attempts)]
            if not open_tasks or any(sampler.budget_reached for sampler in samplers):
                break
            _attempt(open_tasks, samplers, index, passes)
            _tell(found, index)
        if any(sampler.budget_reached for sampler in samplers):
            found.exhausted = not found.enough()
            break
    if not found.reached():
        say(f"target: not reached; {found.rows()} samples pass after {len(found.attempts)} tasks")
    return found


def _tell(found: Found, index: int) -> None:
    """One line after each round: what has passed so far."""
    judged, right = sum(len(attempts.passed) for attempts in found.attempts), found.passing()
    wanted = "" if found.target.rows is None else f" of {found.target.rows} wanted"
    say(f"target: attempt {index + 1}: {right} samples pass{wanted}, {right / max(judged, 1):.0%} of {judged}")


def _attempt(open_tasks: Sequence[Attempts], samplers: Sequence[Sampler], index: int, passes: Passes) -> None:
    """One more attempt at each task."""
    samples: list[Sample] = []
    for sampler in samplers:
        own = [attempts.task for attempts in open_tasks if teacher_of(attempts.task, samplers) is sampler]
        samples += sampler.ask_and_collect(own, [index])
    by_task = {attempts.task.task_id: attempts for attempts in open_tasks}
    judged = passes({task_id: attempts.task for task_id, attempts in by_task.items()}, samples)
    for sample, right in zip(samples, judged, strict=True):
        by_task[sample.task_id].samples.append(sample)
        by_task[sample.task_id].passed.append(right)


def teacher_of(task: Task, samplers: Sequence[Sampler]) -> Sampler:
    """The first teacher that takes the task's domain."""
    for sampler in samplers:
        if sampler.teacher.takes(task.domain):
            return sampler
    raise UserError(f"task {task.task_id}: no teacher takes the domain {task.domain}; name it under `domains`")
