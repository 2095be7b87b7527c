"""Run a pure function over many inputs on a local Dask cluster: one process a core, one thread each."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_tasks(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[tuple[int, R]]:
    """Yield (index, result) as items finish, in any order; the caller orders by index.

    One worker or one item runs in this process, without a cluster. A task that raises ends the iteration with its
    error. One thread a worker: a task that kills its worker would take the neighbours with it (distributed 2026.8).
    """
    if workers <= 1 or len(items) <= 1:
        for index, item in enumerate(items):
            yield index, function(item)
        return
    import dask
    from distributed import Client, LocalCluster, as_completed

    settings: dict[str, Any] = {
        "distributed.worker.daemon": False,  # workers start pools and boxes of their own
        "distributed.scheduler.worker-ttl": None,  # a verifier may hold the interpreter for minutes
        "distributed.admin.tick.limit": "1h",
    }
    with dask.config.set(settings):
        with LocalCluster(
            n_workers=min(workers, len(items)), threads_per_worker=1, dashboard_address=None, silence_logs=40
        ) as cluster:
            with Client(cluster) as client:
                futures = {client.submit(function, item, pure=False): index for index, item in enumerate(items)}
                for future in as_completed(list(futures)):
                    yield futures[future], future.result()
