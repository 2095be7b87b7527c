"""A stand-in for a chat server that speaks the real protocol: for tests of the client, never for results."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.loopback import on_loopback


@dataclass
class StandIn:
    """Deterministic answers, a log of request bodies, and faults to inject by request number."""

    faults: dict[int, web.Response | None] = field(default_factory=dict)
    """Request number (from 0) -> the response to give instead, or None to drop the connection."""
    text: Callable[[dict], str] = lambda body: f"The answer is {body['seed'] % 100}.<|im_end|>"
    finish_reason: str = "stop"
    delay_s: float = 0.0
    bodies: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    answered: int = 0
    url: str = ""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body = await request.json()
        number = len(self.bodies)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if number in self.faults:
            fault = self.faults[number]
            if fault is None:
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            return fault
        self.answered += 1
        text = self.text(body)
        usage = {"prompt_tokens": len(json.dumps(body["messages"])) // 4, "completion_tokens": len(text) // 4}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        identity = hashlib.sha256(text.encode()).hexdigest()[:8]
        return web.json_response({"id": identity, "object": "chat.completion", "choices": [choice], "usage": usage})


@contextmanager
def serving(standin: StandIn) -> Iterator[StandIn]:
    """Serve on a free loopback port."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", standin.complete)
    with on_loopback(app) as address:
        standin.url = f"{address}/v1"
        yield standin
