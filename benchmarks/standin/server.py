"""The stand-in itself: vLLM's routes on aiohttp, faults, delays, and counters that grow with every emitted token."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from aiohttp import web

from benchmarks.standin.answers import (
    Reply,
    events_of,
    limit_of,
    made_text,
    pieces_of,
    prompt_of,
    reply_to,
    tokens_in,
    whole,
)
from benchmarks.standin.faults import WHOLE, Body, Fault, Rule
from benchmarks.standin.record import Record

_POLL_S = 0.01
_ERROR_TYPES = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 429: "RateLimitError"}


@dataclass
class StandIn(Record):
    """Deterministic answers, a record of what was asked, and faults to inject."""

    faults: dict[int, Fault | web.Response | None] = field(default_factory=dict)
    """Request number (from 0) -> what happens instead; None drops the connection."""
    rules: list[Rule] = field(default_factory=list)
    """Faults by predicate, looked at in order after `faults`."""
    text: Callable[[Body], str] | None = None
    """The whole answer to a body, before max_tokens cuts it; made-up words of `size` bytes where None."""
    size: int = 1024
    finish_reason: str = "stop"
    """Of answers that max_tokens does not cut."""
    delay_s: float = 0.0
    """Before anything is answered, faults included."""
    first_token_s: float = 0.0
    token_s: float = 0.0
    events: int = 8
    """Stream events with text, and steps of generation, in an answer."""
    model: str | None = None
    """The one served name; None takes any."""
    max_model_len: int = 131_072
    """Prompt and output tokens; a larger request is refused like vLLM refuses it."""
    max_num_seqs: int | None = None
    """Requests decoded together, the others wait; no bound where None."""
    recording: bool = True
    """Keep bodies and headers."""
    dead: bool = False
    """The engine core is dead: requests hang behind a healthy front."""
    url: str = ""
    """Base address with /v1, where one was given by who serves this."""

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.max_num_seqs) if self.max_num_seqs else None
        self._held: dict[int, int] = {}

    def app(self) -> web.Application:
        """The routes of vLLM, and `/standin` to look at the record and to end or revive the core from outside."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._plain)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/standin", self._counts)
        app.router.add_post("/standin/{action:reset|kill|revive}", self._act)
        return app

    def kill(self) -> None:
        """The engine core dies: what is open hangs, what comes hangs, metrics stand still."""
        self.dead = True

    def revive(self) -> None:
        """The core works again, and hanging requests go on."""
        self.dead = False

    async def _models(self, _: web.Request) -> web.Response:
        name = self.model or "standin"
        card = {"id": name, "object": "model", "created": 0, "owned_by": "vllm", "root": name, "parent": None}
        return web.json_response({"object": "list", "data": [{**card, "max_model_len": self.max_model_len}]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self.metrics(self.model or "standin"))

    async def _counts(self, _: web.Request) -> web.Response:
        return web.json_response(self.counts())

    async def _act(self, request: web.Request) -> web.Response:
        {"reset": self.reset, "kill": self.kill, "revive": self.revive}[request.match_info["action"]]()
        return web.json_response(self.counts())

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._complete(request, chat=True)

    async def _plain(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._complete(request, chat=False)

    async def _complete(self, request: web.Request, chat: bool) -> web.StreamResponse:
        try:
            body: Body = json.loads(await request.read())
        except ValueError as error:
            return self._error(400, f"the body is not JSON: {error}")
        number = self.open_request(body, dict(request.headers) if self.recording else {}, self.recording)
        status = 0
        try:
            response = await self._respond(request, body, chat, number)
            status = response.status if request.transport and not request.transport.is_closing() else 0
            return response
        finally:
            self.close_request(status)

    async def _respond(self, request: web.Request, body: Body, chat: bool, number: int) -> web.StreamResponse:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        fault = self._fault_of(number, body)
        if isinstance(fault, web.Response):
            return fault
        kind = fault.kind if fault else None
        if fault and kind == "status":
            return self._error(fault.status, fault.message, fault.retry_after)
        if kind == "drop":
            _hang_up(request)
            return web.Response()
        if kind == "dead_core":
            self.kill()
        while self.dead or kind == "hang":
            await asyncio.sleep(_POLL_S)
        refusal = self._refusal_of(body, chat, kind == "context_length")
        if refusal is not None:
            return refusal
        if fault and kind == "hold_back":
            await self._hold_back(number, fault)
        text = self.text(body) if self.text else made_text(body, self.size)
        reply = reply_to(body, chat, text, self.finish_reason, fault)
        async with self._decoding():
            response = await self._emit(request, body, reply, fault)
        self.close_answer(reply.finish_reason, fault is None or kind in WHOLE)
        for earlier in self._held:
            self._held[earlier] += earlier < number
        return response

    def _fault_of(self, number: int, body: Body) -> Fault | web.Response | None:
        if number in self.faults:
            return self.faults[number] or Fault("drop")
        return next((rule.fault for rule in self.rules if rule.applies(number, body)), None)

    def _refusal_of(self, body: Body, chat: bool, forced: bool) -> web.Response | None:
        """What vLLM refuses with 400 or 404."""
        if self.model is not None and body.get("model") != self.model:
            return self._error(404, f"The model `{body.get('model')}` does not exist.")
        if body.get("n", 1) != 1:
            return self._error(400, "the stand-in gives one choice a request")
        try:
            prompt = prompt_of(body, chat)
        except (KeyError, TypeError, AttributeError) as error:
            return self._error(400, f"Field required or of a wrong type: {error}")
        length = prompt if isinstance(prompt, int) else len(prompt)
        if forced or length + (limit_of(body, chat) or 0) > self.max_model_len:
            return self._error(
                400,
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt contains "
                f"{length} input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt.",
            )
        return None

    def _error(self, status: int, message: str, retry_after: str | None = None) -> web.Response:
        kind = _ERROR_TYPES.get(status, "InternalServerError")
        value = {"error": {"message": message, "type": kind, "param": None, "code": status}}
        return web.json_response(value, status=status, headers={"Retry-After": retry_after} if retry_after else None)

    async def _hold_back(self, number: int, fault: Fault) -> None:
        self._held[number] = 0
        deadline = time.monotonic() + fault.seconds
        try:
            while self._held[number] < fault.later and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_S)
        finally:
            del self._held[number]

    @contextlib.asynccontextmanager
    async def _decoding(self) -> AsyncIterator[None]:
        """Wait for a place in the batch; a request that its client leaves is an abort."""
        self.waiting += 1
        try:
            if self._slots is not None:
                await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        except (asyncio.CancelledError, ConnectionError):
            self.finished["abort"] += 1
            raise
        finally:
            self.running -= 1
            if self._slots is not None:
                self._slots.release()

    async def _step(self, seconds: float) -> None:
        """Time passes in the engine, unless its core is dead."""
        if seconds:
            await asyncio.sleep(seconds)
        while self.dead:
            await asyncio.sleep(_POLL_S)

    async def _emit(self, request: web.Request, body: Body, reply: Reply, fault: Fault | None) -> web.StreamResponse:
        slow = fault.seconds if fault and fault.kind == "slow_first_token" else 0.0
        await self._step(self.first_token_s + slow)
        self.prompt_tokens += reply.num_prompt_tokens
        kind = fault.kind if fault else None
        if body.get("stream"):
            return await self._stream(request, body, reply, kind)
        if self.token_s:
            for _, piece in pieces_of(reply, self.events):
                await self._step(self.token_s * tokens_in(piece))
                self.generation_tokens += tokens_in(piece)
        else:
            self.generation_tokens += reply.num_output_tokens
        written = whole(reply)
        if kind == "truncated_json":
            written = written[: len(written) // 2]
        if kind != "drop_midway":
            return web.Response(body=written, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Length": str(len(written))})
        await response.prepare(request)
        await response.write(written[: len(written) // 2])
        _hang_up(request)
        return response

    async def _stream(self, request: web.Request, body: Body, reply: Reply, kind: str | None) -> web.StreamResponse:
        include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        events = events_of(reply, self.events, include_usage)
        if kind in ("truncated_json", "drop_midway"):
            events = events[: max(1, len(events) // 2)]
        if kind == "truncated_json":
            events.append((events[-1][0][:40], 0))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if self.token_s:
            for event, tokens in events:
                await self._step(self.token_s * tokens)
                await response.write(event)
                self.generation_tokens += tokens
        else:  # one write: what a stand-in costs is taken from the client under test
            await response.write(b"".join(event for event, _ in events))
            self.generation_tokens += sum(tokens for _, tokens in events)
        if kind == "drop_midway":
            _hang_up(request)
        else:
            await response.write_eof()
        return response


def _hang_up(request: web.Request) -> None:
    """Close the connection, as a server does that has ended."""
    assert request.transport is not None
    request.transport.close()
