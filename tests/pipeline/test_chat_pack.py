"""The laws of packing, on any set of documents."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.chat.pack import pack

ROW_LENGTH = 64
DOCUMENTS = st.dictionaries(st.text(min_size=1, max_size=4), st.integers(1, ROW_LENGTH), max_size=60)


@given(DOCUMENTS)
def test_every_document_lies_in_exactly_one_row(lengths):
    assert sorted(name for row in pack(lengths, ROW_LENGTH) for name in row) == sorted(lengths)


@given(DOCUMENTS)
def test_no_row_is_longer_than_allowed_and_none_is_empty(lengths):
    for row in pack(lengths, ROW_LENGTH):
        assert 1 <= sum(lengths[name] for name in row) <= ROW_LENGTH


@given(DOCUMENTS)
def test_no_two_rows_would_fit_into_one(lengths):
    totals = sorted(sum(lengths[name] for name in row) for row in pack(lengths, ROW_LENGTH))
    assert len(totals) < 2 or totals[0] + totals[1] > ROW_LENGTH


@given(DOCUMENTS, st.randoms(use_true_random=False))
def test_the_order_of_the_documents_does_not_matter(lengths, rng: random.Random):
    names = list(lengths)
    rng.shuffle(names)
    assert pack({name: lengths[name] for name in names}, ROW_LENGTH) == pack(lengths, ROW_LENGTH)


def test_the_fullest_row_that_fits_is_taken():
    assert pack({"a": 5, "b": 4, "c": 3, "d": 3}, 8) == [["a", "c"], ["b", "d"]]


def test_a_document_that_fits_no_row_is_an_error():
    with pytest.raises(ValueError, match="9 tokens"):
        pack({"a": 9}, 8)


@pytest.mark.parametrize(("median", "row_length"), [(800, 8_192), (6_000, 65_536), (12_000, 98_304)])
def test_rows_are_nearly_full_on_the_lengths_of_reasoning_traces(median, row_length):
    rng = random.Random(0)
    drawn = (round(rng.lognormvariate(0, 1.1) * median) for _ in range(6_000))
    lengths = {str(number): length for number, length in enumerate(drawn) if 1 <= length <= row_length}
    rows = pack(lengths, row_length)
    assert sum(lengths.values()) >= 0.98 * row_length * len(rows)
