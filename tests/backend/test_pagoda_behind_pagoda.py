"""A Pagoda whose upstream is another one with the real engine: a reply goes on there from its text."""

import asyncio
from contextlib import asynccontextmanager

import openai
import pytest

from backend.app import Pagoda
from backend.engine_source import EngineSource
from backend.upstream import Upstream
from backend.upstream_settings import UpstreamSettings
from engine.client import EngineClient
from tests.backend.served import listening, serve
from tests.backend.test_upstream import ended

QUESTION = {"role": "user", "content": "Tell me everything about pagodas."}
GO_ON = {"continue_final_message": True, "add_generation_prompt": False}


@asynccontextmanager
async def behind(folder, model: str):
    """The base URL of a Pagoda that has loaded this model."""
    engine = EngineClient(model, folder)
    pagoda = Pagoda(folder, [EngineSource(model, engine)], engine)
    ready = asyncio.Event()
    engine.watch(lambda status: ready.set() if status.state != "loading" else None)
    async with listening(pagoda) as client:
        await asyncio.wait_for(ready.wait(), 120)
        yield f"{str(client.base_url).rstrip('/')}/v1"


async def test_continue_goes_on_in_the_middle_of_a_sentence_and_says_it_went_from_text(tmp_path, default_model_dir):
    model = str(default_model_dir)
    async with behind(tmp_path / "far", model) as url:
        far = Upstream(UpstreamSettings("far", url))
        known = asyncio.Event()
        far.watch(known.set)
        async with serve(tmp_path / "near", [far]) as near:
            await asyncio.wait_for(known.wait(), 20)
            conversation = near.gateway.create_conversation(
                model=f"far/{model}", sampling={"temperature": 0, "max_tokens": 12}
            )["id"]
            half = await ended(near, near.gateway.send(conversation, "r1", QUESTION["content"]).attempt_id)
            assert (half["state"], half["reason"]) == ("complete", "length")
            message = near.gateway.attempt(half["id"]).message_id
            whole = await ended(near, near.gateway.continue_(message))
        assert whole["timings"]["continued_from"] == "text" and "continued_from" not in half["timings"]

        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)

        async def said(messages, tokens, **more) -> str:
            answer = await client.chat.completions.create(
                model=model, messages=messages, temperature=0, max_tokens=tokens, extra_body=more
            )
            return answer.choices[0].message.content

        # Greedy: what was continued is what one reply without a break says, whoever asks and however it is asked for.
        assert whole["text"] == await said([QUESTION], 24)
        begun = [QUESTION, {"role": "assistant", "content": half["text"]}]
        for more in (GO_ON, {}, {"add_generation_prompt": False}, {"continue_final_message": True}):
            assert half["text"] + await said(begun, 12, **more) == whole["text"]
        begun[-1]["prefix"] = True  # as DeepSeek's and Mistral's clients ask
        assert half["text"] + await said(begun, 12) == whole["text"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": [QUESTION]}, "continue_final_message"),
        ({"messages": [QUESTION], "continue_final_message": None}, "add_generation_prompt"),
        ({"add_generation_prompt": True}, "add_generation_prompt"),
        ({"continue_final_message": False}, "messages"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"messages": [{"role": "assistant", "content": "Once"}]}, "messages"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
async def test_what_cannot_be_gone_on_with_is_refused_by_name(tmp_path, change, param):
    begun = {"model": "scripted", "messages": [QUESTION, {"role": "assistant", "content": "Once"}]}
    async with serve(tmp_path) as served:
        answer = await served.client.post("/v1/chat/completions", json=begun | GO_ON | change)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
        assert served.source.calls == []


async def test_a_begun_reply_is_no_message_and_only_what_is_new_comes_back(tmp_path):
    begun = [QUESTION, {"role": "assistant", "content": "Once"}]
    async with serve(tmp_path) as served:
        asking = asyncio.create_task(
            served.client.post("/v1/chat/completions", json={"model": "scripted", "messages": begun} | GO_ON)
        )
        call = await served.source.next_call()
        assert (call.request.messages, call.request.prefix_text) == ((QUESTION,), "Once")
        await call.finish(text=" more")
        assert (await asking).json()["choices"][0]["message"]["content"] == " more"
