"""One request to an OpenAI-compatible server over HTTP: what came back, and what kind of failure it was.

A bare aiohttp client: anything built on the `openai` package tops out near 900 samples/s a core, aiohttp at 6,800.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from aiohttp.http_exceptions import HttpProcessingError

from pipeline.ledger import TOO_LONG, Answer

REQUEST_TIMEOUT_S = 6 * 3600.0
_TOO_LONG = ("maximum context length", "context length", "max_model_len")


@dataclass(frozen=True, slots=True)
class Target:
    """How the servers of one teacher are spoken to."""

    model: str
    """Model name sent with each request."""
    api_key: str | None
    vllm: bool
    """Send vLLM's own fields."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: a ledger key and the chat-completion fields that decide the answer."""

    key: bytes
    body: dict[str, Any]
    tokens: int
    """About how many tokens it keeps a server busy with; for balancing alone."""


class Refused(Exception):
    """The server will never take this request (a 4xx): not to be tried again."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Busy(Exception):
    """The server asks for patience (429, 503 with Retry-After): no fault of the request."""

    def __init__(self, problem: str, retry_after_s: float | None) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s


class Failed(Exception):
    """The server failed (5xx, broken connection, an answer that is none): to be tried again."""


class Unreached(Failed):
    """No connection came about: the server never saw the request."""


async def ask(
    session: aiohttp.ClientSession, url: str, target: Target, wanted: Ask, on_token: Callable[[], None] | None = None
) -> Answer:
    """Send one request. With `on_token` the answer is streamed and the function called at every piece.

    Raises Refused, Busy, Failed or Unreached.
    """
    headers = {"Content-Type": "application/json"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    body = {"model": target.model, **wanted.body}
    if target.vllm:
        # Raw text with its stop marker: a server-side parser or stripping would lose what the model wrote.
        body |= {"skip_special_tokens": False, "include_stop_str_in_output": True}
    if on_token is not None:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    try:
        async with session.post(f"{url}/chat/completions", data=_encode(body), headers=headers) as reply:
            if reply.status != 200:
                return _refusal(reply.status, reply.headers, (await reply.text())[:2000], wanted)
            if on_token is not None and reply.content_type == "text/event-stream":
                return _answer_of(await _read_stream(reply, on_token), wanted)
            return _answer_of(_decode(await reply.read()), wanted)
    except aiohttp.ClientConnectorError as error:
        raise Unreached(f"{type(error).__name__}: {error}") from None
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        raise Failed(f"{type(error).__name__}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, HttpProcessingError) as error:
        raise Failed(f"an answer that is no chat completion ({type(error).__name__}: {error})") from None


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # half of a surrogate pair
        return json.dumps(body).encode()


def _decode(body: bytes) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:  # half of a surrogate pair, or no JSON at all
        return json.loads(body)


def _refusal(status: int, headers: Mapping[str, str], text: str, wanted: Ask) -> Answer:
    problem = f"HTTP {status}: {text[:300]}"
    if status == 400 and any(words in text for words in _TOO_LONG):
        return Answer("", TOO_LONG, None, 0, 0, wanted.body["max_tokens"], wanted.body["seed"])
    if status in (429, 503):
        try:
            after = float(headers["Retry-After"])
        except (KeyError, ValueError):
            after = None
        raise Busy(problem, after)
    if 400 <= status < 500 and status != 408:
        raise Refused(status, problem)
    raise Failed(problem)


def _answer_of(reply: Mapping[str, Any], wanted: Ask) -> Answer:
    if not reply["choices"]:
        raise Failed("an answer without choices")
    choice, usage = reply["choices"][0], reply.get("usage") or {}
    message = choice["message"]
    reason = choice.get("finish_reason") or "stop"
    if reason in ("abort", "error"):
        raise Failed(f"finish_reason {reason}")
    return Answer(
        text=_well_formed(message.get("content") or ""),
        finish_reason=reason,
        # The field is `reasoning_content` on older servers, `reasoning` on newer ones.
        reasoning=_well_formed(message.get("reasoning_content") or message.get("reasoning")),
        num_prompt_tokens=int(usage.get("prompt_tokens") or 0),
        num_output_tokens=int(usage.get("completion_tokens") or 0),
        max_tokens=wanted.body["max_tokens"],
        seed=wanted.body["seed"],
        tool_calls=message.get("tool_calls") or None,
        token_ids=choice.get("token_ids"),
    )


def _well_formed(text: Any) -> Any:  # noqa: ANN401 - what the server sent, mostly text
    """Text that UTF-8 can hold: a surrogate pair cut by two events of a stream is joined, a lone half replaced."""
    if not isinstance(text, str) or text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


async def _read_stream(reply: aiohttp.ClientResponse, on_token: Callable[[], None]) -> dict[str, Any]:
    """Put a stream of server-sent events together to what the server would have answered in one piece."""
    parts: dict[str, list[str]] = {"content": [], "reasoning": []}
    calls: dict[int, dict[str, Any]] = {}
    finish, usage, seen = None, None, False
    async for line in reply.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            break
        event = _decode(data)
        on_token()
        usage = event.get("usage") or usage
        for choice in event["choices"][:1]:
            seen = True
            delta = choice.get("delta") or {}
            parts["content"].append(delta.get("content") or "")
            parts["reasoning"].append(delta.get("reasoning_content") or delta.get("reasoning") or "")
            for call in delta.get("tool_calls") or []:
                _add_call(calls, call)
            finish = choice.get("finish_reason") or finish
    if seen and finish is None:
        raise Failed("a stream that broke off")
    message = {
        "content": "".join(parts["content"]),
        "reasoning": "".join(parts["reasoning"]) or None,
        "tool_calls": [calls[number] for number in sorted(calls)],
    }
    return {"choices": [{"message": message, "finish_reason": finish}] if seen else [], "usage": usage}


def _add_call(calls: dict[int, dict[str, Any]], delta: Mapping[str, Any]) -> None:
    call = calls.setdefault(delta["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call["id"] = delta.get("id") or call["id"]
    for name in ("name", "arguments"):
        call["function"][name] += (delta.get("function") or {}).get(name) or ""
