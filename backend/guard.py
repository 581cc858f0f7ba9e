"""Who may talk to Pagoda: a pure ASGI layer in front of everything, for HTTP and websockets alike.

A foreign `Host` is a DNS rebinding attack, a foreign `Origin` another site's page. Where Pagoda can be reached from
other machines, an access token is demanded as well.
"""

import hmac
import ipaddress
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.refusals import refuse
from backend.words_page import wants_page, words_page

COOKIE = "pagoda_token"
# On every answer: no other site may put Pagoda into a frame and have its buttons clicked, nor guess at types, nor read
# in a Referer which conversation was open. What a page may load stands in the page itself.
SECURITY_HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    # A browser looks up the hosts of links before anybody clicks them: a name in a reply would be told to the network.
    (b"x-dns-prefetch-control", b"off"),
)
_READING = ("GET", "HEAD")
_ANOTHER_SITE = "Another site's page tried to use Pagoda. Only Pagoda's own page may."
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _names_everything(host: str) -> bool:
    return host in ("", "0.0.0.0", "::")


class Guard:
    """`host` is what Pagoda is bound to. With `token`, every request has to show it."""

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1", token: str | None = None) -> None:
        if token is None and not is_loopback(host):
            raise ValueError(f"{host} can be reached from other machines: that needs an access token")
        self._app = app
        # Bound to every address we cannot know our names; the token, whose cookie belongs to one name, stands in.
        self._names = None if _names_everything(host) else LOOPBACK_NAMES | {host.lower()}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["type"] == "http":
            send = _secured(send)
        if (words := self._foreign(headers, scope.get("method", "GET"))) is not None:
            await _refuse(scope, headers, send, 403, "forbidden", words)
        elif self._token is None or self._shown(scope, headers):
            await self._app(scope, receive, send)
        elif scope["type"] == "http" and self._in_query(scope) is not None:
            await self._welcome(scope, send)
        else:
            words = "This Pagoda needs an access token. Open the address with ?token= that it printed when it started."
            await _refuse(scope, headers, send, 401, "unauthorized", words)

    def _foreign(self, headers: Headers, method: str) -> str | None:
        """Why the request is not for us or not from us, or None."""
        hosts = headers.getlist("host")
        name = _name(hosts[0]) if len(hosts) == 1 else None
        if name is None or (self._names is not None and name not in self._names):
            return "This address is not one of Pagoda's names. Open it as http://localhost or 127.0.0.1."
        for origin in headers.getlist("origin"):
            try:
                parts = urlsplit(origin)
                same = parts.scheme in ("http", "https") and parts.netloc.lower() == hosts[0].lower()
            except ValueError:
                same = False
            if not same:
                return _ANOTHER_SITE
        # An image, a script, a fetch without CORS carry no Origin. What a browser says of them is believed: a program
        # that is no browser has nothing to gain by it. Following a link to Pagoda is nobody's attack.
        followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not (followed and method in _READING):
            return _ANOTHER_SITE
        return None

    def _shown(self, scope: Scope, headers: Headers) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        key = headers.get("x-api-key", "")  # as Anthropic's clients show it
        return (scheme.lower() == "bearer" and self._right(bearer.strip())) or self._right(cookie) or self._right(key)

    def _right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), (self._token or "").encode())

    def _in_query(self, scope: Scope) -> list[tuple[str, str]] | None:
        """The other query parameters when the right token is among them and a person may be looking, else None."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(query).get("token", "")
        if scope["method"] not in _READING or not self._right(token):
            return None
        return [(key, value) for key, value in query if key != "token"]

    async def _welcome(self, scope: Scope, send: Send) -> None:
        """Keep the token in a cookie and take it out of the address, where it would end in histories and logs."""
        rest = self._in_query(scope) or []
        # A path that begins with two slashes would be read as another host.
        path = "/" + quote(scope["path"].lstrip("/\\"), safe="/:@!$&'()*+,;=~-._")
        location = path + (f"?{urlencode(rest)}" if rest else "")
        secure = "; Secure" if scope.get("scheme") == "https" else ""
        cookie = f"{COOKIE}={self._token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=31536000{secure}"
        headers = [
            (b"location", location.encode()),
            (b"set-cookie", cookie.encode()),
            (b"cache-control", b"no-store"),
            (b"content-length", b"0"),
        ]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _secured(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            there = {name.lower() for name, _ in headers}
            # A policy of the answer's own and ours both hold.
            ours = [
                (name, value) for name, value in SECURITY_HEADERS if name not in there or name.startswith(b"content-s")
            ]
            message = {**message, "headers": headers + ours}
        await send(message)

    return with_headers


async def _refuse(scope: Scope, headers: Headers, send: Send, status: int, kind: str, words: str) -> None:
    """In JSON for programs, as a page for a person's browser."""
    if scope["type"] != "http" or not wants_page(headers):
        await refuse(scope, send, status, kind, words)
        return
    body = words_page("Not let in", words).encode()
    head = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def _name(host: str) -> str | None:
    """The name in a Host header without its port, lower case; None when it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    bare = parts.netloc == host and "@" not in host and not (parts.path or parts.query or parts.fragment)
    return parts.hostname if bare else None
