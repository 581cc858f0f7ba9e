"""Server-sent events, the writing side: one block per event, comment heartbeats while nothing happens."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

# Proxies and clients cut a connection that is silent for about a minute; with slow models a token can take longer.
HEARTBEAT_S = 10.0
HEARTBEAT = b": still here\n\n"


def event(data: Any, name: str | None = None, id: str | None = None) -> bytes:
    """One event. JSON escapes every newline, so its data is one line."""
    head = (f"event: {name}\n" if name else "") + (f"id: {id}\n" if id else "")
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


class _Stream(StreamingResponse):
    """A client may leave before the first event is asked for: a generator that never began closes nothing."""

    on_end: Callable[[], None] = staticmethod(lambda: None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.on_end()


def respond(
    events: AsyncGenerator[bytes, None], every: float = HEARTBEAT_S, on_end: Callable[[], None] | None = None
) -> StreamingResponse:
    """Send the events as they come. When the client leaves, `events` is closed; in any case `on_end` is called."""
    response = _Stream(
        with_heartbeats(events, every),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )
    if on_end is not None:
        response.on_end = on_end
    return response


async def with_heartbeats(events: AsyncGenerator[bytes, None], every: float) -> AsyncIterator[bytes]:
    """The same events, with a comment whenever none came for `every` seconds."""
    following: asyncio.Task[bytes] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({following}, timeout=every)
            if not done:
                yield HEARTBEAT
                continue
            finished, following = following, None
            try:
                yield finished.result()
            except StopAsyncIteration:
                return
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait({following})
        await events.aclose()
