"""Anthropic's messages and OpenAI's responses, as their own clients use them."""

import asyncio

import anthropic
import openai
import pytest

from engine.events import RunFailed
from tests.backend.other_server import Answer, delta, sse
from tests.backend.served import serve
from tests.backend.test_openai_sdk import client_of, play
from tests.backend.test_upstream import joined

ASK = {"model": "scripted", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
async def served(tmp_path):
    async with serve(tmp_path / "data") as served:
        yield served


def claude(served, **options) -> anthropic.AsyncAnthropic:
    base = str(served.client.base_url).rstrip("/")
    return anthropic.AsyncAnthropic(base_url=base, api_key=options.pop("api_key", "none"), max_retries=0)


async def test_a_message_comes_whole(served):
    blocks = [{"type": "text", "text": "Hel", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "lo"}]
    asked = asyncio.create_task(
        claude(served).messages.create(
            **ASK | {"messages": [{"role": "user", "content": blocks}, {"role": "assistant", "content": "Hi"}]},
            system="Be brief.",
            stop_sequences=["###"],
            extra_body={"temperature": 0.5},
        )
    )
    call = await served.source.next_call()
    assert call.request.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hel\nlo"},
    )
    assert call.request.prefix_text == "Hi"
    sampling = call.request.sampling
    assert (sampling.max_tokens, sampling.stop, sampling.temperature) == (50, ("###",), 0.5)
    await call.write("Hi you")
    await call.finish("length")
    message = await asked
    assert message.content[0].text == "Hi you" and message.stop_reason == "max_tokens"
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 4, 2)


async def test_a_message_streams_into_the_clients_helper(served):
    playing = asyncio.create_task(play(served))
    async with claude(served).messages.stream(**ASK) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    await playing
    assert text == final.content[0].text == "Hi you" and final.stop_reason == "end_turn"
    assert (final.usage.input_tokens, final.usage.cache_read_input_tokens, final.usage.output_tokens) == (3, 4, 2)


async def test_thoughts_are_a_block_of_their_own(tmp_path):
    async with joined(tmp_path) as (served, other):
        other.answers = [Answer([sse(delta(reasoning_content="Hm."), delta("Hi", "stop"), "[DONE]")])]
        whole = await claude(served).messages.create(**ASK | {"model": "other/small"})
        async with claude(served).messages.stream(**ASK | {"model": "other/small"}) as stream:
            final = await stream.get_final_message()
        for message in (whole, final):
            assert [block.type for block in message.content] == ["thinking", "text"]
            assert message.content[0].thinking == "Hm." and message.content[1].text == "Hi"


async def test_errors_are_the_classes_that_anthropics_client_expects(served, tmp_path):
    with pytest.raises(anthropic.NotFoundError):
        await claude(served).messages.create(**ASK | {"model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        await claude(served).messages.create(**ASK, tools=[{"name": "bash", "type": "bash_20250124"}])
    asked = asyncio.create_task(claude(served).messages.create(**ASK, stream=True))
    call = await served.source.next_call()
    await call.say(RunFailed(call.run_id, "PromptTooLong", "Too many tokens."))
    with pytest.raises(anthropic.BadRequestError, match="Too many"):
        await asked
    stream = asyncio.create_task(claude(served).messages.create(**ASK, stream=True))
    call = await served.source.next_call()
    await call.write("Hi")
    await call.crash()
    with pytest.raises(anthropic.APIStatusError, match="killed"):
        _ = [event async for event in await stream]
    async with serve(tmp_path / "locked", token="right") as locked:
        with pytest.raises(anthropic.AuthenticationError):
            await claude(locked).messages.create(**ASK)
        playing = asyncio.create_task(play(locked))
        assert (await claude(locked, api_key="right").messages.create(**ASK)).content[0].text == "Hi you"
        await playing


async def test_a_response_comes_whole_and_can_be_given_back(served):
    client = client_of(served)
    asked = asyncio.create_task(client.responses.create(model="scripted", input="Hello", instructions="Be brief."))
    call = await served.source.next_call()
    assert [message["role"] for message in call.request.messages] == ["system", "user"]
    await call.write("Hi you")
    await call.finish()
    first = await asked
    assert (first.output_text, first.status, first.usage.total_tokens) == ("Hi you", "completed", 9)
    said = [{"role": "user", "content": "Hello"}, *[item.to_dict() for item in first.output]]
    asked = asyncio.create_task(
        client.responses.create(
            model="scripted", input=[*said, {"role": "user", "content": "More"}], max_output_tokens=9
        )
    )
    call = await served.source.next_call()
    assert [message["content"] for message in call.request.messages] == ["Hello", "Hi you", "More"]
    await call.finish("length", text="x")
    second = await asked
    assert (second.status, second.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        await client.responses.create(model="scripted", input="x", previous_response_id=first.id)


async def test_a_response_streams_into_the_clients_helper(served):
    playing = asyncio.create_task(play(served))
    async with client_of(served).responses.stream(model="scripted", input="Hello") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    await playing
    assert final.output_text == "Hi you" and kinds.count("response.output_text.delta") == 2
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": "5"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": True}),
        ("/v1/responses", {"input": "x", "temperature": "0.5"}),
        ("/v1/responses", {"input": "x", "temperature": 3}),
    ],
)
async def test_a_number_in_words_or_out_of_its_bounds_is_refused(served, path, body):
    answer = await served.client.post(path, json={"model": "scripted", **body})
    assert answer.status_code == 400
    assert any(name in answer.json()["error"]["message"] for name in ("max_tokens", "temperature"))
