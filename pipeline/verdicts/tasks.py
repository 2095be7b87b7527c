"""The tasks of some samples, read in step with them."""

from collections.abc import Collection
from pathlib import Path

from pipeline.records import Task
from pipeline.shards import iter_table


class TasksInStep:
    """Finds tasks by id in a table, reading on from where it stopped and once around.

    Samples lie in the order of their tasks, so the table is read once in all, and only what is asked for is held.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows = iter_table(folder, Task)
        self._last: dict[str, Task] = {}

    def find(self, task_ids: Collection[str]) -> dict[str, Task]:
        """Those of the tasks that are there."""
        wanted = set(task_ids)
        found = {name: task for name, task in self._last.items() if name in wanted}
        wanted -= found.keys()
        for round_ in range(2):
            if not wanted:
                break
            if round_:
                self._rows = iter_table(self._folder, Task)
            for task in self._rows:
                if task.task_id in wanted:
                    found[task.task_id] = task
                    wanted.discard(task.task_id)
                    if not wanted:
                        break
        self._last = found
        return found
