"""Dataclasses and Arrow schemas say the same, and ids depend on content alone."""

import dataclasses
import math
import types
import typing

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records import (
    RECORD_TYPES,
    canonical_json,
    content_id,
    normalise_prompt,
    prompt_id_of,
    schema_of,
    table_name,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("record_type", RECORD_TYPES, ids=lambda record_type: record_type.__name__)
def test_fields_and_schema_agree_in_order_type_and_nullability(record_type):
    hints = typing.get_type_hints(record_type)
    fields = [field.name for field in dataclasses.fields(record_type)]
    schema = schema_of(record_type)
    assert fields == schema.names
    kinds = {str: (pa.string(),), int: (pa.int32(), pa.int64()), float: (pa.float64(),)}
    for name in fields:
        optional = isinstance(hints[name], types.UnionType)
        (plain,) = [kind for kind in typing.get_args(hints[name]) or (hints[name],) if kind is not type(None)]
        assert schema.field(name).type in kinds[plain], name
        assert schema.field(name).nullable == optional, name


def test_table_names_differ():
    assert len({table_name(record_type) for record_type in RECORD_TYPES}) == len(RECORD_TYPES)


def test_ids_never_change():
    # These stand in published shards and in the sample ledger.
    assert content_id("a", 1, None, {"b": [1.5, "ü"]}) == "445f4dc7e7f8d2e01b55478ab4bfce2a"
    assert prompt_id_of([{"role": "user", "content": "2 + 2?"}]) == "e2e272456eb97ce117b5e9d5be3dec01"


@given(JSON)
def test_key_order_does_not_change_an_id(value):
    def reversed_keys(value):
        if isinstance(value, dict):
            return {key: reversed_keys(value[key]) for key in reversed(value)}
        return [reversed_keys(item) for item in value] if isinstance(value, list) else value

    assert content_id(value) == content_id(reversed_keys(value))


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_different_parts_have_different_ids(one, other):
    assert (content_id(*one) == content_id(*other)) == (one == other)


def test_parts_are_not_run_together():
    assert len({content_id("ab", "c"), content_id("a", "bc"), content_id("abc"), content_id(["ab", "c"])}) == 4
    assert content_id("1") != content_id(1)
    assert content_id(None) != content_id("")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_canonical_json_refuses_what_is_not_json(value):
    with pytest.raises(ValueError):
        canonical_json({"x": value})


def test_half_a_surrogate_pair_has_an_id():
    assert len(content_id("\ud800")) == 32


@given(st.text())
def test_normalising_twice_changes_nothing(text):
    assert normalise_prompt(normalise_prompt(text)) == normalise_prompt(text)


def test_prompt_id_ignores_system_text_and_white_space_but_not_digits():
    def prompt_id(text, system="be brief"):
        return prompt_id_of([{"role": "system", "content": system}, {"role": "user", "content": text}])

    assert prompt_id("What is 2 + 2?") == prompt_id("  What is\n2 + 2?", system="be long")
    assert prompt_id("What is 2 + 2?") != prompt_id("What is 2 + 3?")
    assert prompt_id("Sort A, b") != prompt_id("Sort a, b")
