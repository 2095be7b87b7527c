"""Which rows a step takes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipeline.train.rows import plan_order

NUMBERS = {"num_rows": st.integers(1, 50), "epochs": st.integers(1, 4), "rows_per_step": st.integers(1, 9)}


@given(**NUMBERS, seed=st.integers(0, 9))
def test_every_row_is_taken_once_an_epoch_and_filler_only_ends_the_last_step(num_rows, epochs, rows_per_step, seed):
    order = plan_order(num_rows, epochs, rows_per_step, seed)
    for epoch in range(epochs):
        assert sorted(order[epoch * num_rows : (epoch + 1) * num_rows]) == list(range(num_rows))
    filler = order[epochs * num_rows :]
    assert Counter(filler).keys() <= {num_rows}
    assert len(filler) < rows_per_step
    assert len(order) % rows_per_step == 0


@given(**NUMBERS)
def test_the_order_depends_on_the_seed_alone(num_rows, epochs, rows_per_step):
    assert plan_order(num_rows, epochs, rows_per_step, 3) == plan_order(num_rows, epochs, rows_per_step, 3)


def test_another_seed_gives_another_order():
    assert plan_order(50, 1, 1, 0) != plan_order(50, 1, 1, 1)
