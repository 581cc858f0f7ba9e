"""The OpenAI-compatible API as its clients see it."""

import asyncio

import pytest

from tests.backend.served import read_events, serve

PATH = "/v1/chat/completions"
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.fixture
async def served(tmp_path):
    async with serve(tmp_path / "data") as served:
        yield served


def asking(text: str = "Hello", **fields) -> dict:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}


async def test_the_models_are_listed(served):
    body = (await served.client.get("/v1/models")).json()
    assert body["object"] == "list" and [model["id"] for model in body["data"]] == ["scripted"]
    assert (await served.client.get("/v1/models/scripted")).json()["object"] == "model"


async def test_a_whole_reply_has_the_known_shape(served):
    fields = {"temperature": 0, "top_p": 0.9, "seed": 4, "max_tokens": 9, "stop": "###", "n": 1, "tools": []}
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = asyncio.create_task(served.client.post(PATH, json={"model": "scripted", "messages": messages, **fields}))
    call = await served.source.next_call()
    assert call.request.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hel\nlo"},
    )
    sampling = call.request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0, 0.9, 4)
    assert (sampling.max_tokens, sampling.stop) == (9, ("###",))
    await call.write("Hi you")
    await call.finish("length", text="!")
    body = (await answer).json()
    assert body["object"] == "chat.completion" and body["model"] == "scripted"
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "Hi you!" and choice["finish_reason"] == "length"
    counts = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    assert body["usage"] == counts | {"prompt_tokens_details": {"cached_tokens": 4}}
    assert served.gateway.conversations() == []


async def test_a_stream_carries_deltas_progress_usage_and_done_but_no_ids(served):
    options = {"stream": True, "stream_options": {"include_usage": True}, "pagoda": {"progress": True}}
    seen = []
    async with served.client.stream("POST", PATH, json=asking(**options)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        call = await served.source.next_call()
        await call.prefill(3, 7)
        await call.write("Hi you")
        await call.finish()
        async for name, data, id in read_events(response):
            assert (name, id) == ("message", None)
            seen.append(data)
    assert seen.pop() == "[DONE]"
    usage = seen.pop()
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 2
    assert all(chunk["usage"] is None and chunk["object"] == "chat.completion.chunk" for chunk in seen)
    assert seen[0]["choices"][0]["delta"]["role"] == "assistant"
    progress = [chunk["pagoda"]["progress"] for chunk in seen if not chunk["choices"]]
    assert progress[0]["tokens_done"] == 3
    deltas = [chunk["choices"][0] for chunk in seen if chunk["choices"]]
    assert "".join(choice["delta"].get("content", "") for choice in deltas) == "Hi you"
    assert [choice["finish_reason"] for choice in deltas] == [None, None, None, "stop"]


async def test_without_asking_there_is_neither_progress_nor_usage(served):
    async with served.client.stream("POST", PATH, json=asking(stream=True)) as response:
        call = await served.source.next_call()
        await call.prefill(3, 7)
        await call.finish(text="Hi")
        seen = [data async for _, data, _ in read_events(response)]
    assert all("usage" not in chunk and chunk["choices"] for chunk in seen[:-1])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [LOOK | {"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [LOOK, LOOK]}, "tools"),
        ({"tools": [LOOK], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": list("abcde")}, "stop"),
        ({"logit_bias": {"the": 1}}, "logit_bias.the"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "x"}}}, "response_format.json_schema"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_completion_tokens": True}, "max_completion_tokens"),
        ({"repetition_penalty": 20}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"stop": [""]}, "stop.0"),
        ({"stream_options": {"x": 1}}, "stream_options.x"),
        ({"pagoda": {"fast": True}}, "pagoda.fast"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALLED]}]}, "messages.0.tool_calls"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [CALLED]}]}, "messages"),
        ({"messages": None}, "messages"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(served, change, param):
    answer = await served.client.post(PATH, json=asking() | change)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error" and error["param"] == param and error["message"]
    assert served.source.calls == []


async def test_an_unknown_model_is_a_404_that_names_what_there_is(served):
    answer = await served.client.post(PATH, json=asking(model="gpt-4"))
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert answer.json()["error"]["param"] == "model" and "scripted" in answer.json()["error"]["message"]


async def test_a_failure_is_an_error_in_both_ways(served):
    answer = asyncio.create_task(served.client.post(PATH, json=asking()))
    await (await served.source.next_call()).fail("The prompt is too long. Shorten it.")
    assert (await answer).status_code == 400
    assert (await answer).json()["error"]["message"] == "The prompt is too long. Shorten it."
    async with served.client.stream("POST", PATH, json=asking(stream=True)) as response:
        await (await served.source.next_call()).crash()
        seen = [data async for _, data, _ in read_events(response)]
    assert seen[-1]["error"]["message"] == "The engine was killed."


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_stops_its_reply_even_while_nothing_comes(served, stream, caplog):
    caplog.set_level("INFO", "pagoda.replies")
    asked = asyncio.create_task(_read(served, asking(stream=stream)))
    call = await served.source.next_call()
    asked.cancel()
    await asyncio.wait({asked})
    await asyncio.wait_for(call.over.wait(), 10)
    assert call.abort.aborted
    while not caplog.messages:
        await asyncio.sleep(0.01)
    assert f"{call.run_id} scripted: cancelled (client_left)" in caplog.text and "person" not in caplog.text
    following = asyncio.create_task(served.client.post(PATH, json=asking()))
    await (await served.source.next_call()).finish()
    assert (await following).status_code == 200


async def test_requests_wait_in_the_same_queue_as_the_page_and_are_told_their_place(served):
    conversation = await served.conversation()
    await served.send(conversation, "Hello")
    call = await served.source.next_call()
    options = {"stream": True, "pagoda": {"progress": True}}
    async with served.client.stream("POST", PATH, json=asking(**options)) as response:
        events = read_events(response)
        await anext(events)
        _, data, _ = await anext(events)
        assert data["pagoda"]["progress"]["queue_position"] == 1
        await call.finish()
        await (await served.source.next_call()).finish(text="Hi")
        assert [data async for _, data, _ in events][-1] == "[DONE]"


async def _read(served, body: dict) -> None:
    async with served.client.stream("POST", PATH, json=body) as response:
        async for _ in response.aiter_bytes():
            pass
