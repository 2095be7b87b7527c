"""`warmstart audit-template` names what a template does to conversations, and fails on what would be trained wrong."""

import itertools
import json

import pytest

from pipeline.chat.audit import SAMPLES, audit, mask_samples, trained_runs
from pipeline.chat.mask import Refusal, encode
from pipeline.chat.template import ChatFormat
from pipeline.cli.main import main
from tests.tiny_models import CHATML_TOKENS, FAMILIES, GLM_TOKENS, byte_tokenizer, chatml_tokenizer, family_tokenizer

TURN = "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def findings(template: str, stops: frozenset[int] = frozenset({0})) -> dict[str, tuple[str, str]]:
    chat = ChatFormat(byte_tokenizer(CHATML_TOKENS, template), stops, tuple(CHATML_TOKENS))
    return {finding.rule: (finding.level, finding.said) for finding in audit(chat, mask_samples(chat))}


def write_family(folder, family):
    family_tokenizer(family).save_pretrained(folder)
    if family == "glm4moe":
        stops = [GLM_TOKENS.index(token) for token in ("<|endoftext|>", "<|user|>", "<|observation|>")]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    return str(folder)


@pytest.mark.parametrize(
    ("family", "thinking", "tools"),
    [
        ("chatml", "drops `reasoning_content`", "call_not_rendered"),
        ("glm4moe", "one document a user turn", "calls are trained"),
        ("qwen3", "one document a user turn", "calls are trained"),
        ("llama3", "drops `reasoning_content`", "call_not_rendered"),
        ("always_thinking", "kept in every turn", "call_not_rendered"),
    ],
)
def test_the_families_are_fit_to_be_trained_on(tmp_path, capsys, family, thinking, tools):
    assert main(["audit-template", write_family(tmp_path, family)]) == 0
    said = capsys.readouterr().out
    assert "fit to be trained on" in said and "fail" not in said
    lines = {line[8:].split("  ")[0]: line for line in said.splitlines() if line.startswith(("  ok ", "  note "))}
    assert thinking in lines["thinking"] and tools in lines["tool calls"]


def test_trained_text_stands_between_brackets(tmp_path, capsys):
    assert main(["audit-template", write_family(tmp_path, "chatml"), "--samples", "1"]) == 0
    said = capsys.readouterr().out
    assert r"  <|im_start|>user\nASK1<|im_end|>\n<|im_start|>assistant\n[SAY1<|im_end|>]\n" in said.splitlines()
    assert "system and two turns" not in said.split("ok ")[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_runs_of_a_sample_hold_all_its_text(tmp_path, family):
    chat = ChatFormat(family_tokenizer(family), frozenset({0, 4, 6}), ())
    for sample in mask_samples(chat):
        for document in sample.documents:
            runs = trained_runs(chat, document)
            assert "".join(text for text, _ in runs) == chat.tokenizer.decode(document.input_ids)
            assert all(before[1] != after[1] for before, after in itertools.pairwise(runs))


def test_a_template_that_never_ends_a_turn_fails_and_exits_with_1(tmp_path, capsys):
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
    byte_tokenizer(CHATML_TOKENS, template).save_pretrained(tmp_path)
    assert main(["audit-template", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "no_stop_token" in said and "rules fail" in said


def test_a_template_that_puts_the_users_text_into_the_answer_fails():
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}"
        "{{ '<|im_start|>assistant\n' + messages[loop.index0 - 1]['content'] + m['content'] + '<|im_end|>' }}"
        "{% else %}" + TURN + "{% endif %}{% endfor %}" + PROMPT
    )
    assert findings(template)["only the assistant is trained"] == (
        "fail",
        "one turn: ASK1, which is not the assistant's, is trained",
    )


def test_arguments_in_pythons_spelling_fail():
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
        "{% for c in m['tool_calls'] or [] %}{{ c['function']['name'] + (c['function']['arguments'] | string) }}"
        "{% endfor %}{{ '<|im_end|>' }}{% endfor %}" + PROMPT
    )
    level, said = findings(template)["tool calls"]
    assert level == "fail" and "Python's spelling" in said


def test_text_of_a_template_cannot_move_the_cursor(tmp_path, capsys):
    template = "{% for m in messages %}" + TURN + "{{ '\x1b[2J' }}{% endfor %}" + PROMPT
    byte_tokenizer(CHATML_TOKENS, template).save_pretrained(tmp_path)
    main(["audit-template", str(tmp_path)])
    assert "\x1b" not in capsys.readouterr().out


def test_a_call_that_the_template_leaves_out_refuses_the_conversation():
    chat = ChatFormat(chatml_tokenizer(), frozenset({0}), ())
    found = encode(chat, SAMPLES["a tool call"])
    assert found == Refusal("call_not_rendered", {"turn": 1, "name": "look_up"})


def test_a_folder_without_a_tokenizer_is_a_user_error(tmp_path, capsys):
    assert main(["audit-template", str(tmp_path)]) == 1
    assert "no tokenizer can be loaded from here" in capsys.readouterr().err
    assert main(["audit-template", str(tmp_path / "missing")]) == 1
    assert "missing: is no folder; give a model folder" in capsys.readouterr().err
