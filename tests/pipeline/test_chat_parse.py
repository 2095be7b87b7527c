"""Raw text of one turn into messages and an outcome."""

import pytest

from pipeline.chat.parse import parse_turn

MARKERS = ("<|im_start|>", "<|im_end|>")


@pytest.mark.parametrize(
    ("text", "finish_reason", "thinking", "outcome", "content", "thought"),
    [
        ("7 + 5 = 12<|im_end|>", "stop", False, "complete", "7 + 5 = 12", None),
        ("7 + 5 = 12", "stop", False, "complete", "7 + 5 = 12", None),
        ("<|im_end|>", "stop", False, "no_answer", "", None),
        ("7 + 5", "length", False, "cut_in_answer", "7 + 5", None),
        ("<think>seven\n</think>\n12<|im_end|>", "stop", True, "complete", "12", "seven"),
        ("seven\n</think>\n12", "stop", True, "complete", "12", "seven"),
        ("<think>still going", "length", False, "cut_in_thinking", "<think>still going", None),
        ("still going", "length", True, "cut_in_thinking", "still going", None),
        ("<think>a</think>12 or", "length", True, "cut_in_answer", "12 or", "a"),
        ("<think>a</think>", "length", True, "cut_in_thinking", "", "a"),
        ("12", "stop", True, "no_thinking", "12", None),
        ("<think>never closed", "stop", False, "no_thinking", "<think>never closed", None),
        ("<think>a</think>", "stop", True, "no_answer", "", "a"),
        ("<think>a</think>the tag </think> again", "stop", True, "complete", "the tag </think> again", "a"),
    ],
)
def test_a_turn_is_split_and_named(text, finish_reason, thinking, outcome, content, thought):
    messages, found = parse_turn(text, finish_reason, thinking=thinking, markers=MARKERS)
    assert found == outcome
    assert messages[0]["content"] == content
    assert messages[0].get("reasoning_content") == thought


def test_thinking_that_the_server_split_off_is_kept_and_counts_as_thinking():
    messages, outcome = parse_turn("12", "stop", reasoning="seven", thinking=True)
    assert outcome == "complete"
    assert messages == [{"role": "assistant", "content": "12", "reasoning_content": "seven"}]


def test_a_prompt_that_is_too_long_has_no_message():
    assert parse_turn("", "prompt_too_long") == ([], "prompt_too_long")


def test_only_one_stop_marker_at_the_very_end_is_dropped():
    messages, _ = parse_turn("a<|im_end|>b<|im_end|>", "stop", markers=MARKERS)
    assert messages[0]["content"] == "a<|im_end|>b"
