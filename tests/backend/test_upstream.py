"""Conversations with models of other servers: chosen by NAME/model, retried only where safe, ended in words."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from backend import upstream as upstream_module
from backend.chunks import Chunk, Progress, StateChange
from backend.upstream import Upstream
from backend.upstream_settings import UpstreamSettings, checked
from tests.backend.other_server import Answer, delta, other_server, sse
from tests.backend.served import serve

USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
PROGRESS = {"choices": [], "prompt_progress": {"total": 9, "processed": 4}}
GOOD = Answer([sse(delta("Hi "), delta("you", "stop"), USAGE, "[DONE]")])


@asynccontextmanager
async def joined(folder, **options):
    """Pagoda, and another server as its upstream `other`."""
    async with other_server() as other:
        other.owner = options.pop("owner", other.owner)
        upstream = Upstream(UpstreamSettings("other", options.pop("url", other.url), **options))
        known = asyncio.Event()
        upstream.watch(known.set)
        async with serve(folder, [upstream]) as served:
            await asyncio.wait_for(known.wait(), 20)
            yield served, other


async def reply(served, model: str = "other/small", text: str = "Hello") -> dict:
    """A turn to its end."""
    conversation = served.gateway.create_conversation(model=model)["id"]
    return await ended(served, served.gateway.send(conversation, f"r-{conversation}-{text}", text).attempt_id)


async def ended(served, attempt: str) -> dict:
    over = asyncio.Event()

    def look(item) -> None:
        if isinstance(item, Chunk) and item.attempt_id == attempt:
            data = item.data
            if isinstance(data, StateChange) and data.state.terminal:
                over.set()

    unsubscribe = served.gateway.subscribe(look)
    if not served.gateway.attempt(attempt).state.terminal:
        await asyncio.wait_for(over.wait(), 20)
    unsubscribe()
    return served.gateway.attempt(attempt).to_dict()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(upstream_module, "BACKOFF_S", (0.01, 0.02))


async def test_its_models_are_listed_and_a_conversation_can_have_one(tmp_path):
    async with joined(tmp_path) as (served, other):
        other.answers = [GOOD]
        names = [row["id"] for row in (await served.client.get("/v1/models")).json()["data"]]
        assert names == ["scripted", "other/small", "other/org/large"]
        attempt = await reply(served, "other/org/large")
        assert (attempt["state"], attempt["text"], attempt["model"]) == ("complete", "Hi you", "other/org/large")
        assert attempt["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        (body,) = other.completions()
        assert body["model"] == "org/large" and body["messages"] == [{"role": "user", "content": "Hello"}]
        assert set(body) == {"model", "messages", "stream", "stream_options"}


async def test_each_server_is_asked_for_progress_in_its_own_way(tmp_path):
    for owner, field in (("llamacpp", "return_progress"), ("pagoda", "pagoda")):
        async with other_server() as other:
            other.owner = owner
            other.answers = [Answer([sse(PROGRESS), *GOOD.pieces])]
            upstream = Upstream(UpstreamSettings("other", other.url))
            known = asyncio.Event()
            upstream.watch(known.set)
            async with serve(tmp_path / owner, [upstream]) as served:
                await asyncio.wait_for(known.wait(), 20)
                attempt = await reply(served)
                seen = [c.data for c in served.gateway.chunks(attempt["id"]) if isinstance(c.data, Progress)]
                assert (seen[-1].tokens_done, seen[-1].tokens_total, seen[-1].layer) == (4, 9, None)
            assert field in other.completions()[0]


async def test_thoughts_are_not_sent_back_and_a_continued_text_is(tmp_path):
    async with joined(tmp_path) as (served, other):
        other.answers = [
            Answer([sse(delta(reasoning_content="Hm."), delta("One"))]),
            Answer([sse(delta(" two", "stop"))]),
        ]
        first = await reply(served)
        assert (first["state"], first["reason"]) == ("interrupted", "upstream_ended")
        assert first["text"] == "<think>\nHm.\n</think>\n\nOne"
        message = served.gateway.attempt(first["id"]).message_id
        second = await ended(served, served.gateway.continue_(message))
        assert (second["state"], second["text"]) == ("complete", first["text"] + " two")
        assert other.completions()[1]["messages"][-1] == {"role": "assistant", "content": "One"}
        assert second["timings"]["continued_from"] == "text" and "continued_from" not in first["timings"]
        conversation = served.gateway.attempt(first["id"]).conversation_id
        other.answers = [GOOD]
        await ended(served, served.gateway.send(conversation, "r2", "And?").attempt_id)
        assert other.completions()[2]["messages"][1] == {"role": "assistant", "content": "One two"}


@pytest.mark.parametrize("owner", ["vllm", "pagoda"])
async def test_who_knows_the_words_is_asked_to_go_on_within_the_last_message(tmp_path, owner):
    async with joined(tmp_path, owner=owner) as (served, other):
        other.answers = [Answer([sse(delta("One"))]), Answer([sse(delta(" two", "stop"))])]
        first = await reply(served)
        await ended(served, served.gateway.continue_(served.gateway.attempt(first["id"]).message_id))
        asked = other.completions()
        assert "continue_final_message" not in asked[0]
        assert asked[1]["continue_final_message"] is True and asked[1]["add_generation_prompt"] is False


async def test_the_key_comes_from_the_environment_and_is_kept_nowhere(tmp_path, monkeypatch, caplog):
    caplog.set_level("DEBUG")
    monkeypatch.setenv("SECRET_OF_OTHER", "sk-very-secret")
    async with joined(tmp_path, key_env="SECRET_OF_OTHER") as (served, other):
        other.answers = [GOOD, Answer([b"no"], status=401)]
        await reply(served)
        assert {headers["authorization"] for _, headers, _ in other.asked} == {"Bearer sk-very-secret"}
        attempt = await reply(served)
        assert "SECRET_OF_OTHER" in attempt["detail"]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"sk-very-secret" not in kept and "sk-very-secret" not in caplog.text


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b'{"error": {"message": "bad key"}}', ["OTHER_API_KEY", "bad key"]),
        (404, b'{"error": {"message": "model not found"}}', ["'small'", "/v1"]),
        (429, b'{"error": "slow down"}', ["too many", "slow down"]),
        (400, b'{"detail": [{"msg": "messages too long"}]}', ["does not accept", "messages too long"]),
        (500, b"<html>Oops</html>", ["500"]),
        (502, b"Bad Gateway", ["Bad Gateway"]),
        (301, b"", ["moved"]),
    ],
)
async def test_each_refusal_says_what_to_do_and_is_no_reply(tmp_path, status, body, words):
    async with joined(tmp_path) as (served, other):
        other.answers = [Answer([body], status=status, headers={"Retry-After": "3600"})]
        attempt = await reply(served)
        assert (attempt["state"], attempt["text"]) == ("failed", "")
        assert all(word in attempt["detail"] for word in words)
        assert len(other.completions()) == 1


async def test_a_busy_server_is_asked_again_but_not_one_that_broke_off(tmp_path):
    async with joined(tmp_path) as (served, other):
        busy = Answer([b"{}"], status=429, headers={"Retry-After": "0"})
        other.answers = [busy, Answer([b"{}"], status=503), GOOD]
        assert (await reply(served))["text"] == "Hi you" and len(other.completions()) == 3
        other.answers = [Answer([sse(delta("Hi"))], cut=True)]
        attempt = await reply(served)
        assert (attempt["state"], attempt["reason"], attempt["text"]) == ("interrupted", "network", "Hi")
        assert len(other.completions()) == 4


async def test_a_field_that_a_strict_server_refuses_is_left_out(tmp_path):
    async with joined(tmp_path) as (served, other):
        other.answers = [Answer([b'{"error": {"message": "Unknown field: stream_options"}}'], status=400), GOOD]
        assert (await reply(served))["text"] == "Hi you"
        assert "stream_options" not in other.completions()[1]


async def test_nobody_there_is_said_and_nothing_else_breaks(tmp_path):
    async with joined(tmp_path, url="http://127.0.0.1:9/v1") as (served, _):
        attempt = await reply(served)
        assert attempt["state"] == "failed" and "not running at http://127.0.0.1:9/v1" in attempt["detail"]
        assert [row["id"] for row in (await served.client.get("/v1/models")).json()["data"]] == ["scripted"]


@pytest.mark.parametrize(
    ("scheme", "host", "words"),
    [("https", "127.0.0.1", "certificate"), ("http", "no-such-machine.invalid", "no machine")],
)
async def test_a_wrong_name_and_a_connection_without_a_certificate_are_told_apart(tmp_path, scheme, host, words):
    def speak_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with await asyncio.start_server(speak_plainly, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        async with joined(tmp_path, url=f"{scheme}://{host}:{port}/v1") as (served, _):
            attempt = await reply(served)
            assert attempt["state"] == "failed" and words in attempt["detail"] and "Check" in attempt["detail"]


async def test_what_clients_of_other_apis_ask_for_reaches_an_upstream_in_its_own_fields(tmp_path):
    tool = {"name": "look", "input_schema": {"type": "object"}}
    ask = {"model": "other/small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    async with joined(tmp_path) as (served, other):
        other.answers = [GOOD]
        choice = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
        body = ask | {"tools": [tool], "tool_choice": choice, "thinking": {"type": "disabled"}}
        assert (await served.client.post("/v1/messages", json=body)).status_code == 200
        sent = other.completions()[0]
        assert sent["tools"] == [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        assert sent["tool_choice"] == {"type": "function", "function": {"name": "look"}}
        assert sent["parallel_tool_calls"] is False and sent["chat_template_kwargs"] == {"enable_thinking": False}
        format = {"type": "json_schema", "name": "x", "schema": {"type": "array"}}
        body = {"model": "other/small", "input": "Hi", "text": {"format": format}, "reasoning": {"effort": "low"}}
        assert (await served.client.post("/v1/responses", json=body)).status_code == 200
        sent = other.completions()[1]
        assert sent["response_format"]["json_schema"]["schema"] == {"type": "array"}
        assert sent["reasoning_effort"] == "low"
        counting = await served.client.post("/v1/messages/count_tokens", json=ask)
        assert counting.status_code == 400


async def test_stop_reaches_a_silent_server_at_once(tmp_path):
    async with joined(tmp_path) as (served, other):
        other.answers = [Answer([sse(delta("Hi"))], hold=True)]
        conversation = served.gateway.create_conversation(model="other/small")["id"]
        attempt = served.gateway.send(conversation, "r", "Hello").attempt_id
        await asyncio.wait_for(other.arrived.wait(), 20)
        began = time.monotonic()
        served.gateway.stop(attempt)
        assert (await ended(served, attempt))["state"] == "cancelled"
        await asyncio.wait_for(other.left.wait(), 20)
        assert time.monotonic() - began < 2


async def test_silence_is_waited_for_unless_a_person_set_a_limit(tmp_path):
    async with joined(tmp_path, patience_s=0.3) as (served, other):
        other.answers = [Answer([sse(delta("Hi"))], hold=True)]
        attempt = await reply(served)
        assert (attempt["state"], attempt["reason"], attempt["text"]) == ("interrupted", "network", "Hi")
        assert "patience" in attempt["detail"]


async def test_a_reply_that_is_there_does_not_wait_for_a_connection_to_close(tmp_path, monkeypatch):
    monkeypatch.setattr(upstream_module, "LINGER_S", 0.2)
    async with joined(tmp_path) as (served, other):
        other.answers = [Answer([sse(delta("Hi", "length"))], hold=True)]
        attempt = await reply(served)
        assert (attempt["state"], attempt["reason"], attempt["text"]) == ("complete", "length", "Hi")


async def test_no_more_replies_run_at_a_time_than_its_limit_and_others_do_not_wait_for_it(tmp_path):
    async with joined(tmp_path, concurrency=2) as (served, other):
        other.answers = [Answer([sse(delta("Hi"))], hold=True)]
        ids = [served.gateway.create_conversation(model="other/small")["id"] for _ in range(3)]
        sent = [served.gateway.send(id, f"r-{id}", "Hello").attempt_id for id in ids]
        here = served.gateway.create_conversation()["id"]
        served.gateway.send(here, "r-here", "Hello")
        await served.source.next_call()
        assert served.gateway.attempt(sent[2]).progress.queue_position == 1
        assert len([ticket for ticket in served.gateway.queue.active if ticket.source == "other"]) == 2


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://localhost:11434", "http://localhost:11434/v1"),
        ("https://x.example/api/v1/", "https://x.example/api/v1"),
    ],
)
def test_a_base_url_is_made_whole(url, whole):
    assert checked(UpstreamSettings("x", url)).base_url == whole


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x", "http://", "http://u:secret@x/v1", "http://x:99999", ""])
def test_a_wrong_base_url_is_refused_without_repeating_a_password(url):
    with pytest.raises(ValueError) as refusal:
        checked(UpstreamSettings("x", url))
    assert "secret" not in str(refusal.value)
