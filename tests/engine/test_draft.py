"""`--draft`: a second model guesses for the first, in the real process of the engine."""

import re
from contextlib import asynccontextmanager

import pytest

from engine.client import EngineClient
from engine.errors import ModelNotLoaded
from engine.events import Finished, Generate, RunFailed, Sampling, Token
from engine.synth import synthesise
from tests.engine.conftest import TINY

MB = 1_000_000
ASK = ({"role": "user", "content": "Count for me, please."},)
# So warm that a random model does not repeat itself: what is guessed is guessed by the draft. Token 2 would end it.
WISH = Sampling(temperature=0.9, seed=3, max_tokens=250, logit_bias=((2, -100.0),))
VOCABULARY = 2000
SMALL = TINY | {"layers": 1, "experts": 2, "vocab": VOCABULARY}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A model with 118 MB of experts, so that a budget can leave some of them on disk."""
    shape = {"layers": 6, "experts": 32, "hidden": 512, "expert_hidden": 640, "top_k": 4, "vocab": VOCABULARY}
    return synthesise(tmp_path_factory.mktemp("models") / "large", "qwen3-moe", **shape)


@asynccontextmanager
async def engine(*args, **more):
    client = EngineClient(*args, **more)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def least_budget(model: str, draft: str, data) -> int:
    async with engine(model, data, memory_bytes=MB, draft=draft) as client:
        with pytest.raises(ModelNotLoaded) as refused:
            await client.wait_ready()
    found = re.search(r"least that works is --memory (\d+)MB", str(refused.value))
    assert found, refused.value
    return int(found[1]) * MB


async def reply(client: EngineClient) -> tuple[list[int], Finished]:
    events = [event async for event in client.generate(Generate("r", ASK, WISH))]
    end = events[-1]
    assert isinstance(end, Finished), end
    return [event.token for event in events if isinstance(event, Token)], end


async def test_a_draft_is_asked_and_changes_no_token(large, tmp_path):
    draft = str(synthesise(tmp_path / "small", "qwen3-moe", **SMALL))
    budget = await least_budget(str(large), draft, tmp_path / "data") + 30 * MB
    async with engine(str(large), tmp_path / "data", budget) as client:
        assert (await client.wait_ready()).draft is None
        plain, _ = await reply(client)
    async with engine(str(large), tmp_path / "data", budget, draft) as client:
        loaded = await client.wait_ready()
        assert loaded.paged and loaded.draft == "small"
        guessed, end = await reply(client)
    assert guessed == plain and len(plain) == WISH.max_tokens
    assert end.guessed > 0 and 0 <= end.guessed_right <= end.guessed


async def test_a_draft_with_other_tokens_is_refused_and_says_what_to_do(tiny_model, tmp_path):
    other = synthesise(tmp_path / "other-words", "qwen3-moe", **SMALL)
    async with engine(str(tiny_model), tmp_path / "data", draft=str(other)) as client:
        with pytest.raises(ModelNotLoaded, match=r"other-words has other tokens than .*--draft"):
            await client.wait_ready()
        with pytest.raises(ModelNotLoaded):
            async for event in client.generate(Generate("r", ASK)):
                assert not isinstance(event, RunFailed)


async def test_a_draft_that_suits_the_first_model_only_does_not_stand_in_the_way_of_another(tiny_model, tmp_path):
    draft = synthesise(tmp_path / "small", "qwen3-moe", **SMALL | {"vocab": TINY["vocab"]})
    other = synthesise(tmp_path / "other-words", "qwen3-moe", **SMALL)
    async with engine(str(tiny_model), tmp_path / "data", draft=str(draft)) as client:
        assert (await client.wait_ready()).draft == "small"
        client.switch(str(other))
        assert (await client.wait_ready()).draft is None
        assert len((await reply(client))[0]) == WISH.max_tokens
