"""The API as the official client of OpenAI uses it, and as a person with curl does."""

import asyncio
import json

import openai
import pytest

from backend import answer as answer_module
from backend import event_stream
from backend.sources import ModelStatus
from engine.events import RunFailed, Token
from tests.backend.other_server import Answer, delta, sse
from tests.backend.served import serve
from tests.backend.test_upstream import joined

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
async def served(tmp_path):
    async with serve(tmp_path / "data") as served:
        yield served


def client_of(served, **options) -> openai.AsyncOpenAI:
    base = f"{served.client.base_url}/v1".replace("//v1", "/v1")
    return openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=options.pop("max_retries", 0), **options)


async def play(served, text: str = "Hi you", reason: str = "stop") -> None:
    """The next run says this."""
    call = await served.source.next_call()
    await call.write(text)
    await call.finish(reason)


async def test_the_synchronous_client_gets_a_whole_reply_and_a_stream(served):
    def ask() -> tuple:
        with openai.OpenAI(base_url=str(client_of(served).base_url), api_key="none", max_retries=0) as client:
            names = [model.id for model in client.models.list()]
            whole = client.chat.completions.create(**ASK)
            pieces = [chunk for chunk in client.chat.completions.create(**ASK, stream=True)]
            return names, whole, pieces

    asked = asyncio.create_task(asyncio.to_thread(ask))
    await play(served)
    await play(served, reason="length")
    names, whole, pieces = await asked
    assert names == ["scripted"]
    assert whole.choices[0].message.content == "Hi you" and whole.choices[0].finish_reason == "stop"
    assert whole.usage.total_tokens == 9 and whole.usage.prompt_tokens_details.cached_tokens == 4
    assert whole.model_extra["pagoda"]["timings"]["expert_reads"] == 10
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "Hi you"
    assert pieces[-1].choices[0].finish_reason == "length"


async def test_the_asynchronous_client_reads_through_heartbeats(served, monkeypatch):
    monkeypatch.setattr(event_stream.respond, "__defaults__", (0.01, None))
    call_of = asyncio.create_task(served.source.next_call())
    asking = asyncio.create_task(
        client_of(served).chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    )
    call = await call_of
    await call.write("Hi")
    stream = await asking
    assert (await anext(stream)).choices[0].delta.role == "assistant"
    assert (await anext(stream)).choices[0].delta.content == "Hi"
    following = asyncio.create_task(anext(stream))
    await asyncio.wait({following}, timeout=0.1)  # some heartbeats go by
    await call.token(" you")
    await call.finish()
    assert (await following).choices[0].delta.content
    assert [chunk async for chunk in stream][-1].usage.completion_tokens == 2


async def test_the_streaming_helper_puts_the_reply_together(served):
    playing = asyncio.create_task(play(served))
    async with client_of(served).chat.completions.stream(**ASK) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    await playing
    assert "content.delta" in kinds and kinds[-1] == "content.done"
    assert final.choices[0].message.content == "Hi you"


async def test_log_probabilities_arrive_token_by_token(served):
    async def play_tokens() -> None:
        call = await served.source.next_call()
        assert call.request.sampling.logprobs == 2 and call.request.sampling.logit_bias == ((5, -100.0),)
        for id, text in ((1, "é"), (2, "")):
            await call.say(Token(call.run_id, id, text, ((id, text, -0.5), (9, "x", -0.1), (id, text, -0.5))))
        await call.finish()

    for stream in (False, True):
        playing = asyncio.create_task(play_tokens())
        said = await client_of(served).chat.completions.create(
            **ASK, logprobs=True, top_logprobs=2, logit_bias={"5": -100}, stream=stream
        )
        if stream:
            entries = [e async for c in said if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
        else:
            entries = said.choices[0].logprobs.content
        await playing
        assert [entry.token for entry in entries] == ["é", ""] and entries[0].bytes == [0xC3, 0xA9]
        assert [(top.token, top.logprob) for top in entries[0].top_logprobs] == [("x", -0.1), ("é", -0.5)]


async def test_log_probabilities_of_a_text_completion_are_lists_beside_each_other(served):
    async def play_tokens() -> None:
        call = await served.source.next_call()
        assert call.request.sampling.logprobs == 1 and call.request.sampling.logit_bias == ((5, -1.0),)
        for id, text in ((1, "Hi"), (2, " you")):
            await call.say(Token(call.run_id, id, text, ((id, text, -0.5), (9, "x", -0.1))))
        await call.finish()

    for stream in (False, True):
        playing = asyncio.create_task(play_tokens())
        said = await client_of(served).completions.create(
            model="scripted", prompt="Once", logprobs=1, logit_bias={"5": -1}, stream=stream
        )
        told = [chunk.choices[0].logprobs async for chunk in said] if stream else [said.choices[0].logprobs]
        await playing
        told = [one for one in told if one]
        assert [token for one in told for token in one.tokens] == ["Hi", " you"]
        assert [offset for one in told for offset in one.text_offset] == [0, 2]
        assert told[0].token_logprobs[0] == -0.5 and told[0].top_logprobs[0] == {"x": -0.1}


async def test_text_completions_have_the_older_shape(served):
    client = client_of(served)
    asked = asyncio.create_task(client.completions.create(model="scripted", prompt="Once", stop=["."]))
    call = await served.source.next_call()
    assert (call.request.raw, call.request.sampling.max_tokens, call.request.sampling.stop) == ("Once", 16, (".",))
    await call.write(" upon")
    await call.finish()
    said = await asked
    assert (said.object, said.choices[0].text, said.choices[0].finish_reason) == ("text_completion", " upon", "stop")
    playing = asyncio.create_task(play(served, " upon a"))
    stream = await client.completions.create(model="scripted", prompt="Once", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == " upon a"
    await playing
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.completions.create(model="scripted", prompt="Once", suffix="end")
    assert refusal.value.param == "suffix"


async def test_each_error_is_the_class_that_the_client_expects(served, tmp_path):
    client = client_of(served)
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(**ASK | {"model": "gpt-4"})
    for stream in (False, True):
        asked = asyncio.create_task(client.chat.completions.create(**ASK, stream=stream))
        call = await served.source.next_call()
        await call.say(RunFailed(call.run_id, "PromptTooLong", "This conversation has 9 tokens."))
        with pytest.raises(openai.BadRequestError) as refusal:
            await asked
        assert refusal.value.code == "context_length_exceeded"
    asked = asyncio.create_task(client.chat.completions.create(**ASK, reasoning_effort="low"))
    call = await served.source.next_call()
    assert call.request.template == {"reasoning_effort": "low"}
    await call.say(RunFailed(call.run_id, "Unsupported", "No such thing here.", "reasoning_effort"))
    with pytest.raises(openai.BadRequestError) as refusal:
        await asked
    assert refusal.value.param == "reasoning_effort"
    async with serve(tmp_path / "locked", token="right") as locked:
        with pytest.raises(openai.AuthenticationError):
            await client_of(locked).models.list()


async def test_a_model_that_loads_is_a_503_that_the_client_tries_again(served, monkeypatch):
    monkeypatch.setattr(answer_module, "LOADING_RETRY_S", 0)
    served.source.become(ModelStatus("scripted", "loading"))
    answer = await served.client.post("/v1/chat/completions", json=ASK)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "0")
    asked = asyncio.create_task(client_of(served, max_retries=5).chat.completions.create(**ASK))
    await asyncio.wait({asked}, timeout=0.2)
    served.source.become(ModelStatus("scripted", "ready"))
    await play(served)
    assert (await asked).choices[0].message.content == "Hi you"
    served.source.become(ModelStatus("scripted", "failed", "The file is damaged."))
    answer = await served.client.post("/v1/chat/completions", json=ASK)
    assert answer.status_code == 503 and "damaged" in answer.json()["error"]["message"]


async def test_a_full_queue_is_a_429_with_a_time_to_come_back(served, monkeypatch):
    monkeypatch.setattr(answer_module, "WAITING_LIMIT", 1)
    asked = [asyncio.create_task(client_of(served).chat.completions.create(**ASK))]
    call = await served.source.next_call()
    asked.append(asyncio.create_task(client_of(served).chat.completions.create(**ASK)))
    while not served.gateway.queue.waiting("scripted", "api"):
        await asyncio.sleep(0.01)
    with pytest.raises(openai.RateLimitError) as refusal:
        await client_of(served).chat.completions.create(**ASK)
    assert refusal.value.response.headers["retry-after"]
    await call.finish()
    await play(served)
    await asyncio.gather(*asked)


async def test_the_same_idempotency_key_is_one_run_also_for_one_who_had_left(served):
    client = client_of(served)
    headers = {"Idempotency-Key": "k1"}
    first = asyncio.create_task(client.chat.completions.create(**ASK, extra_headers=headers))
    call = await served.source.next_call()
    await call.write("Hi")
    first.cancel()
    await asyncio.wait({first})
    second = asyncio.create_task(client.chat.completions.create(**ASK, extra_headers=headers))
    await call.token(" you")
    await call.finish()
    third = await client.chat.completions.create(**ASK, extra_headers=headers)
    assert (await second).id == third.id and third.choices[0].message.content == "Hi you"
    assert len(served.source.calls) == 1
    with pytest.raises(openai.ConflictError):
        await client.chat.completions.create(**ASK, seed=1, extra_headers=headers)


async def test_curl_gets_a_stream(served):
    url = str(served.client.base_url) + "/v1/chat/completions"
    playing = asyncio.create_task(play(served))
    curl = await asyncio.create_subprocess_exec(
        *("curl", "-sN", url, "-H", "Content-Type: application/json", "-d", json.dumps(ASK | {"stream": True})),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(curl.communicate(), 30)
    await playing
    assert b'"content":"Hi"' in out and out.endswith(b"data: [DONE]\n\n")


async def test_a_request_for_an_upstream_goes_on_as_it_came_tools_and_thoughts_included(tmp_path):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    async with joined(tmp_path) as (served, other):
        call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a"'}}
        more = {"index": 0, "function": {"arguments": ": 1}"}}
        other.answers = [
            Answer([sse(delta(reasoning_content="Hm."), delta(tool_calls=[call]), delta(tool_calls=[more]))
                    + sse(delta(None, "tool_calls"), "[DONE]")])
        ]  # fmt: skip
        ask = {**ASK, "model": "other/small", "tools": [tool], "response_format": {"type": "json_object"}}
        client = client_of(served)
        said = (await client.chat.completions.create(**ask)).choices[0]
        assert said.finish_reason == "tool_calls" and said.message.model_extra["reasoning_content"] == "Hm."
        assert said.message.tool_calls[0].function.arguments == '{"a": 1}'
        sent = other.completions()[0]
        assert sent["tools"] == [tool] and sent["response_format"] and sent["model"] == "small" and sent["stream"]
        stream = await client.chat.completions.create(**ask, stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream]
        assert [d.model_extra["reasoning_content"] for d in deltas if "reasoning_content" in d.model_extra] == ["Hm."]
        assert all("<think>" not in (d.content or "") for d in deltas)
        assert sum(len(d.tool_calls or ()) for d in deltas) == 2
        other.answers = [Answer([b'{"error": {"message": "no such model"}}'], status=404)]
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(**ask)
