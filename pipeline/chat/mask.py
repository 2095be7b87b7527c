"""Turn a conversation into token ids and labels: loss on what the assistant writes and on the token that stops it.

    <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello.<|im_end|>\\n
    ................................................................TTTTTTTTTTTTTTTTTT..

Every assistant turn is trained, in the context that inference will show it: see `encode_all`. Its span runs from
where the prompt for it ends to its first stop token; what the template puts behind that (a newline in ChatML) is not
trained. A template without an end-of-turn token ends a turn with the next role's token: that token then is the
trained stop, and after the last turn it is appended. A conversation that breaks a rule is refused with a reason and
never repaired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.chat.template import ChatFormat, Message

IGNORED = -100
"""Label of a token that carries no loss."""
MAY_FOLLOW: Mapping[str | None, tuple[str, ...]] = {
    None: ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user", "tool"),
    "tool": ("tool", "assistant"),
}


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation, ready to be packed."""

    input_ids: list[int]
    labels: list[int]

    @property
    def num_trained(self) -> int:
        """Tokens that carry loss."""
        return len(self.labels) - self.labels.count(IGNORED)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a conversation cannot be trained on."""

    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)


def encode_all(
    chat: ChatFormat, messages: Sequence[Message], tools: list[Any] | None = None
) -> list[Document | Refusal]:
    """A conversation as one document, or as one for each user turn where its template rewrites what came before.

    GLM-4.5, Qwen3 and others drop the thinking of every turn before the last user message. A document of such a
    conversation ends before the next user message and trains what the assistant says after its last one: earlier
    turns are context, without their thinking, as they are when the model answers.
    """
    whole = encode(chat, messages, tools)
    if isinstance(whole, Document) or whole.reason != "template_not_prefix_stable":
        return [whole]
    starts = [index for index, message in enumerate(messages) if message["role"] == "user"]
    ends = [*starts[1:], len(messages)]
    return [encode(chat, messages[:end], tools, trained_from=start) for start, end in zip(starts, ends, strict=True)]


def encode(
    chat: ChatFormat, messages: Sequence[Message], tools: list[Any] | None = None, trained_from: int = 0
) -> Document | Refusal:
    """Token ids and labels of a conversation, or why it is refused; turns before `trained_from` are context."""
    segments = find_problem(messages, chat.control_tokens) or split_turns(chat, messages, tools, trained_from)
    document = segments if isinstance(segments, Refusal) else label_segments(chat, segments)
    if isinstance(document, Document) and document.num_trained == 0:
        return Refusal("nothing_trained")
    return document


def find_problem(messages: Sequence[Message], control_tokens: Sequence[str]) -> Refusal | None:
    """The first rule that the messages break, None for good ones."""
    before: str | None = None
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in MAY_FOLLOW[before]:
            return Refusal("role_order", {"turn": index, "role": role, "after": before})
        if role == "tool" and before == "assistant" and not messages[index - 1].get("tool_calls"):
            return Refusal("role_order", {"turn": index, "role": role, "after": "an assistant turn without tool_calls"})
        problem = _find_content_problem(message, control_tokens)
        if problem is not None:
            return Refusal(problem.reason, {"turn": index, **problem.evidence})
        before = role
    if not any(message["role"] == "assistant" for message in messages):
        return Refusal("no_assistant_turn")
    if before != "assistant":
        return Refusal("role_order", {"turn": len(messages), "role": None, "after": before})
    return None


def _find_content_problem(message: Message, control_tokens: Sequence[str]) -> Refusal | None:
    content = message.get("content")
    if not isinstance(content, str):
        # Templates print a null as the word None (oumi, GLM-4.5).
        return Refusal("null_content" if content is None else "content_not_text")
    calls = message.get("tool_calls") or []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else {}
        if not isinstance(function.get("arguments"), dict):
            return Refusal("arguments_not_object")
    texts = [content, message.get("reasoning_content") or "", *_strings_in(calls)]
    for token in control_tokens:
        if any(token in text for text in texts):
            return Refusal("control_token", {"token": token})
    return None


def _strings_in(value: Any) -> list[str]:  # noqa: ANN401 - any JSON value
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in _strings_in(part)]
    return [text for part in value for text in _strings_in(part)] if isinstance(value, list) else []


def split_turns(
    chat: ChatFormat, messages: Sequence[Message], tools: list[Any] | None, trained_from: int = 0
) -> list[tuple[str, bool]] | Refusal:
    """The rendered text cut where the assistant starts and ends: (text, written by the assistant) in order.

    The cuts come from rendering every beginning of the conversation, so the template must be prefix-stable: what it
    writes up to a trained turn may not change when more turns follow. Turns before `trained_from` are not cut.
    """
    from jinja2 import TemplateError

    try:
        whole = chat.render(messages, tools)
        segments: list[tuple[str, bool]] = []
        at = 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant" or index < trained_from:
                continue
            prompt = chat.render(messages[:index], tools, prompt=True)
            through = whole if index == len(messages) - 1 else chat.render(messages[: index + 1], tools)
            if not (whole.startswith(through) and through.startswith(prompt) and len(prompt) >= at):
                return Refusal("template_not_prefix_stable", {"turn": index})
            for name in _called(message):
                if name not in through[len(prompt) :]:  # a template without tools leaves calls out
                    return Refusal("call_not_rendered", {"turn": index, "name": name})
            segments += [(whole[at : len(prompt)], False), (whole[len(prompt) : len(through)], True)]
            at = len(through)
    except (TemplateError, TypeError) as error:
        return Refusal("template_error", {"error": str(error)[:200]})
    return segments


def _called(message: Message) -> list[str]:
    """Names of the functions that a message calls."""
    return [str(call.get("function", call).get("name")) for call in message.get("tool_calls") or []]


def label_segments(chat: ChatFormat, segments: Sequence[tuple[str, bool]]) -> Document | Refusal:
    """Tokenise the segments one by one and label the assistant's.

    One by one, because that is what the model meets when it writes: the prompt's tokens end where the prompt ends,
    and no token reaches over into the answer.
    """
    ids: list[int] = []
    labels: list[int] = []
    unstopped = False
    for text, written in segments:
        piece = chat.tokenize(text)
        stop = next((index for index, token in enumerate(piece) if token in chat.stop_ids), None)
        if written:
            trained = len(piece) if stop is None else stop + 1
        elif unstopped and stop != 0:
            return Refusal("no_stop_token")
        else:
            trained = 1 if unstopped else 0
        unstopped = written and stop is None
        ids += piece
        labels += piece[:trained] + [IGNORED] * (len(piece) - trained)
    if unstopped:
        closing = chat.token_after_last_turn()
        if closing not in chat.stop_ids:
            return Refusal("no_stop_token")
        ids.append(closing)
        labels.append(closing)
    return Document(ids, labels)
