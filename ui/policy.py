"""What the page may load and run, as a header on each page: no other host, and no inline script but those written here.

NiceGUI writes a few inline scripts into every page. Their hashes are taken from the page as it leaves, so a script that
got in later by way of a reply, or an `onerror` of some markup, is not among them and does not run.
"""

import re
from base64 import b64encode
from hashlib import sha256

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# NiceGUI compiles templates and runs the server's calls with `eval`; KaTeX and Quasar place things with styles.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-eval' {hashes}; script-src-attr 'none'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; frame-src 'none'; worker-src 'none'; base-uri 'none'; form-action 'self'"
)
_INLINE = re.compile(r"<script\b(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)


def policy_for(html: str) -> str:
    """The Content-Security-Policy of a page: its inline scripts by SHA-256."""
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in _INLINE.findall(html))
    return _POLICY.format(hashes=" ".join(f"'sha256-{value}'" for value in dict.fromkeys(hashes)))


class Policy:
    """Gives each HTML answer its policy; everything else, streams among it, passes as it comes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def read_first(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                html = Headers(raw=message["headers"]).get("content-type", "").startswith("text/html")
                start = message if html else None
                if html:
                    return
            elif start is not None:
                body += message.get("body", b"")
                if message.get("more_body"):
                    return
                headers = MutableHeaders(raw=list(start["headers"]))
                headers.append("content-security-policy", policy_for(body.decode("utf-8", "replace")))
                await send({**start, "headers": headers.raw})
                await send({"type": "http.response.body", "body": body})
                return
            await send(message)

        await self._app(scope, receive, read_first)
