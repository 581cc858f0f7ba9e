"""The API on the real engine: a child process with a small random model that knows tools."""

import asyncio
import json

import anthropic
import openai
import pytest

from backend.app import Pagoda
from backend.engine_source import EngineSource
from engine.client import EngineClient
from tests.backend.served import listening
from tests.engine.tool_models import MARKS, thinking_model

ASK = {"model": "mine", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3000, "temperature": 0}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Xi'an"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}]


@pytest.fixture
async def clients(tmp_path):
    """OpenAI's and Anthropic's clients of a Pagoda whose model is loaded."""
    # Without marks for thoughts: a random model that begins one may never end it.
    model = str(thinking_model(tmp_path / "mine", marks=MARKS[2:]))
    engine = EngineClient(model, tmp_path / "data")
    pagoda = Pagoda(tmp_path / "data", [EngineSource(model, engine)], engine)
    ready = asyncio.Event()
    engine.watch(lambda status: ready.set() if status.state != "loading" else None)
    async with listening(pagoda) as client:
        await asyncio.wait_for(ready.wait(), 60)
        base = str(client.base_url).rstrip("/")
        ASK["model"] = model
        yield (
            openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0),
            anthropic.AsyncAnthropic(base_url=base, api_key="none", max_retries=0),
        )


async def test_calls_formats_counts_and_refusals_come_from_the_model_itself(clients):
    client, claude = clients
    create = client.chat.completions.create
    said = (await create(**ASK, tools=TOOLS, tool_choice="required")).choices[0]
    (call,) = said.message.tool_calls
    assert said.finish_reason == "tool_calls" and call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Xi'an")
    results = [said.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    messages = [*ASK["messages"], *results]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [[1, "塔"]]}}}
    async with client.chat.completions.stream(
        **ASK | {"messages": messages}, tools=TOOLS, tool_choice="none", response_format=schema
    ) as stream:
        final = await stream.get_final_completion()
    assert json.loads(final.choices[0].message.content) == [1, "塔"] and final.choices[0].finish_reason == "stop"

    for wishes, param in (
        ({"nonsense": 1}, "nonsense"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
         "response_format"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as refusal:
            await create(**ASK, extra_body=wishes)
        assert refusal.value.param == param

    tool = {"name": "weather", "input_schema": PARAMETERS}
    ask = {key: value for key, value in ASK.items() if key != "temperature"} | {"tools": [tool]}
    async with claude.messages.stream(**ask, tool_choice={"type": "tool", "name": "weather"}) as stream:
        message = await stream.get_final_message()
    assert message.stop_reason == "tool_use" and message.content[-1].input["city"] in ("Paris", "Xi'an")
    counted = await claude.messages.count_tokens(model=ASK["model"], messages=ASK["messages"], tools=[tool])
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens
