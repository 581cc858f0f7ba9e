"""Clients that send what no library would, over bare sockets: each gets an answer in words, and nobody else waits."""

import asyncio
import json
from itertools import product

import pytest
import websockets

from backend.bodies import MOST_VALUES, Bodies
from backend.late_heads import LateHeads
from tests.backend.served import on_a_port, serve

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
ASK = {"model": "scripted", "messages": MESSAGES}
BODIES = {
    CHAT: ASK,
    "/v1/completions": {"model": "scripted", "prompt": "Once"},
    "/v1/messages": ASK | {"max_tokens": 5},
    "/v1/messages/count_tokens": ASK,
    "/v1/responses": {"model": "scripted", "input": "Hello"},
}
FIELDS = [
    "model",
    "messages",
    "input",
    "prompt",
    "system",
    "instructions",
    "stream",
    "stream_options",
    "stop",
    "stop_sequences",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "text",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "chat_template_kwargs",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "pagoda",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
    "user",
    "include",
    "metadata",
    "best_of",
    "echo",
    "suffix",
    "functions",
]
ODD = [True, -1, 1.5, 1e308, "", "x", "塔" * 500, [], [1], [[]], [None], {}, {"a": 1}, {"type": "function"}, [{}]]
ODD += [[{"type": "function"}], [{"role": "user"}], [{"role": "user", "content": [{"type": "text", "text": 1}]}]]


@pytest.fixture
async def served(tmp_path):
    async with serve(tmp_path / "data") as served:
        answering = asyncio.create_task(_answer_all(served))
        yield served
        answering.cancel()


async def _answer_all(served) -> None:
    while True:
        await (await served.source.next_call(1e6)).finish(text="Hi")


def bodies(served) -> Bodies:
    """The layer that reads bodies, behind the guard."""
    return served.pagoda.asgi._app


def request(path: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(body) if length is None else length}", "", ""]).encode() + body


async def connected(served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", served.client.base_url.port)


async def answers(served, data: bytes, count: int = 1) -> list[tuple[int, bytes]]:
    """(status, body) of what comes back for these bytes, and then the connection is closed by us."""
    reader, writer = await connected(served)
    writer.write(data)
    found = [await one_answer(reader) for _ in range(count)]
    writer.close()
    return found


async def one_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


@pytest.mark.parametrize("path", BODIES)
async def test_a_wrong_type_in_any_field_is_refused_by_the_fields_name_or_harmless(served, path):
    for field, value in product(FIELDS, ODD):
        if (field, value) != ("stream", True):
            body = json.dumps(BODIES[path] | {field: value}).encode()
            ((status, answer),) = await answers(served, request(path, body, "Connection: close"))
            assert status in (200, 400, 404), (field, value, answer)
            if status == 400 and "messages" not in path:
                error = json.loads(answer)["error"]
                assert error["type"] == "invalid_request_error" and error["message"]
                assert error["param"].split(".")[0] in (field, "model", "max_tokens", "max_completion_tokens"), error


@pytest.mark.parametrize("path", BODIES)
async def test_what_is_no_json_object_or_far_too_deep_is_a_400(served, path):
    deep = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    for body in (b"", b"{", b"[]", b"null", b'"x"', b"NaN", b"[" * 100_000, deep, b'{"model":"\xff"}'):
        ((status, answer),) = await answers(served, request(path, body))
        assert status == 400 and json.loads(answer)["error"]["message"], body[:20]


async def test_millions_of_values_are_refused_before_anything_looks_at_them(served):
    for body in (
        ASK | {"messages": [1] * (MOST_VALUES + 1)},
        ASK | {"stop": [1] * (MOST_VALUES + 1)},
        ASK | {f"field{n}": 1 for n in range(MOST_VALUES + 1)},
        ASK | {"logit_bias": {str(n): "x" for n in range(MOST_VALUES + 1)}},
    ):
        ((status, answer),) = await answers(served, request(CHAT, json.dumps(body).encode()))
        assert status == 413 and "values" in json.loads(answer)["error"]["message"]
    commas = ASK | {"messages": [{"role": "user", "content": "one, two [3] {4}, " * MOST_VALUES}]}
    ((status, _),) = await answers(served, request(CHAT, json.dumps(commas).encode()))
    assert status == 200  # they are a text, however many marks it has


async def test_a_body_that_is_announced_as_huge_is_refused_at_once(served):
    ((status, _),) = await answers(served, request(CHAT, b"{", length=10**15))
    assert status == 413


async def test_requests_in_one_go_are_answered_in_their_order(served):
    bodies = [b"{", json.dumps(ASK).encode(), b"[]", json.dumps(ASK).encode()]
    found = await answers(served, b"".join(request(CHAT, body) for body in bodies), len(bodies))
    assert [status for status, _ in found] == [400, 200, 400, 200]


async def test_a_request_byte_by_byte_is_a_request(served):
    reader, writer = await connected(served)
    for byte in request(CHAT, json.dumps(ASK).encode()):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    assert (await one_answer(reader))[0] == 200
    writer.close()


async def test_hundreds_of_half_requests_hold_up_nobody(served):
    halves = [await connected(served) for _ in range(300)]
    for n, (_, writer) in enumerate(halves):
        writer.write(b"POST " if n % 2 else request(CHAT, b"{", length=100))
    ((status, _),) = await answers(served, request(CHAT, json.dumps(ASK).encode()))
    assert status == 200
    for _, writer in halves:
        writer.close()


@pytest.mark.parametrize("path", [CHAT, "/anywhere"])
async def test_a_body_that_never_comes_is_not_waited_for_forever(served, monkeypatch, path):
    monkeypatch.setattr(bodies(served), "_patience_s", 0.2)
    ((status, answer),) = await answers(served, request(path, b"{", length=100))
    assert status == 408 and b"Send it again" in answer


async def test_a_byte_now_and_then_is_no_progress_but_a_slow_upload_is(served, monkeypatch):
    monkeypatch.setattr(bodies(served), "_patience_s", 3)
    (trickling, byte), (uploading, piece) = await connected(served), await connected(served)
    byte.write(request(CHAT, b"", length=16_000))
    slow = json.dumps(ASK | {"messages": [{"role": "user", "content": "x" * 4_000_000}]}).encode()
    piece.write(request(CHAT, b"", length=len(slow)))
    sent, cut = 0, asyncio.create_task(one_answer(trickling))
    while not cut.done():  # the upload, too, has lasted longer than the limit by then
        if not byte.is_closing():
            byte.write(b" ")
        piece.write(slow[sent : sent + 2048])
        sent += 2048
        await asyncio.wait({cut}, timeout=0.02)
    assert (await cut)[0] == 408
    piece.write(slow[sent:])
    assert sent < len(slow) and (await one_answer(uploading))[0] == 200
    byte.close()
    piece.close()


@pytest.mark.parametrize("first", [b"", b"GET /", b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
async def test_headers_that_never_end_are_given_up_however_busily_they_trickle(served, monkeypatch, first):
    monkeypatch.setattr(LateHeads, "head_s", 0.5)
    reader, writer = await connected(served)
    writer.write(first)
    reading = asyncio.create_task(reader.read())
    while not reading.done():
        if first and not writer.is_closing():
            writer.write(b"a")
        await asyncio.wait({reading}, timeout=0.02)
    assert (await reading).startswith(b"HTTP/1.1 408 " if first else b"")
    writer.close()


async def test_a_second_request_on_a_connection_has_the_same_time_for_its_headers(served, monkeypatch):
    monkeypatch.setattr(LateHeads, "head_s", 0.5)
    reader, writer = await connected(served)
    writer.write(request(CHAT, json.dumps(ASK).encode()))
    assert (await one_answer(reader))[0] == 200
    writer.write(b"GET /healthz HTTP/1.1\r\n")
    assert (await one_answer(reader))[0] == 408
    writer.close()


async def test_a_reply_may_last_longer_than_any_head(tmp_path, monkeypatch):
    monkeypatch.setattr(LateHeads, "head_s", 0.5)
    async with serve(tmp_path / "data") as served:
        reader, writer = await connected(served)
        writer.write(request(CHAT, json.dumps(ASK).encode()))
        call = await served.source.next_call()
        for _ in range(2):  # each began later, and is cut
            assert (await answers(served, b"GET /"))[0][0] == 408
        await call.finish(text="At last")
        status, answer = await one_answer(reader)
        assert status == 200 and b"At last" in answer
        writer.close()


async def test_a_websocket_may_last_longer_than_any_head(monkeypatch):
    monkeypatch.setattr(LateHeads, "head_s", 0.5)

    async def echo(scope, receive, send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] != "websocket.disconnect":
                if "text" in message:
                    await send({"type": "websocket.send", "text": message["text"]})

    async with on_a_port(echo) as port, websockets.connect(f"ws://127.0.0.1:{port}/") as socket:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /")
        assert (await one_answer(reader))[0] == 408  # began later than the websocket
        await socket.send("still here")
        assert await asyncio.wait_for(socket.recv(), 30) == "still here"
        writer.close()


async def test_who_says_nothing_more_has_left_and_the_reply_is_stopped(tmp_path):
    """A client that closes its half is one that closes: nothing tells them apart before something is sent."""
    async with serve(tmp_path / "data") as served:
        _, writer = await connected(served)
        writer.write(request(CHAT, json.dumps(ASK | {"stream": True}).encode()))
        call = await served.source.next_call()
        writer.write_eof()
        await asyncio.wait_for(call.over.wait(), 10)
        assert call.abort.reason == "client_left"
        writer.close()


async def test_a_reader_that_stops_reading_holds_up_neither_its_source_nor_others(tmp_path):
    async with serve(tmp_path / "data") as served:
        served.source.capacity = 2
        _, writer = await connected(served)
        writer.write(request(CHAT, json.dumps(ASK | {"stream": True}).encode()))
        slow = await served.source.next_call()
        for _ in range(40):
            await asyncio.wait_for(slow.token("x" * 200_000), 10)  # 8 MB, more than the socket takes
        other = asyncio.create_task(served.client.post(CHAT, json=ASK))
        await (await served.source.next_call()).finish(text="Hi")
        assert (await other).status_code == 200
        await slow.finish()
        writer.close()
