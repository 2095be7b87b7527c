"""Raw text of one turn into messages and an outcome."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.chat.parse import parse_turn, special_tokens

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


# --- thinking: which closer is meant

FENCED = "```\n<think>x</think>\n```"


@pytest.mark.parametrize(
    ("text", "content", "thought"),
    [
        ("<think>I quote `</think>` here.\n</think>\n12", "12", "I quote `</think>` here."),
        ("<think>I quote ``a ` </think>`` here.</think>12", "12", "I quote ``a ` </think>`` here."),
        ('<think>I quote "</think>" here.</think>12', "12", 'I quote "</think>" here.'),
        (f"<think>So:\n{FENCED}\nGood.</think>12", "12", f"So:\n{FENCED}\nGood."),
        ("<think>So:\n~~~~\n~~~\n</think>\n~~~~\n</think>\n12", "12", "So:\n~~~~\n~~~\n</think>\n~~~~"),
        ("<think>```\ncode\n```</think>\n```\nmore\n```", "```\nmore\n```", "```\ncode\n```"),
        ("<think>```\nnever closed\n</think>\n12 and </think>", "12 and </think>", "```\nnever closed"),
        ("<think>a lone ` tick\n</think>\n12 `x`", "12 `x`", "a lone ` tick"),
        ("<think>`a`</think>`b` and </think>", "`b` and </think>", "`a`"),
        ("<think>```inline``` </think>12", "12", "```inline```"),
        ("<think>a `</think>` b", "` b", "a `"),
        ("<think>```\na\n</think>\n12\n```\n", "12\n```", "```\na"),
        ("<think>a</think>`</think>` ends it", "`</think>` ends it", "a"),
        (" \n<think>\n\na\n\n</think>\n\n12\n", "12", "a"),
    ],
)
def test_after_an_opener_the_first_closer_outside_code_and_quotes_splits(text, content, thought):
    for thinking in (False, True):
        messages, outcome = parse_turn(text, "stop", thinking=thinking)
        assert messages == [{"role": "assistant", "content": content, "reasoning_content": thought}]
        assert outcome == "complete"


@pytest.mark.parametrize(
    "text",
    [
        "The tag `</think>` closes it.",
        'The tag "</think>" closes it.',
        f"Write:\n{FENCED}\nDone.",
        f"Write:\n\n   {FENCED.replace('```', '~~~~')}",
        "The </think> tag closes it.",
        "Use <think>a</think> around it.",
        "Use <think> and\n</think>\nfor it.",
    ],
)
def test_an_answer_that_talks_about_the_tags_stays_whole(text):
    assert parse_turn(text, "stop") == ([{"role": "assistant", "content": text}], "complete")


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize(
    ("text", "content", "thought"),
    [
        ("seven\n</think>\n12", "12", "seven"),
        ("so 12.</think>12", "12", "so 12."),
        ("I need the `</think>` tag \n</think>\n12", "12", "I need the `</think>` tag"),
        ("so 12. </think>\n\n12", "12", "so 12."),
    ],
)
def test_a_prefilled_opener_may_be_missing(text, content, thought, thinking):
    messages, outcome = parse_turn(text, "stop", thinking=thinking)
    assert messages == [{"role": "assistant", "content": content, "reasoning_content": thought}]
    assert outcome == "complete"


def test_a_declared_thinker_s_turn_splits_at_its_only_closer():
    messages, _ = parse_turn("```\nnever closed\n</think>\n12\n```", "stop", thinking=True)
    assert messages[0]["reasoning_content"] == "```\nnever closed"
    messages, _ = parse_turn("I think </think> 12", "stop", thinking=True)
    assert messages[0] == {"role": "assistant", "content": "12", "reasoning_content": "I think"}


@pytest.mark.parametrize("block", ["<think></think>", "<think>\n\n</think>\n\n", "</think>", " <think> </think>"])
def test_an_empty_block_is_no_thinking(block):
    assert parse_turn(f"{block}\n12", "stop") == ([{"role": "assistant", "content": "12"}], "complete")
    assert parse_turn(f"{block}\n12", "stop", thinking=True) == (
        [{"role": "assistant", "content": "12"}],
        "no_thinking",
    )
    assert parse_turn(block, "stop")[1] == "no_answer"
    assert parse_turn(f"{block}12 or", "length", thinking=True)[1] == "cut_in_answer"


# --- what a server split


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "thought"),
    [
        ("12", "seven", "12", "seven"),
        ("12", "<think>seven", "12", "seven"),
        ("<think>seven</think>12", "seven", "12", "seven"),
        ("<think>seven</think>12", "", "12", "seven"),
        ("<think>eight</think>12", "seven", "12", "seven\neight"),
        ("", "seven</think>12", "12", "seven"),
        ("` is the tag.</think>12", "I know: `", "12", "I know: `</think>` is the tag."),
        ("12 `</think>`", "seven", "12 `</think>`", "seven"),
        ("The </think> tag", "seven", "The </think> tag", "seven"),
        ("seven</think>12", " ", "12", "seven"),
    ],
)
def test_what_a_server_split_is_what_our_own_split_gives(text, reasoning, content, thought):
    assert parse_turn(text, "stop", reasoning=reasoning, thinking=True) == (
        [{"role": "assistant", "content": content, "reasoning_content": thought}],
        "complete",
    )


def test_an_answer_that_landed_in_the_reasoning_is_skipped_thinking_not_an_empty_answer():
    assert parse_turn("", "stop", reasoning="The answer is 12.", thinking=True) == (
        [{"role": "assistant", "content": "The answer is 12."}],
        "no_thinking",
    )
    messages, outcome = parse_turn("\n", "stop", reasoning="The answer is 12.")
    assert (messages[0]["reasoning_content"], outcome) == ("The answer is 12.", "no_answer")


def test_a_cut_inside_the_reasoning_stays_reasoning():
    messages, outcome = parse_turn("", "length", reasoning="seven and", thinking=True)
    assert messages == [{"role": "assistant", "content": "", "reasoning_content": "seven and"}]
    assert outcome == "cut_in_thinking"
    assert parse_turn("12 or", "length", reasoning="seven", thinking=True)[1] == "cut_in_answer"
    assert parse_turn("", "length", reasoning="", thinking=True)[1] == "cut_in_thinking"


def test_an_opener_after_the_servers_split_is_not_an_answer():
    assert parse_turn("<think>again", "stop", reasoning="seven")[1] == "no_thinking"
    assert parse_turn("<think>again", "length", reasoning="seven")[1] == "cut_in_thinking"


# --- calls in a turn

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 7}}\n</tool_call>'


def parse_call(text, finish_reason="stop", **options):
    return parse_turn(text, finish_reason, call_format="hermes", markers=(*MARKERS, "</tool_call>"), **options)


@pytest.mark.parametrize("text", [CALL, f"{CALL}<|im_end|>", f"<think>seven</think>{CALL}", f"\n\n{CALL}\n"])
def test_a_turn_of_calls_only_is_complete(text):
    messages, outcome = parse_call(text)
    assert outcome == "complete"
    assert messages[0]["content"] == ""
    assert [call["function"] for call in messages[0]["tool_calls"]] == [{"name": "add", "arguments": {"a": 7}}]


def test_without_a_call_format_calls_stay_text():
    assert parse_turn(CALL, "stop") == ([{"role": "assistant", "content": CALL}], "complete")


def test_a_thinker_that_calls_without_thinking_has_its_calls_read():
    messages, outcome = parse_call(CALL, thinking=True)
    assert outcome == "no_thinking"
    assert len(messages[0]["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"<think>seven {CALL}", {}),
        (f"<think>seven {CALL}</think>", {}),
        ("", {"reasoning": f"seven {CALL}", "thinking": True}),
        ("", {"reasoning": f"seven {CALL}"}),
    ],
)
def test_a_call_only_while_thinking_is_malformed_and_kept_in_the_content(text, options):
    messages, outcome = parse_call(text, **options)
    assert outcome == "malformed_call"
    assert CALL in messages[0]["content"]
    assert messages[0].keys() == {"role", "content"}


def test_a_call_only_while_thinking_is_no_plain_answer():
    messages, outcome = parse_call(f"<think>seven {CALL}</think>Done.")
    assert outcome == "malformed_call"
    assert (messages[0]["reasoning_content"], messages[0]["content"]) == (f"seven {CALL}", "Done.")


@pytest.mark.parametrize(
    "draft",
    [f"`{CALL}`".replace("\n", " "), f"```\n{CALL}\n```", "I use <tool_call> next.", "<tool_call>{</tool_call>"],
)
def test_a_draft_or_a_mention_while_thinking_is_no_call(draft):
    assert parse_call(f"<think>{draft}\n</think>Done.")[1] == "complete"
    messages, outcome = parse_call(f"<think>{draft}\n</think>{CALL}")
    assert (len(messages[0]["tool_calls"]), outcome) == (1, "complete")


def test_calls_of_a_cut_turn_are_not_read():
    messages, outcome = parse_call(f"{CALL}<tool_call>", "length")
    assert (messages, outcome) == ([{"role": "assistant", "content": f"{CALL}<tool_call>"}], "cut_in_answer")
    given = [{"function": {"name": "add", "arguments": '{"a"'}}]
    messages, outcome = parse_call("", "length", reasoning="seven", tool_calls=given)
    assert outcome == "cut_in_answer"
    assert json.loads(messages[0]["content"]) == given


def test_a_server_s_calls_are_an_answer():
    given = [{"id": "1", "function": {"name": "add", "arguments": "{}"}}]
    messages, outcome = parse_turn("", "tool_calls", reasoning="seven", thinking=True, tool_calls=given)
    assert outcome == "complete"
    assert messages[0]["reasoning_content"] == "seven"
    assert messages[0]["tool_calls"][0]["id"] == "1"


# --- stop markers


@pytest.mark.parametrize("marker", ["<|user|>", "<|observation|>", "<|endoftext|>"])
def test_each_of_glm_s_stop_markers_is_dropped(marker):
    markers = ("<|user|>", "<|observation|>", "<|endoftext|>", "</think>", "r|>")
    assert parse_turn(f"12{marker}", "stop", markers=markers)[0][0]["content"] == "12"
    assert parse_turn(f"12<|user|>{marker}", "stop", markers=markers)[0][0]["content"] == "12<|user|>"


def test_a_tag_that_is_a_special_token_is_no_stop_marker():
    messages, outcome = parse_turn("<think>a</think>", "stop", markers=("</think>", "<think>"))
    assert (messages[0]["reasoning_content"], outcome) == ("a", "no_answer")


# --- laws

BITS = st.sampled_from(["<think>", "</think>", "`", "``", "```", "~~~", '"', " ", "\n", "\n```\n", "a", "b", "é", "\t"])
TURNS = st.lists(BITS, max_size=30).map("".join) | st.text()


def squeeze(text):
    return "".join(text.split())


@given(text=TURNS, thinking=st.booleans(), finish_reason=st.sampled_from(["stop", "length"]))
def test_thinking_and_answer_together_are_the_turn(text, thinking, finish_reason):
    (message,), _ = parse_turn(text, finish_reason, thinking=thinking)
    content, thought = squeeze(message["content"]), squeeze(message.get("reasoning_content", ""))
    split = f"{thought}</think>{content}"
    assert squeeze(text) in (content, split, f"<think>{split}")


@given(text=TURNS, thought=TURNS)
def test_a_server_s_reasoning_is_never_lost(text, thought):
    words = [f"w{index}" for index in range(4)]
    text, thought = f"w0{text}w1", f"w2{thought}w3"
    for finish_reason in ("stop", "length"):
        (message,), _ = parse_turn(text, finish_reason, reasoning=thought, thinking=True)
        said = message["content"] + message.get("reasoning_content", "")
        assert [word for word in words if word not in said] == []


@given(thought=st.text(), content=st.text())
def test_the_servers_split_and_the_raw_text_give_one_message(thought, content):
    assume("<" not in thought + content and thought.strip() and content.strip())
    raw = parse_turn(f"<think>{thought}</think>{content}", "stop", thinking=True)
    assert parse_turn(content, "stop", reasoning=thought, thinking=True) == raw
    assert raw[1] == "complete"


MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    "unit",
    ["<think>", "`</think>`", "`", "``` ", "```a\n", "```\n", "~~~\n</think>`\n", '"</think>"', "x </think> y"],
)  # fmt: skip
def test_a_megabyte_of_quoted_tags_is_split_where_it_ends(unit):
    text = "a" + unit * (MEGABYTE // len(unit)) + "."
    messages, outcome = parse_turn(f"<think>{text}\n</think>\n12", "stop")
    assert outcome == "complete"
    assert squeeze(messages[0]["reasoning_content"] + "</think>" + messages[0]["content"]) == squeeze(
        f"{text}</think>12"
    )
    assert parse_turn(text, "stop")[1] == "complete"


def test_fences_and_ticks_of_ever_shorter_length_take_linear_time():
    fences = "".join("`" * (3 + length) + "\n" for length in reversed(range(1400)))
    ticks = " ".join("`" * length for length in reversed(range(1, 1400)))
    for text in (fences, ticks):
        messages, outcome = parse_turn(f"<think>{text}\n</think>\n12", "stop")
        assert (messages[0]["content"], outcome) == ("12", "complete")


def test_special_tokens_come_longest_first_from_the_tokenizer_s_file(tmp_path):
    assert special_tokens(tmp_path) == ()
    added = [
        {"content": text, "special": special} for text, special in (("<a>", True), ("<think>", False), ("<|b|>", True))
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert special_tokens(tmp_path) == ("<|b|>", "<a>")
