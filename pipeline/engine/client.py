"""Ask OpenAI-compatible servers over HTTP with bounded concurrency and patient retries.

A bare aiohttp client: anything built on the `openai` package tops out near 900 samples/s a core, aiohttp at 6,800.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from pipeline.engine.ledger import Answer
from pipeline.errors import UserError

MAX_TRIES = 8
REQUEST_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Server:
    """Where to send requests."""

    url: str
    model: str
    api_key: str | None
    vllm: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: a ledger key and the chat-completion fields that decide the answer."""

    key: str
    body: dict[str, Any]


async def ask_all(
    asks: Sequence[Ask], servers: Sequence[Server], in_flight: int, alive: Callable[[], bool]
) -> AsyncIterator[list[tuple[str, Answer]]]:
    """Yield the (key, answer) pairs that have arrived since the last time, `in_flight` requests a server at a time.

    Connection errors, timeouts, 429 and 5xx are retried with growing waits. Raises UserError when a server refuses a
    request for good (another 4xx) or stays unreachable, RuntimeError when `alive` says that our own server has ended.
    """
    waiting = iter(asks)
    arrived: asyncio.Queue[tuple[str, Answer]] = asyncio.Queue()

    async def work(session: aiohttp.ClientSession, server: Server) -> None:
        for ask in waiting:
            arrived.put_nowait((ask.key, await _ask(session, server, ask, alive)))

    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=30)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        working = asyncio.gather(*(work(session, server) for server in servers for _ in range(in_flight)))
        # Looked at whatever ends us: asyncio prints the traceback of an error that nobody asked for.
        working.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        try:
            left = len(asks)
            while left:
                first = asyncio.ensure_future(arrived.get())
                either: set[asyncio.Future[Any]] = {first, working}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not first.done():
                    first.cancel()
                    working.result()  # raises the error that ended the workers
                batch = [await first, *(arrived.get_nowait() for _ in range(arrived.qsize()))]
                left -= len(batch)
                yield batch
            await working
        finally:
            working.cancel()


async def _ask(session: aiohttp.ClientSession, server: Server, ask: Ask, alive: Callable[[], bool]) -> Answer:
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    body = {"model": server.model, **ask.body}
    if server.vllm:
        # Raw text with its stop marker: a server-side parser or stripping would lose what the model wrote.
        body |= {"skip_special_tokens": False, "include_stop_str_in_output": True}
    problem = ""
    for attempt in range(MAX_TRIES):
        if attempt:
            await asyncio.sleep(min(30.0, 0.5 * 2**attempt) * random.uniform(0.5, 1.0))
        if not alive():
            raise RuntimeError("the vLLM server has ended")
        try:
            async with session.post(f"{server.url}/chat/completions", json=body, headers=headers) as reply:
                if reply.status == 200:
                    return _answer_of(await reply.json(), ask)
                problem = f"HTTP {reply.status}: {(await reply.text())[:300]}"
                if reply.status == 400 and "context length" in problem:
                    return Answer("", "prompt_too_long", None, 0, 0, ask.body["max_tokens"], ask.body["seed"])
                if 400 <= reply.status < 500 and reply.status not in (408, 429):
                    raise UserError(f"{server.url}: refused a request with {problem}; mend the teacher's settings")
        except (aiohttp.ClientError, TimeoutError) as error:
            problem = f"{type(error).__name__}: {error}"
    raise UserError(
        f"{server.url}: no answer after {MAX_TRIES} tries, last {problem}; what finished is kept, run again"
    )


def _answer_of(reply: dict[str, Any], ask: Ask) -> Answer:
    choice, usage = reply["choices"][0], reply.get("usage") or {}
    message = choice["message"]
    # The field is `reasoning_content` on older servers, `reasoning` on newer ones.
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return Answer(
        text=message.get("content") or "",
        finish_reason=choice.get("finish_reason") or "stop",
        reasoning=reasoning,
        num_prompt_tokens=int(usage.get("prompt_tokens") or 0),
        num_output_tokens=int(usage.get("completion_tokens") or 0),
        max_tokens=ask.body["max_tokens"],
        seed=ask.body["seed"],
    )
