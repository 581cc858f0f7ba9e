"""Pagoda on a real port with a scripted source, as HTTP clients see it."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import httpx
import uvicorn
from starlette.types import ASGIApp

from backend.app import Pagoda
from backend.late_heads import LateHeads
from backend.upstream import Upstream
from tests.backend.scripted import ScriptedSource


class Served:
    """`client` talks to it over HTTP; `gateway` and `source` are what stands behind."""

    def __init__(self, pagoda: Pagoda, source: ScriptedSource, client: httpx.AsyncClient) -> None:
        self.pagoda, self.source, self.client = pagoda, source, client
        self.gateway = pagoda.gateway

    async def conversation(self) -> str:
        return (await self.client.post("/api/conversations", json={})).json()["id"]

    async def send(self, conversation: str, text: str, request_id: str = "r1") -> dict:
        answer = await self.client.post(
            f"/api/conversations/{conversation}/messages", json={"request_id": request_id, "text": text}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def on_a_port(app: ASGIApp, lifespan: Literal["on", "off"] = "off") -> AsyncIterator[int]:
    """The port on which it is served, as `pagoda serve` does."""
    started = asyncio.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets=None) -> None:
            await super().startup(sockets)
            started.set()

    server = Server(
        uvicorn.Config(app, http=LateHeads, port=0, log_level="warning", lifespan=lifespan, timeout_graceful_shutdown=1)
    )
    serving = asyncio.create_task(server.serve())
    await asyncio.wait_for(started.wait(), 10)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


@asynccontextmanager
async def listening(pagoda: Pagoda) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a Pagoda that listens on a port of its own."""
    async with on_a_port(pagoda.asgi, "on") as port:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            yield client
        await pagoda.end_replies()


@asynccontextmanager
async def serve(folder: Path, upstreams: Sequence[Upstream] = (), token: str | None = None) -> AsyncIterator[Served]:
    source = ScriptedSource()
    pagoda = Pagoda(folder, [source], token=token, upstreams=upstreams)
    async with listening(pagoda) as client:
        yield Served(pagoda, source, client)


async def read_events(response: httpx.Response) -> AsyncIterator[tuple[str, object, str | None]]:
    """(name, data, id) of each server-sent event; comments as ("comment", text, None)."""
    name, data, id = "message", "", None
    async for line in response.aiter_lines():
        if line.startswith(":"):
            yield "comment", line[1:].strip(), None
        elif line == "":
            if data:
                yield name, json.loads(data) if data != "[DONE]" else data, id
            name, data, id = "message", "", None
        else:
            field, _, value = line.partition(": ")
            name = value if field == "event" else name
            data = value if field == "data" else data
            id = value if field == "id" else id
