"""Server-sent events, the writing side: one block per event, comment heartbeats while nothing happens."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backend.chunks import Chunk, compact

# Proxies and clients cut a connection that is silent for about a minute; with slow models a token can take longer.
HEARTBEAT_S = 10.0
HEARTBEAT = b": still here\n\n"


def event(data: Any, name: str | None = None) -> bytes:
    """One event. JSON escapes every newline, so its data is one line."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {compact(data)}\n\n".encode()


def chunk_event(chunk: Chunk) -> bytes:
    """A chunk as an event, with an id from which a reader can go on."""
    return f"event: chunk\nid: {chunk.attempt_id}:{chunk.seq}\ndata: {chunk.to_json()}\n\n".encode()


class EventStream(Response):
    """Sends the events as they come, and a comment whenever none came for `every` seconds. When the client leaves the
    events are closed, also where none was asked for yet; in any case `on_end` is called."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], every: float, on_end: Callable[[], None] | None) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._every, self._on_end = events, every, on_end
        self._sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing, gone = asyncio.ensure_future(self._write(send)), asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            writing.cancel()
            gone.cancel()
            await asyncio.wait({writing, gone})
            await self._events.aclose()
            if self._on_end is not None:
                self._on_end()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        beating = asyncio.ensure_future(self._beat(send))  # one task for all: one for each event is what costs most
        try:
            async for block in self._events:
                self._sent = asyncio.get_running_loop().time()
                await send({"type": "http.response.body", "body": block, "more_body": True})
        finally:
            beating.cancel()
            await asyncio.wait({beating})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._sent = loop.time()
        while True:
            wait = self._sent + self._every - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            else:
                self._sent = loop.time()
                await send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def respond(
    events: AsyncGenerator[bytes, None], every: float = HEARTBEAT_S, on_end: Callable[[], None] | None = None
) -> EventStream:
    """A response of these events."""
    return EventStream(events, every, on_end)
