"""Pagoda's HTTP API over a real port: shapes, errors in words, and streams without a gap."""

import json
import sqlite3
from contextlib import closing

import pytest

from backend import bodies, event_stream, live
from tests.backend.served import read_events, serve


@pytest.fixture
async def served(tmp_path):
    async with serve(tmp_path / "data") as served:
        yield served


async def test_health_says_whether_the_model_can_be_used(served):
    answer = await served.client.get("/healthz")
    assert answer.json() == {"status": "ok", "model": {"name": "scripted", "state": "ready", "detail": None}}


async def test_a_conversation_reads_as_the_design_says(served):
    conversation = await served.conversation()
    sent = await served.send(conversation, "Hello")
    assert await served.send(conversation, "Hello") == sent
    call = await served.source.next_call()
    await call.write("Hi you")
    await call.finish()
    body = (await served.client.get(f"/api/conversations/{conversation}")).json()
    assert body["title"] == "Hello" and body["model"] == "scripted"
    user, reply = body["messages"]
    assert (user["role"], user["text"], user["request_id"]) == ("user", "Hello", "r1")
    assert (reply["id"], reply["role"], reply["current_attempt"]) == (
        sent["message_id"],
        "assistant",
        sent["attempt_id"],
    )
    (attempt,) = reply["attempts"]
    assert (attempt["state"], attempt["reason"], attempt["text"]) == ("complete", "stop", "Hi you")
    assert attempt["usage"]["completion_tokens"] == 2 and attempt["last_seq"] == 3
    rows = (await served.client.get("/api/conversations")).json()
    assert [(row["id"], row["running"], row["unread"]) for row in rows] == [(conversation, False, True)]


async def test_versions_are_made_selected_continued_and_stopped(served):
    conversation = await served.conversation()
    sent = await served.send(conversation, "Hello")
    await (await served.source.next_call()).finish()
    message = f"/api/messages/{sent['message_id']}"
    again = (await served.client.post(f"{message}/regenerate", json={"request_id": "r2"})).json()["attempt_id"]
    call = await served.source.next_call()
    await call.token("Half")
    assert (await served.client.post(f"/api/attempts/{again}/stop", json={})).status_code == 200
    await call.over.wait()
    further = (await served.client.post(f"{message}/continue")).json()["attempt_id"]
    assert (await served.source.next_call()).request.prefix_tokens == (1001,)
    await served.client.patch(message, json={"selected_attempt": sent["attempt_id"]})
    body = (await served.client.get(f"/api/conversations/{conversation}")).json()
    assert body["messages"][1]["selected_attempt"] == sent["attempt_id"]
    assert [a["id"] for a in body["messages"][1]["attempts"]] == [sent["attempt_id"], again, further]


async def test_conversations_are_renamed_read_and_deleted(served):
    conversation = f"/api/conversations/{await served.conversation()}"
    answer = await served.client.patch(conversation, json={"title": "Greetings", "sampling": {"temperature": 0.5}})
    assert (answer.json()["title"], answer.json()["sampling"]) == ("Greetings", {"temperature": 0.5})
    assert (await served.client.post(f"{conversation}/read")).status_code == 200
    assert (await served.client.delete(conversation)).json()["deleted"]
    assert (await served.client.get(conversation)).status_code == 404
    assert (await served.client.delete(conversation)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "word"),
    [
        ("GET", "/api/conversations/none", None, 404, "does not exist"),
        ("POST", "/api/conversations/none/messages", {"request_id": "r", "text": "x"}, 404, "does not exist"),
        ("POST", "/api/conversations/none/messages", {"text": "x"}, 400, "request_id"),
        ("POST", "/api/conversations", {"modell": "x"}, 400, "modell"),
        ("POST", "/api/conversations", {"model": "x"}, 400, "scripted"),
        ("POST", "/api/conversations", {"sampling": {"top_p": 2}}, 400, "top_p"),
        ("POST", "/api/conversations", {"sampling": {"temperature": "0.5"}}, 400, "temperature"),
        ("POST", "/api/conversations", {"sampling": {"temperature": 2.5}}, 400, "2"),
        ("POST", "/api/conversations", {"sampling": {"max_tokens": True}}, 400, "max_tokens"),
        ("POST", "/api/conversations", {"sampling": {"max_tokens": 10_000_001}}, 400, "10000000"),
        ("POST", "/api/conversations", {"sampling": {"top_k": 1_000_001}}, 400, "1000000"),
        ("POST", "/api/conversations", {"sampling": {"repetition_penalty": 0}}, 400, "0.1"),
        ("POST", "/api/conversations", {"sampling": {"repetition_penalty": 11}}, 400, "10"),
        ("POST", "/api/conversations", {"sampling": {"seed": 2**64}}, 400, "seed"),
        ("POST", "/api/messages/none/regenerate", {}, 404, "does not exist"),
        ("PATCH", "/api/messages/none", {}, 400, "selected_attempt"),
        ("GET", "/api/conversations/none/chunks", None, 404, "does not exist"),
        ("GET", "/api/nothing", None, 404, "/api/nothing"),
    ],
)
async def test_what_is_wrong_is_said_in_words_as_json(served, method, path, body, status, word):
    answer = await served.client.request(method, path, json=body)
    assert answer.status_code == status
    assert word in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"]


async def test_only_json_is_taken_and_not_more_than_the_limit(served):
    text = json.dumps({"request_id": "r", "text": "x"})
    path = f"/api/conversations/{await served.conversation()}/messages"
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""):
        answer = await served.client.post(path, content=text, headers={"Content-Type": kind})
        assert answer.status_code == 415
    assert (
        await served.client.post(path, content="{", headers={"Content-Type": "application/json"})
    ).status_code == 400
    huge = b'"' + b"x" * bodies.LIMIT_BYTES + b'"'

    async def in_parts():
        yield huge[: len(huge) // 2]
        yield huge[len(huge) // 2 :]

    for content in (huge, in_parts()):
        answer = await served.client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert "16 MiB" in answer.json()["error"]["message"]
    assert served.source.calls == []


async def test_a_message_as_long_as_the_page_takes_arrives_whole_and_a_longer_one_is_refused(served):
    conversation = await served.conversation()
    path = f"/api/conversations/{conversation}/messages"
    answer = await served.client.post(path, json={"request_id": "r0", "text": "塔" * 200_001})
    assert answer.status_code == 413
    assert "200,000" in answer.json()["error"]["message"]
    await served.send(conversation, "塔" * 200_000)
    assert len((await served.source.next_call()).request.messages[0]["content"]) == 200_000


@pytest.mark.parametrize(
    "body", [b"{", b'{"text": "\xff\xfe"}', b"[" * 200_000, b'{"text": ' + b"9" * 5000 + b"}"], ids=range(4)
)
@pytest.mark.parametrize("path", ["/api/conversations", "/v1/chat/completions"])
async def test_a_body_that_cannot_be_read_is_refused_in_the_shape_of_its_api(served, path, body):
    answer = await served.client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "cannot be read" in error["message"] and error["type"].startswith("invalid_request")
    assert ("code" in error) == path.startswith("/v1")


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/api", "/api/nothing", "/v1", "/v1/nothing/there", "/healthz/x"])
async def test_an_unknown_address_of_the_api_is_a_json_404(served, method, path):
    answer = await served.client.request(method, path)
    assert answer.status_code == 404 and path in answer.json()["error"]["message"]


async def test_another_unknown_address_is_a_page_with_a_way_home_that_repeats_nothing_unescaped(served):
    answer = await served.client.get("/<script>alert(1)</script>")
    assert answer.status_code == 404 and answer.headers["content-type"].startswith("text/html")
    assert 'href="/"' in answer.text and "<script" not in answer.text


async def test_a_reader_beyond_any_end_hears_nothing_and_breaks_nothing(served):
    conversation = await served.conversation()
    sent = await served.send(conversation, "Hello")
    await (await served.source.next_call()).finish()
    path, attempt = f"/api/conversations/{conversation}/chunks", sent["attempt_id"]
    for after in ("9" * 23, "9" * 5000, "-2", "x"):
        answer = await served.client.get(path, params={"attempt": attempt, "after": after})
        assert answer.status_code == 400 and "after" in answer.json()["error"]["message"]
    for seq in ("9" * 16, "9" * 23, "9" * 5000):
        answer = await served.client.get(
            path, params={"attempt": attempt}, headers={"Last-Event-ID": f"{attempt}:{seq}"}
        )
        assert (answer.status_code, answer.text) == (200, "")


async def test_another_site_gets_nothing(served):
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        answer = await served.client.post("/api/conversations", json={}, headers=headers)
        assert answer.status_code == 403
    assert served.gateway.conversations() == []


async def test_a_stream_of_an_attempt_replays_then_goes_on_live_without_a_gap(served):
    conversation = await served.conversation()
    sent = await served.send(conversation, "Hello")
    call = await served.source.next_call()
    await call.write("one two")
    url = f"/api/conversations/{conversation}/chunks?attempt={sent['attempt_id']}"
    seen = []
    async with served.client.stream("GET", url) as response:
        assert response.headers["x-accel-buffering"] == "no"
        async for name, data, id in read_events(response):
            seen.append(data)
            assert (name, id) == ("chunk", f"{sent['attempt_id']}:{data['seq']}")
            if data["seq"] == 2:
                await call.token(" three")
            if data["data"].get("text") == " three":
                await call.finish()
    assert [chunk["seq"] for chunk in seen] == [0, 1, 2, 3, 4]
    assert "".join(chunk["data"].get("text", "") for chunk in seen) == "one two three"
    assert seen[-1]["data"]["state"] == "complete"
    async with served.client.stream("GET", f"{url}&after=2") as response:
        assert [data async for _, data, _ in read_events(response)] == seen[3:]
    async with served.client.stream("GET", url, headers={"Last-Event-ID": f"{sent['attempt_id']}:3"}) as response:
        assert [data async for _, data, _ in read_events(response)] == seen[4:]
    async with served.client.stream("GET", f"{url}&after=4") as response:
        assert [data async for _, data, _ in read_events(response)] == []


async def test_a_stream_of_a_conversation_begins_with_a_snapshot_and_ends_with_its_deletion(served):
    conversation = await served.conversation()
    names = []
    async with served.client.stream("GET", f"/api/conversations/{conversation}/chunks") as response:
        async for name, data, _ in read_events(response):
            names.append(name)
            if name == "snapshot":
                assert data["messages"] == []
                await served.send(conversation, "Hello")
                await (await served.source.next_call()).finish(text="Hi")
            if name == "chunk" and data["kind"] == "state" and data["data"]["state"] == "complete":
                served.gateway.delete_conversation(conversation)
    assert names[0] == "snapshot" and names[-1] == "deleted"
    assert names.count("message") == 2 and names.count("chunk") == 3


async def test_a_reader_that_falls_behind_gets_a_snapshot_instead_of_a_gap(served, monkeypatch):
    monkeypatch.setattr(live, "BEHIND", 5)
    conversation = await served.conversation()
    events = live.conversation_events(served.gateway, conversation)
    assert b"event: snapshot" in await anext(events)
    await served.send(conversation, "Hello")
    call = await served.source.next_call()
    for word in ["a", "b", "c", "d", "e", "f", "g", "h"]:
        await call.token(word)
    following = await anext(events)
    assert b"event: snapshot" in following and b"abcdefgh" in following
    await call.token("i")
    assert b'"text":"i"' in await anext(events)
    await events.aclose()


@pytest.mark.parametrize("page", [2, 500])
async def test_a_slow_reader_of_an_attempt_misses_nothing_and_holds_little(served, monkeypatch, page):
    monkeypatch.setattr(live, "BEHIND", 3)
    monkeypatch.setattr(live, "PAGE", page)
    sent = await served.send(await served.conversation(), "Hello")
    call = await served.source.next_call()
    await call.token("x")
    events = live.attempt_events(served.gateway, sent["attempt_id"], -1)
    seen = await anext(events)
    for words in (["a", "b"], list("cdefghijk"), ["l"]):
        for word in words:
            await call.token(word)
        seen += await anext(events)
    await call.finish()
    seen += b"".join([block async for block in events])
    numbers = [json.loads(line[6:])["seq"] for line in seen.decode().splitlines() if line.startswith("data: ")]
    assert numbers == list(range(len(served.gateway.chunks(sent["attempt_id"]))))


async def test_a_silent_stream_carries_heartbeats(served, monkeypatch):
    monkeypatch.setattr(event_stream.respond, "__defaults__", (0.01, None))
    conversation = await served.conversation()
    sent = await served.send(conversation, "Hello")
    call = await served.source.next_call()
    url = f"/api/conversations/{conversation}/chunks?attempt={sent['attempt_id']}"
    names = []
    async with served.client.stream("GET", url) as response:
        async for name, *_ in read_events(response):
            names.append(name)
            if names == ["comment", "comment"]:
                await call.finish()
    assert "chunk" in names


async def test_open_streams_end_when_pagoda_is_closed(served):
    conversation = await served.conversation()
    sent = await served.send(conversation, "Hello")
    await served.source.next_call()
    url = f"/api/conversations/{conversation}/chunks"
    async with (
        served.client.stream("GET", url) as of_all,
        served.client.stream("GET", f"{url}?attempt={sent['attempt_id']}") as of_one,
    ):
        await served.pagoda.end_replies()
        assert [data["data"]["state"] async for _, data, _ in read_events(of_one)] == ["interrupted"]
        assert "snapshot" in [name async for name, *_ in read_events(of_all)]
    answer = await served.client.post("/api/conversations", json={})
    assert answer.status_code == 503


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        ("DELETE FROM conversations", "conversations/{}"),
        ("DELETE FROM messages WHERE role = 'assistant'", "conversations/{}"),
        ("UPDATE messages SET parent = 'm_of_nobody' WHERE role = 'user'", "conversations/{}"),
        ("UPDATE messages SET parent = (SELECT max(id) FROM messages WHERE role = 'user')", "conversations/{}"),
        ("UPDATE attempts SET state = 'zeros'", "conversations/{}"),
        ("UPDATE passages SET text = x'00ff' WHERE attempt_id IS NULL", "search?q=tomato"),
        ("UPDATE conversations SET title = x'00ff'", "search?q=tomato"),
    ],
)
async def test_a_row_that_a_disk_has_damaged_is_told_in_words(served, tmp_path, damage, path):
    conversation = await served.conversation()
    await served.send(conversation, "Which tomato?")
    await (await served.source.next_call()).finish()
    with closing(sqlite3.connect(tmp_path / "data" / "pagoda.db", isolation_level=None)) as db:
        db.execute(damage)
    answer = await served.client.get(f"/api/{path.format(conversation)}")
    assert answer.status_code == 500 and "backup" in answer.json()["error"]["message"], answer.text
