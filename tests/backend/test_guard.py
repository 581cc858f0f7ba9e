"""Who gets past the guard: our own names and our own page, and from other machines only with the token."""

import json

import pytest

from backend.guard import Guard, is_loopback


async def ask(guard_options: dict, headers: dict, path="/", query="", method="GET", kind="http"):
    """One request through a guard in front of an app that lets everybody in. Returns (status, headers, body)."""
    sent = []

    async def app(scope, receive, send):
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"welcome"})

    async def receive():
        raise AssertionError("the guard has no business with the body")

    async def send(message):
        sent.append(message)

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        "scheme": "http",
    }
    await Guard(app, **guard_options)(scope, receive, send)
    if kind == "websocket":
        return sent[0]["type"], {}, b""
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST", "127.0.0.1"])
async def test_our_own_names_get_in(host):
    assert (await ask({}, {"Host": host}))[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@evil.example",
     "evil.example/127.0.0.1", "", "localhost:x", "[::1", "127.0.0.2"],
)  # fmt: skip
async def test_a_foreign_host_is_refused_for_http_and_websocket(host):
    status, _, body = await ask({}, {"Host": host})
    assert status == 403
    assert "localhost" in json.loads(body)["error"]["message"]
    assert (await ask({}, {"Host": host}, kind="websocket"))[0] == "websocket.close"


async def test_a_request_without_a_host_is_refused():
    assert (await ask({}, {}))[0] == 403


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost:3000", "http://localhost:8080.evil.example", "file://", "http://[",
     "chrome-extension://localhost:8080"],
)  # fmt: skip
async def test_another_sites_page_is_refused(kind, origin):
    status, *_ = await ask({}, {"Host": "localhost:8080", "Origin": origin}, kind=kind, method="POST")
    assert status in (403, "websocket.close")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(
    "mode, dest, method, status",
    [("no-cors", "image", "GET", 403), ("no-cors", "script", "GET", 403), ("cors", "empty", "GET", 403),
     ("navigate", "iframe", "GET", 403), ("navigate", "document", "POST", 403), ("navigate", "document", "GET", 200)],
)  # fmt: skip
async def test_another_sites_page_may_link_here_and_nothing_else(site, mode, dest, method, status):
    fetch = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
    assert (await ask({}, {"Host": "localhost:8080", **fetch}, method=method))[0] == status
    own = {**fetch, "Sec-Fetch-Site": "same-origin"}
    assert (await ask({}, {"Host": "localhost:8080", **own}, method=method))[0] == 200


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_our_own_page_gets_in(kind):
    status, *_ = await ask({}, {"Host": "localhost:8080", "Origin": "http://localhost:8080"}, kind=kind)
    assert status in (200, "websocket.accept")


def test_an_address_that_others_can_reach_needs_a_token():
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org", ""):
        assert not is_loopback(host)
        with pytest.raises(ValueError, match="token"):
            Guard(lambda *_: None, host)


OPEN = {"host": "0.0.0.0", "token": "s3cret"}


async def test_without_the_token_nobody_gets_in_from_anywhere():
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Cookie": "pagoda_token=wrong"},
        {"Authorization": "Basic s3cret"},
    ):
        assert (await ask(OPEN, {"Host": "box:8080", **headers}))[0] == 401
        assert (await ask(OPEN, {"Host": "box:8080", **headers}, kind="websocket"))[0] == "websocket.close"
    assert (await ask(OPEN, {"Host": "box:8080"}, query="token=wrong"))[0] == 401
    assert (await ask(OPEN, {"Host": "box:8080"}, query="token=s3cret", method="POST"))[0] == 401


async def test_with_the_token_in_a_header_or_the_cookie_one_gets_in():
    assert (await ask(OPEN, {"Host": "box:8080", "Authorization": "Bearer s3cret"}))[0] == 200
    assert (await ask(OPEN, {"Host": "box:8080", "Cookie": "a=b; pagoda_token=s3cret"}))[0] == 200
    status, *_ = await ask(OPEN, {"Host": "box:8080", "Cookie": "pagoda_token=s3cret"}, kind="websocket")
    assert status == "websocket.accept"


async def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address():
    status, headers, _ = await ask(OPEN, {"Host": "box:8080"}, path="/c/c_1", query="a=1&token=s3cret&b=")
    assert status == 303
    assert headers[b"location"] == b"/c/c_1?a=1&b="
    cookie = headers[b"set-cookie"].decode()
    assert cookie.startswith("pagoda_token=s3cret;") and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    _, headers, _ = await ask(OPEN, {"Host": "box:8080"}, path="//evil.example/", query="token=s3cret")
    assert headers[b"location"] == b"/evil.example/"


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
async def test_no_answer_can_be_framed_sniffed_or_named_in_a_referer(host):
    _, headers, _ = await ask({}, {"Host": host})
    assert headers[b"x-frame-options"] == b"DENY"
    assert headers[b"content-security-policy"] == b"frame-ancestors 'none'"
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"referrer-policy"] == b"no-referrer"
    assert headers[b"x-dns-prefetch-control"] == b"off"


async def test_a_person_without_the_token_reads_a_page_and_a_program_json():
    options = {"host": "0.0.0.0", "token": "secret"}
    status, headers, body = await ask(options, {"Host": "box", "Accept": "text/html,application/xhtml+xml"})
    assert status == 401 and headers[b"content-type"].startswith(b"text/html")
    assert b"?token=" in body and body.startswith(b"<!doctype html>")
    status, _, body = await ask(options, {"Host": "box", "Accept": "*/*"})
    assert status == 401 and "?token=" in json.loads(body)["error"]["message"]
