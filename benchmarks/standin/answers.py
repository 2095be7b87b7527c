"""What a vLLM 0.32 server writes: chat and text completions, as one JSON object or as server-sent events."""

import functools
import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.standin.faults import Body, Fault

BYTES_A_TOKEN = 4
_WORDS = ("so", "the", "sum", "of", "both", "parts", "is", "then", "we", "add", "carry", "one", "digit", "and", "check")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer before it is written."""

    chat: bool
    model: str
    parts: Sequence[tuple[str, str]]
    """(field, text) in the order in which they are generated: `reasoning`, then `content`."""
    finish_reason: str
    prompt_ids: Sequence[int] | int
    """The prompt's token ids, or only their number."""
    with_ids: bool = False
    empty: bool = False
    """No choices at all."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.prompt_ids if isinstance(self.prompt_ids, int) else len(self.prompt_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of all parts."""
        return sum(tokens_in(text) for _, text in self.parts)

    @property
    def identity(self) -> str:
        """The answer's id, the same for the same text."""
        text = "".join(text for _, text in self.parts)
        return ("chatcmpl-" if self.chat else "cmpl-") + hashlib.md5(text.encode()).hexdigest()


def tokens_in(text: str) -> int:
    """Tokens of a text: every four characters, begun ones included."""
    return -(-len(text) // BYTES_A_TOKEN)


def ids_of(text: str) -> list[int]:
    """Made-up token ids, the same for the same characters."""
    pieces = (text[at : at + BYTES_A_TOKEN] for at in range(0, len(text), BYTES_A_TOKEN))
    return [int.from_bytes(piece.encode(), "big") % 32_000 for piece in pieces]


@functools.cache
def _prose() -> str:
    """Two million characters of plain words, so that equal-sized answers differ and do not compress to nothing."""
    return " ".join(random.Random(0).choices(_WORDS, k=500_000))[:2_000_000]


def made_text(body: Body, size: int) -> str:
    """`size` characters that follow from the messages (or the prompt) and the seed alone."""
    asked = json.dumps([body.get("messages", body.get("prompt")), body.get("seed")], sort_keys=True)
    digest = hashlib.sha256(asked.encode()).hexdigest()
    start = int(digest[:8], 16) % 1_900_000
    head = f"{digest[:16]} "
    prose = _prose()[start : start + min(size, 100_000)]
    return (head + prose * math.ceil(size / max(1, len(prose))))[:size]


def prompt_of(body: Body, chat: bool) -> list[int] | int:
    """The prompt's token ids where they were sent, else how many it has."""
    if not chat:
        prompt = body["prompt"]
        return prompt if isinstance(prompt, list) else tokens_in(prompt)
    return sum(tokens_in(str(message.get("content") or "")) for message in body["messages"]) or 1


def limit_of(body: Body, chat: bool) -> int | None:
    """Output tokens at most, with vLLM's default of 16 for plain completions."""
    limit: int | None = body.get("max_completion_tokens") or body.get("max_tokens")
    return limit if limit is not None or chat else 16


def reply_to(body: Body, chat: bool, text: str, finish_reason: str, fault: Fault | None) -> Reply:
    """The answer to a request: the text cut at the token limit and put where the fault wants it."""
    limit = limit_of(body, chat)
    if limit is not None and tokens_in(text) > limit:
        text, finish_reason = text[: limit * BYTES_A_TOKEN], "length"
    kind = fault.kind if fault else None
    parts: list[tuple[str, str]] = [("content", text)]
    if fault and kind == "reasoning":
        thought, tag, rest = text.partition("</think>")
        parts = [(fault.field, thought.removeprefix("<think>"))] + ([("content", rest)] if tag else [])
    elif fault and kind == "cut_in_thinking":
        parts = [(fault.field, f"<think>{text}" if fault.field == "content" else text)]
        finish_reason = "length"
    elif kind == "null_content":
        parts = []
    prompt = prompt_of(body, chat)
    with_ids = bool(body.get("return_token_ids"))
    if with_ids and isinstance(prompt, int):
        prompt = ids_of("".join(str(m.get("content")) for m in body["messages"]) if chat else body["prompt"])
    return Reply(chat, str(body.get("model")), parts, finish_reason, prompt, with_ids, kind == "no_choices")


def usage_of(reply: Reply) -> dict[str, Any]:
    """The usage block."""
    prompt, output = reply.num_prompt_tokens, reply.num_output_tokens
    total = {"total_tokens": prompt + output, "completion_tokens": output}
    return {"prompt_tokens": prompt, **total, "prompt_tokens_details": None, "completion_tokens_details": None}


def whole(reply: Reply) -> bytes:
    """The answer as one JSON object."""
    ids = ids_of("".join(text for _, text in reply.parts)) if reply.with_ids else None
    prompt_ids = reply.prompt_ids if reply.with_ids else None
    end = {"logprobs": None, "finish_reason": reply.finish_reason, "stop_reason": None, "token_ids": ids}
    shared = {"service_tier": None, "system_fingerprint": None, "usage": usage_of(reply), "kv_transfer_params": None}
    value: dict[str, Any] = {"id": reply.identity, "created": 0, "model": reply.model}
    if reply.chat:
        nothing = dict.fromkeys(("content", "refusal", "annotations", "audio", "function_call", "reasoning"))
        message = {"role": "assistant", **nothing, **dict(reply.parts)}
        choice: dict[str, Any] = {"index": 0, "message": message, **end}
        value |= {"object": "chat.completion", **shared, "prompt_logprobs": None, "prompt_token_ids": prompt_ids}
    else:
        text = "".join(text for _, text in reply.parts)
        choice = {"index": 0, "text": text, **end, "prompt_logprobs": None, "prompt_token_ids": prompt_ids}
        value |= {"object": "text_completion", **shared}
    value["choices"] = [] if reply.empty else [choice]
    return json.dumps(value, separators=(",", ":")).encode()


def pieces_of(reply: Reply, events: int) -> list[tuple[str, str]]:
    """The parts cut into about `events` pieces of whole tokens, in order."""
    step = max(1, math.ceil(reply.num_output_tokens / max(1, events))) * BYTES_A_TOKEN
    return [(name, text[at : at + step]) for name, text in reply.parts for at in range(0, len(text), step)]


def events_of(reply: Reply, events: int, include_usage: bool) -> list[tuple[bytes, int]]:
    """The answer as server-sent events, each with the number of tokens that it brings; the last is `[DONE]`."""
    kind = "chat.completion.chunk" if reply.chat else "text_completion"
    head = json.dumps({"id": reply.identity, "object": kind, "created": 0, "model": reply.model})[:-1].encode()

    def event(rest: dict[str, Any]) -> bytes:
        return b"data: " + head + b", " + json.dumps(rest)[1:].encode() + b"\n\n"

    def chunk(delta: dict[str, Any], finish_reason: str | None, ids: list[int] | None) -> bytes:
        inside = {"delta": delta} if reply.chat else {"text": delta.get("content", "")}
        choice = {"index": 0, **inside, "logprobs": None, "finish_reason": finish_reason, "token_ids": ids}
        return event({"choices": [] if reply.empty else [choice]})

    pieces = pieces_of(reply, events) or [("content", "")]
    found = [(chunk({"role": "assistant", "content": ""}, None, None), 0)] if reply.chat else []
    for number, (name, text) in enumerate(pieces, 1):
        finish_reason = reply.finish_reason if number == len(pieces) else None
        delta = {name: text} if text else {}
        found.append((chunk(delta, finish_reason, ids_of(text) if reply.with_ids else None), tokens_in(text)))
    if include_usage:
        found.append((event({"choices": [], "usage": usage_of(reply)}), 0))
    return [*found, (b"data: [DONE]\n\n", 0)]
