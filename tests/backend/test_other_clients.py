"""The API as litellm and OpenAI's package for Node.js use it, each in a process of its own as its users have it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.events import Token
from tests.backend.served import serve

PACKAGE = "openai@7.59.0"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "塔"}'}}

LITELLM = """
import json, sys, litellm
litellm.suppress_debug_info = True
base = {"model": "openai/scripted", "api_base": sys.argv[1], "api_key": "none", "max_retries": 0,
        "messages": [{"role": "user", "content": "Hello"}]}
tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
whole = litellm.completion(**base)
pieces = list(litellm.completion(**base, stream=True, stream_options={"include_usage": True}))
called = litellm.completion(**base, tools=[tool]).choices[0]
try:
    litellm.completion(**base | {"model": "openai/gpt-4"})
except litellm.NotFoundError as error:
    refused = str(error)
print(json.dumps([
    whole.choices[0].message.content, whole.usage.total_tokens,
    "".join(p.choices[0].delta.content or "" for p in pieces if p.choices), pieces[-1].usage.total_tokens,
    called.finish_reason, called.message.tool_calls[0].function.arguments, refused,
]))
"""

NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const ask = { model: "scripted", messages: [{ role: "user", content: "Hello" }] };
const tool = { type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } };
const models = (await client.models.list()).data.map((model) => model.id);
const whole = await client.chat.completions.create(ask);
let text = "", usage;
for await (const chunk of await client.chat.completions.create(
    { ...ask, stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
const called = (await client.chat.completions.stream({ ...ask, tools: [tool] }).finalChatCompletion()).choices[0];
const response = await client.responses.create({ model: "scripted", input: "Hello" });
let refused;
try { await client.chat.completions.create({ ...ask, n: 2 }); } catch (error) { refused = [error.status, error.param]; }
console.log(JSON.stringify([
  models, whole.choices[0].message.content, whole.usage.total_tokens, text, usage.total_tokens,
  called.finish_reason, called.message.tool_calls[0].function.arguments, response.output_text, refused,
]));
"""


@pytest.fixture
async def served(tmp_path):
    async with serve(tmp_path / "data") as served:
        yield served


@pytest.fixture(scope="session")
def node_package(test_cache: Path) -> Path:
    """A folder where OpenAI's package for Node.js is installed, once."""
    folder = test_cache / PACKAGE
    if not (folder / "node_modules" / "openai" / "package.json").exists():
        npm = shutil.which("npm")
        assert npm, "npm is not there; .ci/node installs it"
        command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", PACKAGE]
        subprocess.run(command, check=True, timeout=120)
    return folder


async def what_it_says(served, *command: str, **environment: str):
    """The JSON that a client's program prints about a Pagoda at the base URL that it is given."""
    base = str(served.client.base_url).rstrip("/") + "/v1"
    process = await asyncio.create_subprocess_exec(
        *command, base, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | environment
    )

    async def replies() -> None:
        while True:
            call = await served.source.next_call(within=120)
            if call.request.tools:
                await call.say(Token(call.run_id, 1, "", calls=(CALL,)))
            else:
                await call.write("Hi you")
            await call.finish()

    playing = asyncio.create_task(replies())
    try:
        out, err = await asyncio.wait_for(process.communicate(), 120)
    finally:
        playing.cancel()
        await asyncio.wait({playing})
    assert process.returncode == 0, err.decode()
    return json.loads(out.splitlines()[-1])


async def test_litellm_gets_replies_streams_calls_and_refusals(served):
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    *said, refused = await what_it_says(served, sys.executable, "-c", LITELLM, **quiet)
    assert said == ["Hi you", 9, "Hi you", 9, "tool_calls", '{"at": "塔"}'] and "gpt-4" in refused


async def test_openais_package_for_node_gets_replies_streams_calls_and_refusals(served, node_package):
    program = node_package / "ask.mjs"
    program.write_text(NODE)
    said = await what_it_says(served, shutil.which("node") or "node", str(program))
    assert said == [["scripted"], "Hi you", 9, "Hi you", 9, "tool_calls", '{"at": "塔"}', "Hi you", [400, "n"]]
