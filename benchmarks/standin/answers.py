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
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_GAP = "\ue000"
"""Stands in a rendered frame for a value that is filled in for each answer: rendering all of it costs 50 us."""
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
    asked = _canonical([body.get("messages", body.get("prompt")), body.get("seed")])
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
        field: str = fault.field
        parts = [(field, thought.removeprefix("<think>"))] + ([("content", rest)] if tag else [])
    elif fault and kind == "cut_in_thinking":
        thought = text.partition("</think>")[0].removeprefix("<think>")
        parts = [(fault.field, f"<think>{thought}" if fault.field == "content" else thought)]
        finish_reason = "length"
    elif kind == "null_content":
        parts = []
    prompt = prompt_of(body, chat)
    with_ids = bool(body.get("return_token_ids"))
    if with_ids and isinstance(prompt, int):
        prompt = ids_of("".join(str(m.get("content")) for m in body["messages"]) if chat else body["prompt"])
    return Reply(chat, str(body.get("model")), parts, finish_reason, prompt, with_ids, kind == "no_choices")


def _frame(value: dict[str, Any]) -> list[str]:
    return json.dumps(value, separators=(",", ":")).split(json.dumps(_GAP))


def _fill(frame: Sequence[str], values: Sequence[Any]) -> bytes:
    written = [piece for pair in zip(frame, map(json.dumps, values), strict=False) for piece in pair]
    return "".join([*written, frame[-1]]).encode()


def _usage_frame() -> dict[str, Any]:
    usage = dict.fromkeys(("prompt_tokens", "total_tokens", "completion_tokens"), _GAP)
    return {"usage": {**usage, "prompt_tokens_details": None, "completion_tokens_details": None}}


def _usage_values(reply: Reply) -> list[int]:
    prompt, output = reply.num_prompt_tokens, reply.num_output_tokens
    return [prompt, prompt + output, output]


@functools.lru_cache(maxsize=64)
def _whole_frame(chat: bool, fields: tuple[str, ...], finish_reason: str, empty: bool) -> list[str]:
    """Gaps: id, model, the parts, token ids, prompt ids (no choice has no parts and token ids), usage."""
    end = {"logprobs": None, "finish_reason": finish_reason, "stop_reason": None, "token_ids": _GAP}
    value: dict[str, Any] = {"id": _GAP, "object": "chat.completion" if chat else "text_completion", "created": 0}
    value["model"] = _GAP
    if chat:
        nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
        absent = {name: None for name in ("reasoning", "content") if name not in fields}
        message = {"role": "assistant", **absent, **dict.fromkeys(fields, _GAP), **nothing}
        value["choices"] = [] if empty else [{"index": 0, "message": message, **end}]
        value |= {"prompt_logprobs": None, "prompt_token_ids": _GAP}
    else:
        value["choices"] = [] if empty else [{"index": 0, "text": _GAP, **end, "prompt_token_ids": _GAP}]
    return _frame({**value, "service_tier": None, "system_fingerprint": None, **_usage_frame()})


def whole(reply: Reply) -> bytes:
    """The answer as one JSON object."""
    text = "".join(text for _, text in reply.parts)
    values: list[Any] = [reply.identity, reply.model]
    if not reply.empty:
        values += [text for _, text in reply.parts] if reply.chat else [text]
        values.append(ids_of(text) if reply.with_ids else None)
    if reply.chat or not reply.empty:
        values.append(reply.prompt_ids if reply.with_ids else None)
    fields = tuple(name for name, _ in reply.parts)
    frame = _whole_frame(reply.chat, fields, reply.finish_reason, reply.empty)
    return _fill(frame, [*values, *_usage_values(reply)])


def pieces_of(reply: Reply, events: int) -> list[tuple[str, str]]:
    """The parts cut into about `events` pieces of whole tokens, in order."""
    step = max(1, math.ceil(reply.num_output_tokens / max(1, events))) * BYTES_A_TOKEN
    return [(name, text[at : at + step]) for name, text in reply.parts for at in range(0, len(text), step)]


@functools.lru_cache(maxsize=64)
def _chunk_frame(chat: bool, field: str | None, finish_reason: str | None, empty: bool) -> list[str]:
    """Gaps: id, model, text and token ids (no choice has neither); `usage` is the field of the last chunk."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    value: dict[str, Any] = {"id": _GAP, "object": kind, "created": 0, "model": _GAP}
    if field == "usage":
        return _frame({**value, "choices": [], **_usage_frame()})
    role = {"role": "assistant"} if field is None else {}
    inside = {"delta": {**role, field or "content": _GAP}} if chat else {"text": _GAP}
    choice = {"index": 0, **inside, "logprobs": None, "finish_reason": finish_reason, "token_ids": _GAP}
    return _frame({**value, "choices": [] if empty else [choice]})


def events_of(reply: Reply, events: int, include_usage: bool) -> list[tuple[bytes, int]]:
    """The answer as server-sent events, each with the number of tokens that it brings; the last is `[DONE]`."""
    head = [reply.identity, reply.model]

    def chunk(field: str | None, text: str, finish_reason: str | None = None) -> tuple[bytes, int]:
        frame = _chunk_frame(reply.chat, field, finish_reason, reply.empty)
        inside = [] if reply.empty else [text, ids_of(text) if reply.with_ids else None]
        return b"data: " + _fill(frame, [*head, *inside]) + b"\n\n", tokens_in(text)

    *before, (name, text) = pieces_of(reply, events) or [("content", "")]
    found = [chunk(None, "")] if reply.chat else []
    found += [*(chunk(*piece) for piece in before), chunk(name, text, reply.finish_reason)]
    if include_usage:
        frame = _chunk_frame(reply.chat, "usage", None, False)
        found.append((b"data: " + _fill(frame, [*head, *_usage_values(reply)]) + b"\n\n", 0))
    return [*found, (b"data: [DONE]\n\n", 0)]
