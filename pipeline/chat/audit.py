"""Check a chat template by what it does to sample conversations: what is trained, what stays, what breaks.

`audit(chat)` gives one finding a rule. A rule that fails means that `pack` would train something wrong or nothing; a
note says how the template behaves where templates differ. Nothing is known of any template by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.chat.mask import IGNORED, Document, Refusal, encode_all
from pipeline.chat.template import ChatFormat, Message

CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": {"city": "OSLO", "days": 3}}}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]
SAMPLES: dict[str, tuple[Message, ...]] = {
    "one turn": ({"role": "user", "content": "ASK1"}, {"role": "assistant", "content": "SAY1"}),
    "system and two turns": (
        {"role": "system", "content": "RULES"},
        {"role": "user", "content": "ASK1"},
        {"role": "assistant", "content": "SAY1"},
        {"role": "user", "content": "ASK2"},
        {"role": "assistant", "content": "SAY2"},
    ),
    "thinking in two turns": (
        {"role": "user", "content": "ASK1"},
        {"role": "assistant", "content": "SAY1", "reasoning_content": "THINK1"},
        {"role": "user", "content": "ASK2"},
        {"role": "assistant", "content": "SAY2", "reasoning_content": "THINK2"},
    ),
    "a tool call": (
        {"role": "user", "content": "ASK1"},
        {"role": "assistant", "content": "", "reasoning_content": "THINK1", "tool_calls": [CALL]},
        {"role": "tool", "content": "RESULT1", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "SAY2", "reasoning_content": "THINK2"},
    ),
}
"""Sample conversations, each word of which tells whose it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found."""

    rule: str
    level: Literal["ok", "note", "fail"]
    said: str


@dataclass(frozen=True, slots=True)
class Masked:
    """A sample's documents, or why it has none."""

    name: str
    documents: tuple[Document, ...]
    refused: str | None


def mask_samples(chat: ChatFormat) -> list[Masked]:
    """Every sample, masked as `pack` would."""
    found = []
    for name, messages in SAMPLES.items():
        parts = encode_all(chat, messages, TOOLS if any("tool_calls" in message for message in messages) else None)
        refused = next((part for part in parts if isinstance(part, Refusal)), None)
        said = None if refused is None else f"{refused.reason} {refused.evidence or ''}".rstrip()
        found.append(Masked(name, tuple(part for part in parts if isinstance(part, Document)), said))
    return found


def trained_runs(chat: ChatFormat, document: Document) -> list[tuple[str, bool]]:
    """The document's text in runs: (text, whether it is trained)."""
    runs: list[tuple[list[int], bool]] = []
    for token, label in zip(document.input_ids, document.labels, strict=True):
        trained = label != IGNORED
        if not runs or runs[-1][1] != trained:
            runs.append(([], trained))
        runs[-1][0].append(token)
    return [(str(chat.tokenizer.decode(ids)), trained) for ids, trained in runs]


def audit(chat: ChatFormat, samples: Sequence[Masked]) -> list[Finding]:
    """One finding a rule, in a fixed order."""
    by_name = {sample.name: sample for sample in samples}
    rules: tuple[Callable[[ChatFormat, dict[str, Masked]], Finding], ...] = (
        _usable,
        _stops,
        _only_the_assistant,
        _thinking,
        _tool_calls,
        _null_content,
        _control_tokens,
    )
    return [rule(chat, by_name) for rule in rules]


def _text(chat: ChatFormat, sample: Masked, trained: bool) -> str:
    """All that is trained of a sample, or all that is not."""
    return "\n".join(
        text for document in sample.documents for text, marked in trained_runs(chat, document) if marked == trained
    )


def _usable(chat: ChatFormat, samples: dict[str, Masked]) -> Finding:
    """Plain conversations can be trained on at all."""
    for name in ("one turn", "system and two turns"):
        if samples[name].refused:
            return Finding("conversations are usable", "fail", f"{name}: refused, {samples[name].refused}")
    return Finding("conversations are usable", "ok", "one turn, and a system message with two turns, are masked")


def _stops(chat: ChatFormat, samples: dict[str, Masked]) -> Finding:
    """Every trained run ends with a token that ends a turn (renderers#66: without it a model never stops calling)."""
    rule, stops = "the stop token is trained", set()
    for sample in samples.values():
        for document in sample.documents:
            ends = [
                token
                for token, label, following in zip(
                    document.input_ids, document.labels, [*document.labels[1:], IGNORED], strict=True
                )
                if label != IGNORED and following == IGNORED
            ]
            if any(token not in chat.stop_ids for token in ends):
                return Finding(rule, "fail", f"{sample.name}: a trained turn ends without one")
            stops |= set(ends)
    if not stops:
        return Finding(rule, "fail", "no sample can be masked")
    return Finding(rule, "ok", f"turns end with {_names(chat, stops)}; these end generation as well")


def _names(chat: ChatFormat, ids: set[int]) -> str:
    return ", ".join(str(chat.tokenizer.convert_ids_to_tokens(token)) for token in sorted(ids))


def _only_the_assistant(chat: ChatFormat, samples: dict[str, Masked]) -> Finding:
    """System, user and tool text carry no loss; what the assistant said does."""
    rule = "only the assistant is trained"
    for sample in samples.values():
        if sample.refused:
            continue
        trained = _text(chat, sample, True)
        for word in ("RULES", "ASK1", "ASK2", "RESULT1", "Weather of a city"):
            if word in trained:
                return Finding(rule, "fail", f"{sample.name}: {word}, which is not the assistant's, is trained")
        for message in SAMPLES[sample.name]:
            if message["role"] == "assistant" and message["content"] not in trained:
                return Finding(rule, "fail", f"{sample.name}: the answer {message['content']} is not trained")
    return Finding(rule, "ok", "system, user and tool text never are")


def _thinking(chat: ChatFormat, samples: dict[str, Masked]) -> Finding:
    """What becomes of `reasoning_content`, in the turn itself and once the user speaks again."""
    rule, sample = "thinking", samples["thinking in two turns"]
    if sample.refused:
        return Finding(rule, "fail", f"conversations with thinking are refused: {sample.refused}")
    trained = _text(chat, sample, True)
    if "THINK1" not in trained and "THINK2" not in trained:
        return Finding(rule, "note", "the template drops `reasoning_content`: only the answers of traces are trained")
    if len(sample.documents) > 1:
        said = "kept until the user speaks again: a conversation becomes one document a user turn"
        return Finding(rule, "ok", said)
    return Finding(rule, "ok", "kept in every turn")


def _tool_calls(chat: ChatFormat, samples: dict[str, Masked]) -> Finding:
    """Calls are written and trained, their arguments as JSON or tags, and results are written."""
    rule, sample = "tool calls", samples["a tool call"]
    if sample.refused:
        return Finding(rule, "note", f"`pack` refuses traces with tools: {sample.refused}")
    trained = _text(chat, sample, True)
    if "OSLO" not in trained:
        return Finding(rule, "fail", "the arguments of a call are not trained")
    if "RESULT1" not in _text(chat, sample, False):
        return Finding(rule, "fail", "what a tool returned is not written")
    if '\\"' in trained or "'city'" in trained:
        return Finding(rule, "fail", "an object of arguments is written as quoted text or in Python's spelling")
    return Finding(rule, "ok", "calls are trained with their arguments, results are not")


def _null_content(chat: ChatFormat, samples: dict[str, Masked]) -> Finding:
    """Many templates print a null as the word None; such a message is refused."""
    rule, messages = "null content", [*SAMPLES["one turn"][:1], {"role": "assistant", "content": None}]
    try:
        text = chat.render(messages)
    except Exception as error:  # noqa: BLE001 - templates raise what they like
        return Finding(rule, "note", f"raises {type(error).__name__}; `pack` refuses such messages first")
    printed = "None" in text.replace(chat.render(messages[:1], prompt=True), "")
    return Finding(rule, "note", f"{'printed as None' if printed else 'left out'}; `pack` refuses such messages first")


def _control_tokens(chat: ChatFormat, samples: dict[str, Masked]) -> Finding:
    """A message that spells a control token would be read as one; such a message is refused."""
    rule = "control tokens in text"
    spelled = [token for token in chat.control_tokens if len(chat.tokenize(f"a{token}b")) < len(token)]
    if not spelled:
        return Finding(rule, "ok", "no text of a message becomes a control token")
    shown = ", ".join(spelled[:4]) + (f" and {len(spelled) - 4} more" if len(spelled) > 4 else "")
    return Finding(rule, "note", f"a message may not hold {shown}; `pack` refuses those that do")
