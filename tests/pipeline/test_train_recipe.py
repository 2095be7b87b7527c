"""The learning rate of a phase, step by step, as the Trainer makes it from our settings."""

import math

import pytest
from pydantic import ValidationError

from pipeline.train.recipe import TrainRecipe

STEPS = 40


def rates(**values):
    """The share of the highest learning rate at each step."""
    import torch
    from transformers import get_scheduler

    settings = TrainRecipe(learning_rate=1.0, rows_per_step=1, **values).schedule_settings(STEPS)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler(
        settings["lr_scheduler_type"],
        optimizer,
        settings["warmup_steps"],
        STEPS,
        settings.get("lr_scheduler_kwargs"),
    )
    found = []
    for _ in range(STEPS + 1):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_the_rate_rises_in_a_line_and_ends_at_zero(schedule):
    found = rates(schedule=schedule, warmup=0.25)
    assert found[:11] == pytest.approx([step / 10 for step in range(11)])
    assert found[-1] == pytest.approx(0, abs=1e-9)
    assert found[10:] == sorted(found[10:], reverse=True)


def test_the_middle_of_the_fall_tells_the_schedules_apart():
    assert rates(schedule="linear", warmup=0.0)[20] == pytest.approx(0.5)
    assert rates(schedule="cosine", warmup=0.0)[10] == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    found = rates(schedule="wsd", warmup=0.1, decay=0.5)
    assert found[4:21] == pytest.approx([1.0] * 17)
    assert found[30] == pytest.approx(0.5)


def test_warmup_and_decay_that_overlap_are_refused():
    with pytest.raises(ValidationError, match="together 1 at most"):
        TrainRecipe(learning_rate=1.0, rows_per_step=1, schedule="wsd", warmup=0.6, decay=0.5)
