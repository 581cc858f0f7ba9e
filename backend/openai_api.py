"""The OpenAI-compatible API: models and chat completions, on the same queue and source as the page.

A request's reply belongs to the request: when the client leaves, it is stopped. No SSE `id:` lines, ever: the
official Python client breaks on a heartbeat after one.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from backend import chat_request
from backend.chat_request import ChatRequest
from backend.chunks import Payload, Progress, StateChange, Text
from backend.errors import NotFound
from backend.event_stream import event, respond
from backend.gateway import Gateway
from backend.refusals import error_body
from backend.states import Reason, State
from engine.events import Generate

PATH = "/v1/chat/completions"


class Completion:
    """One reply under way, and the shapes it takes on the wire."""

    def __init__(self, gateway: Gateway, request: ChatRequest) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.request = request
        self._gateway = gateway

    async def payloads(self) -> AsyncGenerator[Payload, None]:
        """Start the run; everything it says, the terminal state last. Leaving early stops it."""
        said: asyncio.Queue[Payload] = asyncio.Queue()

        def receive(payload: Payload) -> bool:
            said.put_nowait(payload)
            return True

        request = Generate(self.id, self.request.messages, self.request.sampling)
        run = self._gateway.answer(self.request.model, request, receive)
        try:
            while True:
                payload = await said.get()
                yield payload
                if isinstance(payload, StateChange) and payload.state.terminal:
                    return
        finally:
            run.stop()

    async def whole(self) -> JSONResponse:
        """The reply in one piece."""
        async with aclosing(self.payloads()) as payloads:
            said = [payload async for payload in payloads]
        end = said[-1]
        assert isinstance(end, StateChange)
        if end.state != State.COMPLETE:
            return JSONResponse(_error(end), 503 if end.state == State.INTERRUPTED else 500)
        text = "".join(payload.text for payload in said if isinstance(payload, Text))
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(end)}
        body = self._shape("chat.completion", [choice], usage=end.usage)
        return JSONResponse({**body, "pagoda": {"timings": end.timings}})

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The reply as server-sent events."""
        yield self._delta({"role": "assistant", "content": "", "refusal": None})
        async with aclosing(self.payloads()) as payloads:
            async for payload in payloads:
                for block in self._blocks(payload):
                    yield block

    def _blocks(self, payload: Payload) -> Iterator[bytes]:
        match payload:
            case Text(text=text) if text:
                yield self._delta({"content": text})
            case Progress() if self.request.progress:
                progress = {key: value for key, value in asdict(payload).items() if value is not None}
                yield event({**self._chunk([]), "pagoda": {"progress": progress}})
            case StateChange(state=State.COMPLETE):
                yield self._delta({}, _finish_reason(payload))
                if self.request.include_usage:
                    yield event({**self._chunk([]), "usage": payload.usage})
                yield b"data: [DONE]\n\n"
            case StateChange() if payload.state.terminal:
                yield event(_error(payload))

    def _delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        return event(self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]))

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._shape("chat.completion.chunk", choices, **({"usage": None} if self.request.include_usage else {}))

    def _shape(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.request.model}
        return {**head, "choices": choices, "system_fingerprint": None, **more}


def routes(gateway: Gateway) -> APIRouter:
    """All routes under /v1."""
    api = APIRouter()
    started = int(time.time())

    def model(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": started, "owned_by": "pagoda"}

    def known(name: str) -> str:
        if name not in gateway.models():
            raise NotFound(f"There is no model {name!r} here, only: {', '.join(gateway.models())}.", "model")
        return name

    @api.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model(name) for name in gateway.models()]}

    @api.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        return model(known(name))

    @api.post(PATH)
    async def chat_completions(body: dict[str, Any], request: Request) -> Response:
        asked = chat_request.read(body)
        known(asked.model)
        completion = Completion(gateway, asked)
        if asked.stream:
            return respond(completion.events())
        return await _unless_client_leaves(request, completion)

    return api


async def _unless_client_leaves(request: Request, completion: Completion) -> Response:
    whole = asyncio.ensure_future(completion.whole())
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({whole, gone}, return_when=asyncio.FIRST_COMPLETED)
        return whole.result() if whole.done() else Response(status_code=499)  # nobody reads this one
    finally:
        for task in (whole, gone):
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _finish_reason(end: StateChange) -> str:
    return "stop" if end.reason == Reason.STOP else "length"


def _error(end: StateChange) -> dict[str, Any]:
    words = end.detail or "The reply was broken off because Pagoda is shutting down or was restarted. Send it again."
    return error_body(PATH, "server_error", words)
