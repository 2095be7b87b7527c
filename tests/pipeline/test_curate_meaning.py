"""High overlap is not enough: what changes an answer makes another question."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.curate.meaning import jaccard, same_question, shingles_of, words_of

STORY = "In the market of Ardel a baker sells 12 loaves and 7 rolls every morning before the bell rings."

SAME = [
    (STORY, STORY.lower()),
    (STORY, STORY.replace(" ", "  ") + "\n"),
    (STORY, f"**{STORY}**"),
    (STORY, STORY.replace("baker", "bakker")),
    (STORY, f"{STORY} Please reason step by step, and put your final answer within \\boxed{{}}."),
    ("Anna sings. Bert is not here. How many sing?", "Bert is not here. Anna sings. How many sing?"),
]
DIFFERENT = [
    (STORY, STORY.replace("12", "13")),
    (STORY, STORY.replace("before", "after")),
    (STORY, STORY.replace("Ardel", "Nomvik")),
    (STORY, STORY + " Divide by 3."),
    ("Evaluate (20 + 36) * 13 - 4.", "Evaluate 20 + 36 * (13 - 4)."),
    ("What is 3 + 4?", "What is 3 - 4?"),
    ("Name the charge of CO in water.", "Name the charge of Co in water."),
    ("Add 41 ms and 32 ms.", "Add 41 Ms and 32 Ms."),
    ("Sort the list in ascending order.", "Sort the list in descending order."),
    ("The guests don't eat fish.", "The guests do eat fish."),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_layout_typos_order_of_sentences_and_customary_requests_change_nothing(left, right):
    assert same_question(left, right) and same_question(right, left)


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_numbers_symbols_polarity_names_and_units_make_another_question(left, right):
    assert not same_question(left, right) and not same_question(right, left)


def test_texts_below_the_run_length_are_one_run_each():
    assert shingles_of(words_of("cat"), 5) == {"cat"} and shingles_of(words_of("dog"), 5) == {"dog"}
    assert jaccard(shingles_of(["cat"], 5), shingles_of(["dog"], 5)) == 0
    assert len(shingles_of(list("abcdef"), 5)) == 2


@given(st.text(max_size=60), st.text(max_size=60))
def test_sameness_is_symmetric_and_a_text_is_the_same_as_itself(left, right):
    assert same_question(left, right) == same_question(right, left)
    assert same_question(left, left)
