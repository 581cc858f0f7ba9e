"""The OpenAI-compatible API: models, chat completions and text completions, on the same queue and source as the page.

A request's reply belongs to the request: when the client leaves, it is stopped. No SSE `id:` lines, ever: the
official Python client breaks on a heartbeat after one.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend import chat_request, text_request
from backend.answer import Answer, Desk
from backend.chat_request import ChatRequest
from backend.completion_shapes import ChatShape, TextShape
from backend.delivery import deliver
from backend.gateway import Gateway


def routes(gateway: Gateway) -> APIRouter:
    """Models and completions under /v1."""
    api = APIRouter()
    desk = Desk(gateway)
    started = int(time.time())

    def model(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": started, "owned_by": "pagoda"}

    @api.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model(name) for name in gateway.models()]}

    @api.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        return model(desk.known(name))

    @api.post(ChatShape.path)
    async def chat_completions(body: dict[str, Any], client: Request) -> Response:
        asked = _read(desk, body := desk.with_model(body), chat_request.read, "chat/completions")
        return await _complete(desk, client, body, asked, ChatShape)

    @api.post(TextShape.path)
    async def completions(body: dict[str, Any], client: Request) -> Response:
        asked = _read(desk, body := desk.with_model(body), text_request.read, "completions")
        return await _complete(desk, client, body, asked, TextShape)

    return api


def _read(desk: Desk, body: dict[str, Any], strict, path: str) -> ChatRequest:
    """For a model that runs here every field is checked; the rest is the upstream's business."""
    name = body["model"]
    source = desk.find(name) if isinstance(name, str) else None
    asked = chat_request.read_open(body, path) if source is not None and source.elsewhere else strict(body)
    desk.known(asked.model)
    return asked


async def _complete(
    desk: Desk, client: Request, body: dict[str, Any], asked: ChatRequest, shape_of: type[ChatShape]
) -> Response:
    answer = desk.answer(client, body, shape_of.prefix, asked.model, asked.generate, asked.progress)
    shape = shape_of(answer, asked.model, asked.include_usage, asked.progress)
    return await deliver(
        client, answer, None if asked.stream else shape.whole, lambda: _events(answer, shape), asked.progress
    )


async def _events(answer: Answer, shape: ChatShape) -> AsyncGenerator[bytes, None]:
    if first := shape.first():
        yield first
    async with aclosing(answer.payloads()) as payloads:
        async for payload in payloads:
            for block in shape.blocks(payload):
                yield block
