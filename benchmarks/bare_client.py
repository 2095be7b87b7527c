"""Peer of the generate benches: the least that an aiohttp client can do, N requests at a time, nothing stored.

Prints samples/s and CPU seconds of the sending alone, without the start of Python. Without --url it measures itself
against a stand-in of its own.
"""

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.standin import standin_process

Body = dict[str, Any]


def made_bodies(number: int, model: str, max_tokens: int) -> Iterator[Body]:
    """The requests that `generate` sends for `number` samples, one task each."""
    for n in range(number):
        messages = [{"role": "user", "content": f"What is {n} + {n}?"}]
        sampling = {"temperature": 0.8, "top_p": 1.0, "max_tokens": max_tokens}
        raw = {"skip_special_tokens": False, "include_stop_str_in_output": True}
        yield {"model": model, "messages": messages, "seed": n, "n": 1, **sampling, **raw}


async def ask(session: aiohttp.ClientSession, url: str, body: Body) -> tuple[str, int]:
    """The text of one answer and its output tokens."""
    async with session.post(f"{url}/chat/completions", json=body) as reply:
        reply.raise_for_status()
        value = json.loads(await reply.read())
        return value["choices"][0]["message"]["content"] or "", value["usage"]["completion_tokens"]


async def ask_streaming(session: aiohttp.ClientSession, url: str, body: Body) -> tuple[str, int]:
    """The same, event by event."""
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    pieces, tokens = [], 0
    async with session.post(f"{url}/chat/completions", json=streamed) as reply:
        reply.raise_for_status()
        async for line in reply.content:
            if line.startswith(b"data: {"):
                value = json.loads(line[6:])
                pieces += [choice["delta"].get("content") or "" for choice in value["choices"]]
                tokens = value["usage"]["completion_tokens"] if value.get("usage") else tokens
    return "".join(pieces), tokens


async def send_all(url: str, bodies: Iterable[Body], concurrency: int, streaming: bool) -> tuple[int, int]:
    """Answers with a text, and their tokens."""
    waiting = iter(bodies)
    post = ask_streaming if streaming else ask
    answered = tokens = 0

    async def work(session: aiohttp.ClientSession) -> None:
        nonlocal answered, tokens
        for body in waiting:
            text, count = await post(session, url, body)
            answered += bool(text)
            tokens += count

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=3600)) as session:
        await asyncio.gather(*(work(session) for _ in range(concurrency)))
    return answered, tokens


def measure(url: str, bodies: Iterable[Body], concurrency: int, streaming: bool) -> dict[str, float]:
    """Figures of one load."""
    started, cpu = time.perf_counter(), time.process_time()
    answered, tokens = asyncio.run(send_all(url, bodies, concurrency, streaming))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {
        "samples": answered,
        "output_tokens": tokens,
        "seconds": round(seconds, 3),
        "samples_per_s": round(answered / seconds, 1),
        "tokens_per_s": round(tokens / seconds, 1),
        "cpu_s": round(cpu, 3),
        "cpu_ms_per_sample": round(1000 * cpu / max(1, answered), 3),
    }


def main() -> None:
    """Send, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="base address with /v1; without it a stand-in is started")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--model", default="standin")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--bodies", type=Path, help="JSON lines of requests to send instead of made ones")
    parser.add_argument("--stream", action="store_true")
    given = parser.parse_args()
    bodies: Iterable[Body] = made_bodies(given.requests, given.model, given.max_tokens)
    if given.bodies:
        lines = given.bodies.read_text(encoding="utf-8").splitlines()
        bodies = map(json.loads, itertools.islice(lines, given.requests))
    if given.url:
        figures = measure(given.url, bodies, given.concurrency, given.stream)
    else:
        with standin_process() as server:
            figures = measure(server.url, bodies, given.concurrency, given.stream)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
