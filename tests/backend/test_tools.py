"""Tools, JSON and thoughts of a model that runs here, as the official clients ask for them and get them."""

import asyncio
import json

import anthropic
import openai
import pytest
from pydantic import BaseModel

from engine.events import Finished, Token
from tests.backend.served import serve
from tests.backend.test_agent_apis import ASK as ASK_CLAUDE
from tests.backend.test_agent_apis import claude
from tests.backend.test_openai_sdk import ASK, client_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALLS = tuple(
    {"id": f"c{n}", "type": "function", "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
    for n, city in enumerate(("Paris", "Xi'an"))
)


@pytest.fixture
async def served(tmp_path):
    async with serve(tmp_path / "data") as served:
        yield served


async def play_calls(served):
    """A run that thinks, says something, and calls twice: once while it writes, once at its end."""
    call = await served.source.next_call()
    await call.say(Token(call.run_id, 1, "", thought="Hm."))
    await call.say(Token(call.run_id, 2, "Let me look."))
    await call.say(Token(call.run_id, 3, "", calls=CALLS[:1]))
    await call.say(Finished(call.run_id, "stop", "", 7, 3, *([0.1] * 6), 0, 0, 0, calls=CALLS[1:], reasoning_tokens=1))
    return call.request


async def answered(served, asking):
    """(the run's request, what the client got)."""
    asked = asyncio.create_task(asking)
    request = await play_calls(served)
    return request, await asked


async def test_openais_client_gets_calls_and_gives_their_results_back(served):
    client = client_of(served).chat.completions
    ask = {**ASK, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    request, said = await answered(served, client.create(**ask, parallel_tool_calls=False))
    assert request.tools == tuple(TOOLS) and request.tool_choice == "weather" and not request.parallel_calls
    (choice,) = said.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
    assert [call.function.arguments for call in choice.message.tool_calls] == [
        '{"city": "Paris"}',
        '{"city": "Xi\'an"}',
    ]
    assert choice.message.model_extra["reasoning_content"] == "Hm."
    assert said.usage.completion_tokens_details.reasoning_tokens == 1
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Rain."} for call in choice.message.tool_calls]
    messages = [*ASK["messages"], choice.message.to_dict(), *results]
    request, _ = await answered(served, client.create(**ask | {"messages": messages, "tool_choice": "none"}))
    assert request.tools == () and [m["role"] for m in request.messages] == ["user", "assistant", "tool", "tool"]
    assert request.messages[1]["tool_calls"] == list(CALLS) and request.messages[1]["reasoning_content"] == "Hm."
    assert request.messages[2] == {"role": "tool", "content": "Rain.", "tool_call_id": "c0"}


async def test_openais_streaming_helper_puts_calls_together(served):
    playing = asyncio.create_task(play_calls(served))
    async with client_of(served).chat.completions.stream(**ASK, tools=TOOLS) as stream:
        final = await stream.get_final_completion()
    await playing
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments)["city"] for call in choice.message.tool_calls] == ["Paris", "Xi'an"]


class City(BaseModel):
    name: str
    people: int


async def test_openais_parsing_helpers_get_their_schema_followed(served):
    client = client_of(served)
    for asking in (
        client.chat.completions.parse(**ASK, response_format=City),
        client.responses.parse(model="scripted", input="Hello", text_format=City),
    ):
        asked = asyncio.create_task(asking)
        call = await served.source.next_call()
        assert call.request.schema["required"] == ["name", "people"] and call.request.apart
        await call.finish(text='{"name": "Xi\'an", "people": 13000000}')
        said = await asked
        parsed = said.output_parsed if hasattr(said, "output_parsed") else said.choices[0].message.parsed
        assert parsed == City(name="Xi'an", people=13_000_000)
    asked = asyncio.create_task(client.chat.completions.create(**ASK, response_format={"type": "json_object"}))
    call = await served.source.next_call()
    assert call.request.schema == {"type": "object"}
    await call.finish(text="{}")
    assert (await asked).choices[0].message.content == "{}"


async def test_anthropics_client_gets_calls_and_gives_their_results_back(served):
    messages = claude(served).messages
    tool = {"name": "weather", "description": FUNCTION["description"], "input_schema": SCHEMA}
    ask = {**ASK_CLAUDE, "tools": [tool]}
    request, said = await answered(served, messages.create(**ask, tool_choice={"type": "any"}))
    assert request.tools == tuple(TOOLS) and request.tool_choice == "required"
    assert said.stop_reason == "tool_use"
    assert [block.type for block in said.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert said.content[2].input == {"city": "Paris"} and said.content[3].id == "c1"
    playing = asyncio.create_task(play_calls(served))
    async with messages.stream(**ask, thinking={"type": "disabled"}) as stream:
        streamed = await stream.get_final_message()
    await playing
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in said.content]
    results = [{"type": "tool_result", "tool_use_id": "c0", "content": [{"type": "text", "text": "Rain."}]}]
    results += [{"type": "tool_result", "tool_use_id": "c1", "content": "No.", "is_error": True}]
    talk = [*ask["messages"], {"role": "assistant", "content": [block.to_dict() for block in said.content]}]
    talk += [{"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]}]
    request, _ = await answered(served, messages.create(**ask | {"messages": talk}))
    assert [(m["role"], m["content"]) for m in request.messages] == [
        ("user", "Hello"),
        ("assistant", "Let me look."),
        ("tool", "Rain."),
        ("tool", "Error: No."),
        ("user", "Go on."),
    ]
    assert request.messages[1]["tool_calls"] == list(CALLS)


async def test_a_stop_sequence_is_named_and_tokens_are_counted_without_a_reply(served):
    messages = claude(served).messages
    asked = asyncio.create_task(messages.create(**ASK_CLAUDE, stop_sequences=["###"]))
    call = await served.source.next_call()
    await call.say(Finished(call.run_id, "stop", "Hi", 7, 3, *([0.1] * 6), 0, 0, 0, stop="###"))
    said = await asked
    assert (said.stop_reason, said.stop_sequence) == ("stop_sequence", "###")
    counting = asyncio.create_task(messages.count_tokens(model="scripted", messages=ASK_CLAUDE["messages"]))
    call = await served.source.next_call()
    assert call.request.count_only
    await call.finish()
    assert (await counting).input_tokens == 7


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tools": [{"name": "x", "input_schema": {}}] * 2}, "same name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content"),
        ({"messages": []}, "messages"),
    ],
)
async def test_what_anthropics_client_cannot_have_is_refused_by_name(served, change, words):
    with pytest.raises(anthropic.BadRequestError, match=words):
        await claude(served).messages.create(**ASK_CLAUDE | change)
    assert served.source.calls == []


async def test_a_response_has_calls_and_takes_their_results(served):
    responses = client_of(served).responses
    ask = {"model": "scripted", "tools": [{"type": "function", **FUNCTION}], "include": ["reasoning.encrypted_content"]}
    choice = {"type": "function", "name": "weather"}
    request, said = await answered(served, responses.create(**ask, input="Hello", tool_choice=choice))
    assert request.tools == tuple(TOOLS) and request.tool_choice == "weather"
    assert said.usage.output_tokens_details.reasoning_tokens == 1
    assert [item.type for item in said.output] == ["reasoning", "message", "function_call", "function_call"]
    playing = asyncio.create_task(play_calls(served))
    async with responses.stream(**ask, input="Hello") as stream:
        kinds = [event.type async for event in stream]
        streamed = await stream.get_final_response()
    await playing
    assert [item.type for item in streamed.output] == [item.type for item in said.output]
    assert kinds.count("response.function_call_arguments.done") == 2 and "response.reasoning_text.delta" in kinds
    back = [{"role": "user", "content": "Hello"}, *[item.to_dict() for item in said.output]]
    back += [{"type": "function_call_output", "call_id": f"c{n}", "output": "Rain."} for n in range(2)]
    request, _ = await answered(served, responses.create(**ask, input=back))
    assert [m["role"] for m in request.messages] == ["user", "assistant", "tool", "tool"]
    assert request.messages[1]["tool_calls"] == list(CALLS) and request.messages[1]["content"] == "Let me look."
    with pytest.raises(openai.BadRequestError, match=r"tools\.0\.type"):
        await responses.create(model="scripted", input="x", tools=[{"type": "web_search"}])


async def test_where_one_model_is_served_it_need_not_be_named(served):
    for path, body in (
        ("/v1/chat/completions", {"messages": ASK["messages"]}),
        ("/v1/completions", {"prompt": "Once"}),
        ("/v1/messages", {"messages": ASK["messages"], "max_tokens": 5}),
        ("/v1/responses", {"input": "Hello"}),
    ):
        asked = asyncio.create_task(served.client.post(path, json=body))
        await (await served.source.next_call()).finish(text="Hi")
        answer = await asked
        assert answer.status_code == 200 and answer.json()["model"] == "scripted"
