"""Run a pure function over many inputs on a local Dask cluster: one process a core, one thread each."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_tasks(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[tuple[int, R]]:
    """Yield (index, result) as items finish, in any order; the caller orders by index. See `Workers.map`."""
    with Workers(min(workers, len(items))) as cluster:
        yield from cluster.map(function, items)


class Workers:
    """Worker processes for several calls of `map`: a context manager. They start with the first call that needs them.

    One thread a worker: a task that kills its worker would take the neighbours with it (distributed 2026.8).
    """

    def __init__(self, count: int) -> None:
        self._count, self._client = count, None
        self._open = ExitStack()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        """Yield (index, result) as items finish, in any order.

        One worker or one item runs in this process, without a cluster. A task that raises ends the iteration with its
        error.
        """
        if self._count <= 1 or len(items) <= 1:
            for index, item in enumerate(items):
                yield index, function(item)
            return
        from distributed import as_completed

        client = self._client or self._start()
        futures = {client.submit(function, item, pure=False): index for index, item in enumerate(items)}
        for future in as_completed(list(futures)):
            yield futures[future], future.result()

    def _start(self) -> Any:  # noqa: ANN401 - distributed is not typed
        import dask
        from distributed import Client, LocalCluster

        settings: dict[str, Any] = {
            "distributed.worker.daemon": False,  # workers start pools and boxes of their own
            "distributed.scheduler.worker-ttl": None,  # a verifier may hold the interpreter for minutes
            "distributed.admin.tick.limit": "1h",
            # Dask keeps its last 1,000 messages for debugging, so as many whole inputs: gigabytes where texts are long.
            "distributed.admin.low-level-log-length": 0,
        }
        self._open.enter_context(dask.config.set(settings))
        cluster = LocalCluster(n_workers=self._count, threads_per_worker=1, dashboard_address=None, silence_logs=40)
        self._client = self._open.enter_context(Client(self._open.enter_context(cluster)))
        return self._client
