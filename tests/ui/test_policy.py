"""The policy names every inline script of a page by its hash, and passes everything else on as it comes."""

from base64 import b64encode
from hashlib import sha256

import pytest

from ui.policy import Policy, policy_for


def hash_of(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def test_inline_scripts_are_named_and_files_are_not():
    html = '<script>a()</script><script type="module">\n b("<é>")\n</script><script defer src="x.js"></script>'
    policy = policy_for(html)
    assert hash_of("a()") in policy and hash_of('\n b("<é>")\n') in policy and policy.count("sha256-") == 2
    assert "'unsafe-inline'" not in policy.split("style-src")[0]
    assert "http" not in policy  # no other host


async def answer(content_type: bytes, pieces: list[bytes]) -> list[dict]:
    sent: list[dict] = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": piece is not pieces[-1]})

    async def receive():
        raise AssertionError("nobody reads")

    async def send(message):
        sent.append(message)

    await Policy(app)({"type": "http"}, receive, send)
    return sent


async def test_a_page_in_pieces_is_one_page():
    start, body = await answer(b"text/html; charset=utf-8", [b"<script>a", b"()</script>"])
    assert hash_of("a()") in dict(start["headers"])[b"content-security-policy"].decode()
    assert body["body"] == b"<script>a()</script>"


@pytest.mark.parametrize("content_type", [b"text/event-stream", b"application/json"])
async def test_a_stream_passes_piece_by_piece(content_type):
    start, *pieces = await answer(content_type, [b"<script>", b"</script>"])
    assert len(pieces) == 2 and b"content-security-policy" not in dict(start["headers"])
