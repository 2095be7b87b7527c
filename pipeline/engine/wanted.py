"""What a `generate.yaml` asks for, for the commands that read one without running the stage."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import Field

from pipeline.config import StageConfig
from pipeline.engine.rounds import Target
from pipeline.engine.settings import Budget, Teacher
from pipeline.records import Task
from pipeline.shards import iter_table
from pipeline.verify import Limits


class Wanted(StageConfig):
    """The keys of the stage generate; a test keeps them equal to the stage's own."""

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


def takes(teacher: Teacher, task: Task) -> bool:
    """Whether a teacher is asked tasks of this domain."""
    return not teacher.domains or task.domain in teacher.domains


def asked_of(teachers: list[Teacher], tasks: Iterable[Task], first_only: bool) -> Iterator[tuple[Teacher, list[Task]]]:
    """Each teacher with its tasks; with `first_only` a task is asked of the first that takes its domain (`target`)."""
    tasks = list(tasks)
    for number, teacher in enumerate(teachers):
        before = teachers[:number] if first_only else []
        yield teacher, [t for t in tasks if takes(teacher, t) and not any(takes(other, t) for other in before)]
