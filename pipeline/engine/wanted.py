"""What is asked of which teachers: the config of sampling, for the stage and for commands that only read it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import Field, field_validator

from pipeline.config import StageConfig
from pipeline.engine.rounds import Target
from pipeline.engine.settings import Budget, Teacher
from pipeline.records import Task
from pipeline.shards import iter_table
from pipeline.verify import Limits


class Wanted(StageConfig):
    """What is asked of which models: the config of the stage that asks."""

    teachers: list[Teacher] = Field(min_length=1)
    """The models that solve the tasks, one after the other; each may be limited to some domains."""
    samples_per_task: int = Field(4, ge=1)
    """Attempts of each teacher at each task; without `target`."""
    target: Target | None = None
    """Ask in rounds until so many samples pass, instead of a fixed number of times."""
    budget: Budget = Budget()
    """What this run may spend; it then ends with what it has, and the next run goes on."""
    limits: Limits = Limits()
    """Limits of the verifiers that `target` asks; keep them equal to those of the stage verify."""
    max_lost: float = Field(0.0, ge=0, le=1)
    """Fail when a larger fraction of the requests was refused or given up by the servers; everything else is kept."""

    @field_validator("teachers")
    @classmethod
    def _names_of_teachers_differ(cls, teachers: list[Teacher]) -> list[Teacher]:
        repeated = [name for name, count in Counter(teacher.name for teacher in teachers).items() if count > 1]
        if repeated:
            raise ValueError(f"two teachers are named {repeated[0]}; names tell them apart in records and addresses")
        return teachers

    @property
    def tries(self) -> int:
        """Attempts of a teacher at a task, at most."""
        return self.samples_per_task if self.target is None else self.target.tries


def training_tasks(path: Path, limit: int | None) -> list[Task]:
    """The tasks that the stage generate asks, in order."""
    chosen: list[Task] = []
    for task in iter_table(path, Task):
        if limit is not None and len(chosen) >= limit:
            break
        if task.split == "train":
            chosen.append(task)
    return chosen


def asked_of(teachers: list[Teacher], tasks: Iterable[Task], first_only: bool) -> Iterator[tuple[Teacher, list[Task]]]:
    """Each teacher with its tasks; with `first_only` a task is asked of the first that takes its domain (`target`)."""
    tasks = list(tasks)
    for number, teacher in enumerate(teachers):
        before = teachers[:number] if first_only else []
        left = [task for task in tasks if not any(other.takes(task.domain) for other in before)]
        yield teacher, [task for task in left if teacher.takes(task.domain)]
