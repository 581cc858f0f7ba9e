"""What the body of a request may be: at most 16 MiB (an import: 512) that do not take forever to come; for the API
JSON of at most 100,000 values. A layer before all that parses: a look at millions of values holds up everybody.

Only JSON, because a page of another site can post text or forms to us without asking, but not JSON.
"""

import asyncio
import json
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.refusals import refuse

LIMIT_BYTES = 16 * 1024 * 1024  # a message of three million words; prompts end far earlier
LARGER = {"/api/import": 512 * 1024 * 1024}  # years of conversations in one file
PREFIXES = ("/api/", "/v1/")
MOST_VALUES = 100_000  # a long conversation with many tools has some thousands
PATIENCE_S = 60.0  # for the next piece of a body, which is no byte now and then: so a body could last for years
PIECE_BYTES = 1024


class Bodies:
    """Reads the body of a request, refuses it with 408, 413 or 415, or hands it on whole."""

    def __init__(self, app: ASGIApp, limit: int = LIMIT_BYTES, patience_s: float = PATIENCE_S) -> None:
        self._app = app
        self._limit, self._patience_s = limit, patience_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_api = scope["path"].startswith(PREFIXES)
        headers, limit = Headers(scope=scope), LARGER.get(scope["path"], self._limit)
        length = headers.get("content-length", "0")
        body = None
        if not length.isdigit() or int(length) <= limit:
            try:
                body = await self._read(receive, limit)
            except TimeoutError:
                words = f"Next to nothing of the request came for {self._patience_s:g} s. Send it again."
                await refuse(scope, send, 408, "timeout", words)
                return
        if body is not None and is_api and limit == self._limit and too_many_values(body):
            words = f"The request has more than {MOST_VALUES:,} values, the most that are taken. Send less."
            await refuse(scope, send, 413, "too_large", words)
        elif body is None:
            words = f"The request is larger than {limit // (1024 * 1024)} MiB, the most that is taken. Send less."
            await refuse(scope, send, 413, "too_large", words)
        elif body and is_api and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            words = "A request with a body needs the header Content-Type: application/json."
            await refuse(scope, send, 415, "unsupported_media_type", words)
        else:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive, limit: int) -> bytes | None:
        """The whole body, or None as soon as it is too large."""
        parts, size, piece_ends = [], 0, PIECE_BYTES
        async with asyncio.timeout(self._patience_s) as patience:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return b""
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit:
                    return None
                if not message.get("more_body"):
                    return b"".join(parts)
                if size >= piece_ends:
                    piece_ends = size + PIECE_BYTES
                    patience.reschedule(asyncio.get_running_loop().time() + self._patience_s)


def too_many_values(body: bytes) -> bool:
    """Whether there are more in it than can be checked in a moment. What is no JSON is for others to refuse."""
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) <= MOST_VALUES:
        return False
    try:
        waiting: list[Any] = [json.loads(body)]
    except (ValueError, RecursionError):
        return False
    seen = 0
    while waiting and seen <= MOST_VALUES:
        value = waiting.pop()
        if isinstance(value, dict | list):
            seen += len(value)
            waiting += value.values() if isinstance(value, dict) else value
    return seen > MOST_VALUES


def _replay(body: bytes, receive: Receive) -> Receive:
    unread = True

    async def replay() -> Message:
        nonlocal unread
        if unread:
            unread = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
