"""Masks of five families of templates against an oracle that reads the whole rendered text."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.chat.mask import IGNORED, Document, Refusal, encode, encode_all
from pipeline.chat.template import ChatFormat
from tests.tiny_models import FAMILIES, GLM_TOKENS, family_tokenizer

ANSWER = {
    "chatml": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)",
    "glm4moe": r"<\|assistant\|>(.*?(?:<\|user\|>|<\|observation\|>|\Z))",
    "qwen3": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)",
    "llama3": r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)",
    "always_thinking": r"<\|assistant\|>\n<think>(.*?<\|im_end\|>)",
}
"""What a family's assistant writes, up to and with the token that stops it."""
USER = {
    "chatml": r"<\|im_start\|>user\n",
    "glm4moe": r"<\|user\|>",
    "qwen3": r"<\|im_start\|>user\n(?!<tool_response>)",
    "llama3": r"<\|start_header_id\|>user<",
    "always_thinking": r"<\|im_start\|><\|user\|>",
}
WITH_TOOLS = ("glm4moe", "qwen3")
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def chat_format(family: str) -> ChatFormat:
    tokens, num_stops, _ = FAMILIES[family]
    stops = range(num_stops) if num_stops else map(GLM_TOKENS.index, ("<|endoftext|>", "<|user|>", "<|observation|>"))
    return ChatFormat(family_tokenizer(family), frozenset(stops), tuple(tokens))


FORMATS = {family: chat_format(family) for family in FAMILIES}
WORDS = st.text(st.sampled_from("ab é日\n<|>{}*"), min_size=1, max_size=10).map(lambda text: f"w{text}w")


@st.composite
def conversations(draw: st.DrawFn, family: str) -> list[dict]:
    """Good conversations: thinking or none, cycles of tools where the family has them."""
    messages = [{"role": "system", "content": draw(WORDS)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(WORDS)})
        for _ in range(draw(st.integers(0, 2)) if family in WITH_TOOLS else 0):
            call = {"type": "function", "function": {"name": "look", "arguments": {"at": draw(WORDS), "n": 3}}}
            messages.append(
                {"role": "assistant", "content": "", "reasoning_content": draw(WORDS), "tool_calls": [call]}
            )
            messages += [{"role": "tool", "content": draw(WORDS)}] * draw(st.integers(1, 2))
        thinking = {"reasoning_content": draw(WORDS) if family == "always_thinking" or draw(st.booleans()) else ""}
        messages.append({"role": "assistant", "content": draw(WORDS), **thinking})
    return messages


def runs(document: Document) -> list[tuple[int, int]]:
    """Start and end of each run of trained tokens."""
    marked = "".join("." if label == IGNORED else "T" for label in document.labels)
    return [match.span() for match in re.finditer("T+", marked)]


@pytest.mark.parametrize("family", FAMILIES)
def test_masks_equal_what_an_oracle_reads_from_the_rendered_text(family):
    chat = FORMATS[family]

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(conversations(family))
    def holds(messages):
        tools = TOOLS if any("tool_calls" in message for message in messages) else None
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        documents = encode_all(chat, messages, tools)
        assert len(documents) in (1, len(users))
        whole = len(documents) == 1
        for document, end in zip(documents, [len(messages)] if whole else [*users[1:], len(messages)], strict=True):
            assert isinstance(document, Document)
            text = chat.render(messages[:end], tools)
            said_after = 0 if whole else max(match.end() for match in re.finditer(USER[family], text))
            expected = [m[1] for m in re.finditer(ANSWER[family], text, re.DOTALL) if m.start() >= said_after]
            if family == "glm4moe":  # what the user's next word begins with is the last turn's stop token
                expected[-1] += "<|user|>"
            found = [chat.tokenizer.decode(document.input_ids[a:b]) for a, b in runs(document)]
            assert found == expected
            assert all(document.input_ids[b - 1] in chat.stop_ids for _, b in runs(document))
            assert chat.tokenizer.decode(document.input_ids).startswith(text)

    holds()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_answer_is_trained_once_in_the_context_that_inference_shows(family):
    chat = FORMATS[family]

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(conversations(family))
    def holds(messages):
        tools = TOOLS if any("tool_calls" in message for message in messages) else None
        contexts = [
            chat.tokenizer.decode(document.input_ids[:start])
            for document in encode_all(chat, messages, tools)
            for start, _ in runs(document)
        ]
        answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        assert contexts == [chat.render(messages[:index], tools, prompt=True) for index in answers]

    holds()


def test_thinking_that_the_template_drops_later_is_trained_where_it_was_thought():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "why"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    chat = FORMATS["glm4moe"]
    assert encode(chat, messages) == Refusal("template_not_prefix_stable", {"turn": 1})
    trained = [
        [chat.tokenizer.decode(document.input_ids[a:b]) for a, b in runs(document)]
        for document in encode_all(chat, messages)
    ]
    assert trained == [["\n<think>why</think>\nb<|user|>"], ["\n<think></think>\nd<|user|>"]]
