"""What the body of an API request may be: JSON, at most 16 MiB (an import: 512). A layer before all that parses.

Only JSON, because a page of another site can post text or forms to us without asking, but not JSON.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.refusals import refuse

LIMIT_BYTES = 16 * 1024 * 1024  # a message of three million words; prompts end far earlier
LARGER = {"/api/import": 512 * 1024 * 1024}  # years of conversations in one file
PREFIXES = ("/api/", "/v1/")


class Bodies:
    """Reads the body of an API request, refuses it with 413 or 415, or hands it on whole."""

    def __init__(self, app: ASGIApp, limit: int = LIMIT_BYTES) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIXES):
            await self._app(scope, receive, send)
            return
        headers, limit = Headers(scope=scope), LARGER.get(scope["path"], self._limit)
        length = headers.get("content-length", "0")
        body = None
        if not length.isdigit() or int(length) <= limit:
            body = await self._read(receive, limit)
        if body is None:
            words = f"The request is larger than {limit // (1024 * 1024)} MiB, the most that is taken. Send less."
            await refuse(scope, send, 413, "too_large", words)
        elif body and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            words = "A request with a body needs the header Content-Type: application/json."
            await refuse(scope, send, 415, "unsupported_media_type", words)
        else:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive, limit: int) -> bytes | None:
        """The whole body, or None as soon as it is too large."""
        parts, size = [], 0
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


def _replay(body: bytes, receive: Receive) -> Receive:
    unread = True

    async def replay() -> Message:
        nonlocal unread
        if unread:
            unread = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
