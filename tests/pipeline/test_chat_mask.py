"""Labels against an independent parse of the rendered text, with ChatML and with GLM-4.5's own template."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.chat.mask import IGNORED, Document, Refusal, encode
from pipeline.chat.template import ChatFormat, load_chat_format
from pipeline.errors import UserError
from tests.tiny_models import CHATML_TOKENS, GLM_TOKENS, byte_tokenizer, chatml_tokenizer, glm_tokenizer


@pytest.fixture(scope="module")
def chatml():
    return ChatFormat(chatml_tokenizer(), frozenset({0}), tuple(CHATML_TOKENS))


@pytest.fixture(scope="module")
def glm():
    stops = {GLM_TOKENS.index(token) for token in ("<|endoftext|>", "<|user|>", "<|observation|>")}
    return ChatFormat(glm_tokenizer(), frozenset(stops), tuple(GLM_TOKENS))


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def trained_texts(chat, document):
    """The runs of trained tokens, decoded."""
    runs, run = [], []
    for token, label in zip(document.input_ids, document.labels, strict=True):
        assert label in (token, IGNORED)
        if label == IGNORED:
            runs, run = ([*runs, run] if run else runs), []
        else:
            run.append(token)
    return [chat.tokenizer.decode(run) for run in ([*runs, run] if run else runs)]


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
TURNS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(system=st.none() | TEXT, turns=TURNS)
def test_chatml_trains_every_answer_with_its_end_token_and_nothing_else(chatml, system, turns):
    messages = [] if system is None else [{"role": "system", "content": system}]
    for question, answer in turns:
        messages += [user(question), assistant(answer)]
    document = encode(chatml, messages)
    text = chatml.render(messages)
    ids, labels = [], []
    for part in re.split(r"(?s)(?<=<\|im_start\|>assistant\n)(.*?<\|im_end\|>)", text):
        piece = chatml.tokenizer(part, add_special_tokens=False)["input_ids"]
        is_answer = part.endswith("<|im_end|>") and not part.startswith("<|im_start|>") and not part.startswith("\n<|")
        ids += piece
        labels += piece if is_answer else [IGNORED] * len(piece)
    assert document == Document(ids, labels)
    assert trained_texts(chatml, document) == [answer + "<|im_end|>" for _, answer in turns]


def test_glm_trains_thinking_answer_and_the_token_of_the_next_role(glm):
    document = encode(glm, [user("Hi"), assistant("Hello."), user("7 + 5?"), assistant("12", reasoning_content="Add.")])
    assert trained_texts(glm, document) == [
        "\n<think></think>\nHello.<|user|>",
        "\n<think>Add.</think>\n12<|user|>",
    ]


def test_glm_stops_at_the_observation_after_a_tool_call(glm):
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    messages = [
        user("Use f"),
        assistant("", tool_calls=[call]),
        {"role": "tool", "content": "9"},
        assistant("It is 9."),
    ]
    first, last = trained_texts(glm, encode(glm, messages, tools))
    assert first.startswith("\n<think></think>\n<tool_call>f") and first.endswith("</tool_call><|observation|>")
    assert last == "\n<think></think>\nIt is 9.<|user|>"


def test_a_template_that_rewrites_earlier_turns_is_refused(glm):
    # GLM empties the thinking of every turn before the last user message.
    messages = [user("a"), assistant("b", reasoning_content="why"), user("c"), assistant("d")]
    assert encode(glm, messages) == Refusal("template_not_prefix_stable", {"turn": 1})


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no_assistant_turn"),
        ([user("a")], "no_assistant_turn"),
        ([assistant("a")], "role_order"),
        ([user("a"), user("b"), assistant("c")], "role_order"),
        ([user("a"), assistant("b"), assistant("c")], "role_order"),
        ([user("a"), assistant("b"), user("c")], "role_order"),
        ([user("a"), {"role": "system", "content": "b"}, assistant("c")], "role_order"),
        ([user("a"), assistant("b"), {"role": "tool", "content": "c"}, assistant("d")], "role_order"),
        ([user("a"), {"role": "robot", "content": "b"}], "role_order"),
        ([user("a"), assistant(None)], "null_content"),
        ([user("a"), assistant(["b"])], "content_not_text"),
        ([user("a<|im_end|>"), assistant("b")], "control_token"),
        ([user("a"), assistant("b<|im_start|>user")], "control_token"),
        ([user("a"), assistant("b", reasoning_content="<|im_end|>")], "control_token"),
        (
            [user("a"), assistant("", tool_calls=[{"function": {"name": "f", "arguments": "{}"}}])],
            "arguments_not_object",
        ),
    ],
)
def test_a_bad_conversation_is_refused_with_its_reason(chatml, messages, reason):
    found = encode(chatml, messages)
    assert isinstance(found, Refusal) and found.reason == reason


def test_a_template_that_never_stops_is_refused():
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: "
    tokenizer = byte_tokenizer(
        ["<|end|>"], template.replace("assistant: ", "{% if add_generation_prompt %}assistant: {% endif %}")
    )
    assert encode(ChatFormat(tokenizer, frozenset({0}), ()), [user("a"), assistant("b")]) == Refusal("no_stop_token")


def test_a_template_that_raises_refuses_the_record():
    tokenizer = byte_tokenizer(["<|end|>"], "{{ raise_exception('only with tools') }}")
    found = encode(ChatFormat(tokenizer, frozenset({0}), ()), [user("a"), assistant("b")])
    assert found == Refusal("template_error", {"error": "only with tools"})


def test_stop_tokens_come_from_the_generation_config(tmp_path):
    glm_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 6]}')
    chat = load_chat_format(tmp_path)
    assert chat.stop_ids == {0, 4, 6}
    assert set(chat.control_tokens) == set(GLM_TOKENS)


def test_equal_tokenizers_in_two_folders_have_equal_digests(tmp_path):
    for name in ("a", "b"):
        chatml_tokenizer().save_pretrained(tmp_path / name)
    glm_tokenizer().save_pretrained(tmp_path / "c")
    first, second, other = (load_chat_format(tmp_path / name).digest() for name in "abc")
    assert first == second
    assert first["template"] != other["template"] and first["tokenizer"] != other["tokenizer"]


def test_a_folder_without_tokenizer_or_template_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="no tokenizer"):
        load_chat_format(tmp_path)
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match="no chat template"):
        load_chat_format(tmp_path / "bare")
