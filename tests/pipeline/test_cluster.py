"""A function is mapped over inputs on worker processes, and what was sent to them is not kept."""

import gc
import time
from dataclasses import dataclass

import pytest

from pipeline.cluster import Workers, map_tasks


@dataclass(frozen=True)
class Parcel:
    """Something to send."""

    number: int


def double(parcel: Parcel) -> int:
    return 2 * parcel.number


def divide(parcel: Parcel) -> float:
    return 1 / parcel.number


def alive(ours: list[Parcel]) -> int:
    """Parcels of this process that are not ours."""
    gc.collect()
    return sum(1 for thing in gc.get_objects() if type(thing) is Parcel) - len(ours)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_input_gives_its_result_once(workers):
    parcels = [Parcel(number) for number in range(40)]
    assert sorted(map_tasks(double, parcels, workers)) == [(number, 2 * number) for number in range(40)]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_task_reaches_the_caller(workers):
    with pytest.raises(ZeroDivisionError):
        list(map_tasks(divide, [Parcel(1), Parcel(0)], workers))


def test_the_scheduler_which_runs_in_this_process_keeps_no_input():
    parcels = [Parcel(number) for number in range(40)]
    with Workers(2) as workers:
        for _ in range(3):
            assert len(list(workers.map(double, parcels))) == len(parcels)
        deadline = time.monotonic() + 30
        while alive(parcels) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert alive(parcels) == 0
