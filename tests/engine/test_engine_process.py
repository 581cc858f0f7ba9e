"""The engine as the gateway meets it: a real child process on a real (small) model."""

import asyncio
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from mlx_lm import load as load_stock
from mlx_lm.generate import generate_step

from engine.client import EngineClient, EngineStatus
from engine.errors import EngineDied, ModelNotLoaded
from engine.events import Finished, Generate, Progress, RunFailed, Sampling, Token
from engine.synth import synthesise
from tests.engine.conftest import TINY

ASK = ({"role": "user", "content": "Count for me, please."},)
GREEDY = Sampling(temperature=0.0, max_tokens=24)


@pytest.fixture
async def engine(tiny_model: Path, tmp_path: Path):
    client = EngineClient(str(tiny_model), tmp_path)
    await client.start()
    yield client
    await client.close()


async def reply(client: EngineClient, run_id: str, sampling: Sampling = GREEDY, **more) -> list:
    return [event async for event in client.generate(Generate(run_id, ASK, sampling, **more))]


def tokens_of(events: list) -> list[int]:
    return [event.token for event in events if isinstance(event, Token)]


def text_of(events: list) -> str:
    return "".join(event.text for event in events if isinstance(event, Token | Finished))


def stock_tokens(path: Path, count: int) -> list[int]:
    import mlx.core as mx

    model, tokenizer = load_stock(str(path))
    model.set_dtype(mx.float32)
    prompt = tokenizer.apply_chat_template([dict(m) for m in ASK], add_generation_prompt=True)
    steps = generate_step(mx.array(prompt), model, max_tokens=count)
    return [token for token, _ in steps]


async def test_a_reply_is_what_stock_mlx_lm_generates(engine, tiny_model):
    events = await reply(engine, "r")
    got = tokens_of(events)
    assert got == stock_tokens(tiny_model, len(got))
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.completion_tokens >= len(got) > 0
    assert last.expert_hits + last.expert_reads > 0
    assert last.ttft_s > 0


async def test_progress_is_reported_before_the_first_token(engine):
    events = await reply(engine, "r")
    first = next(event for event in events if isinstance(event, Token | Progress))
    assert isinstance(first, Progress)
    assert first.stage == "prefill"
    assert first.layers == 3


async def test_a_reply_that_was_cut_off_goes_on_as_it_would_have(engine):
    """Greedy with a repetition penalty and seeded sampling: both depend on all that came before."""
    for sampling in (
        Sampling(temperature=0.0, repetition_penalty=1.3, max_tokens=20),
        Sampling(temperature=0.9, top_p=0.95, seed=7, max_tokens=20),
    ):
        whole = await reply(engine, "whole", sampling)
        half = tokens_of(whole)[:9]
        rest = await reply(
            engine, "rest", sampling, prefix_tokens=tuple(half), prefix_text=text_of_tokens(whole, len(half))
        )
        assert half + tokens_of(rest)[: 20 - 9] == tokens_of(whole)
        assert text_of(whole).startswith(text_of_tokens(whole, len(half)))
        assert (text_of_tokens(whole, len(half)) + text_of(rest)).startswith(text_of(whole))


def text_of_tokens(events: list, count: int) -> str:
    return "".join([event.text for event in events if isinstance(event, Token)][:count])


async def test_going_on_loses_nothing_that_was_held_back_as_a_possible_stop_string(engine):
    whole = await reply(engine, "whole")
    text = text_of(whole)
    for count in range(2, 12):
        spelled = text_of_tokens(whole, count)
        if not spelled:
            continue
        shown = spelled[:-1]  # the last character was held back when the engine was killed
        sampling = Sampling(temperature=0.0, max_tokens=24, stop=(spelled[-1] + "\x01",))
        half = tuple(tokens_of(whole)[:count])
        rest = await reply(engine, f"rest{count}", sampling, prefix_tokens=half, prefix_text=shown)
        assert (shown + text_of(rest)).startswith(text)


async def test_going_on_after_a_stop_string_starts_from_what_is_on_screen(engine):
    whole = await reply(engine, "whole")
    text = text_of(whole)
    stop = text[6:10]
    stopped = await reply(engine, "stopped", Sampling(temperature=0.0, max_tokens=24, stop=(stop,)))
    shown, tokens = text_of(stopped), tuple(tokens_of(stopped))
    rest = await reply(engine, "rest", Sampling(temperature=0.0, max_tokens=8), prefix_tokens=tokens, prefix_text=shown)
    assert (shown + text_of(rest)).startswith(shown)
    assert text_of(rest)


async def test_stop_takes_effect_and_keeps_what_came(engine):
    events = []
    async for event in engine.generate(Generate("r", ASK, Sampling(temperature=0.0, max_tokens=5000))):
        events.append(event)
        if len(tokens_of(events)) == 3:
            engine.abort("r")
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "aborted"
    assert 3 <= len(tokens_of(events)) < 5000


async def test_a_stop_string_ends_the_reply_and_is_not_shown(engine):
    whole = text_of(await reply(engine, "whole"))
    stop = whole[5:9]
    events = await reply(engine, "r", Sampling(temperature=0.0, max_tokens=24, stop=(stop,)))
    assert text_of(events) == whole[: whole.index(stop)]
    assert events[-1].reason == "stop"


async def test_a_prompt_the_model_cannot_take_fails_with_words(engine):
    long = ({"role": "user", "content": "word " * 40_000},)
    events = [event async for event in engine.generate(Generate("r", long, GREEDY))]
    assert isinstance(events[-1], RunFailed)
    assert "tokens" in events[-1].message


async def test_a_killed_engine_ends_the_run_and_comes_back(engine):
    with pytest.raises(EngineDied, match="killed"):
        async for event in engine.generate(Generate("r", ASK, Sampling(temperature=0.0, max_tokens=5000))):
            if isinstance(event, Token):
                os.kill(engine.pid, signal.SIGKILL)
    again = await reply(engine, "again")
    assert isinstance(again[-1], Finished)


async def test_a_model_that_is_not_there_fails_and_can_be_retried(tiny_model, tmp_path):
    place = tmp_path / "model"
    client = EngineClient(str(place), tmp_path / "data")
    await client.start()
    try:
        with pytest.raises(ModelNotLoaded, match="no model folder"):
            await client.wait_ready()
        place.symlink_to(tiny_model)
        client.retry()
        assert (await client.wait_ready()).layers == 3
    finally:
        await client.close()


async def test_an_engine_killed_while_its_model_was_away_comes_back_when_somebody_asks(tiny_model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    client = EngineClient(str(folder), tmp_path / "data")
    await client.start()
    try:
        right = await reply(client, "r1")
        folder.rename(tmp_path / "away")
        os.kill(client.pid, signal.SIGKILL)
        while client.status.state != "failed":
            await asyncio.sleep(0.01)
        with pytest.raises(ModelNotLoaded, match="no model folder"):
            await reply(client, "r2")
        (tmp_path / "away").rename(folder)
        assert tokens_of(await reply(client, "r3")) == tokens_of(right)
    finally:
        await client.close()


async def test_a_log_that_cannot_be_written_is_said_and_can_be_retried(tiny_model, tmp_path):
    (tmp_path / "engine.log").mkdir()
    client = EngineClient(str(tiny_model), tmp_path)
    await client.start()
    try:
        with pytest.raises(ModelNotLoaded, match=r"engine\.log"):
            await client.wait_ready()
        (tmp_path / "engine.log").rmdir()
        client.retry()
        assert (await client.wait_ready()).layers == 3
    finally:
        await client.close()


async def test_sampling_at_its_limits_is_greedy_or_free_but_never_fails(engine):
    greedy = tokens_of(await reply(engine, "greedy"))
    for number, limit in enumerate(
        ({"temperature": 1e-40}, {"temperature": 1.0, "top_p": 1e-300}, {"temperature": 0.0, "top_k": 10**9})
    ):
        assert tokens_of(await reply(engine, f"r{number}", Sampling(max_tokens=24, **limit))) == greedy
    events = await reply(engine, "free", Sampling(temperature=1.0, top_k=10**30, max_tokens=5))
    assert isinstance(events[-1], Finished)


async def test_an_engine_that_always_dies_while_loading_is_given_up(tiny_model, tmp_path, monkeypatch):
    client = EngineClient(str(tiny_model), tmp_path)
    seen: list[EngineStatus] = []
    client.watch(seen.append)
    spawn = client._spawn

    async def spawn_and_kill():
        child, reader = await spawn()
        child.kill()
        return child, reader

    monkeypatch.setattr(client, "_spawn", spawn_and_kill)
    await client.start()
    try:
        with pytest.raises(ModelNotLoaded, match="memory"):
            await client.wait_ready()
    finally:
        await client.close()


async def test_the_child_ends_with_its_parent(tiny_model, tmp_path):
    client = EngineClient(str(tiny_model), tmp_path)
    await client.start()
    await client.wait_ready()
    child = client._child
    child.stdin.close()
    assert await asyncio.wait_for(child.wait(), 20) is not None
    await client.close()


async def test_what_was_read_is_known_after_pagoda_was_closed_and_started_again(tiny_model, tmp_path):
    said = []
    for _ in range(2):
        client = EngineClient(str(tiny_model), tmp_path)
        await client.start()
        try:
            said.append(await reply(client, "r"))
        finally:
            await client.close()
    first, second = (events[-1] for events in said)
    assert first.cached_tokens == 0 and second.cached_tokens == second.prompt_tokens - 1
    assert tokens_of(said[0]) == tokens_of(said[1])


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.9, top_p=0.95, seed=7, max_tokens=24)])
async def test_a_reply_goes_on_exactly_after_pagoda_itself_was_killed(tiny_model, tmp_path, sampling):
    async def reply_until(count: int, run_id: str, **more) -> list:
        client = EngineClient(str(tiny_model), tmp_path)
        await client.start()
        events = []
        try:
            async for event in client.generate(Generate(run_id, ASK, sampling, **more)):
                events.append(event)
                if len(tokens_of(events)) == count:
                    # What happens to the child when its parent is killed.
                    client._child.stdin.close()
                    await client._child.wait()
                    break
        finally:
            await client.close()
        return events

    whole = await reply_until(1000, "whole")
    for kept in (tmp_path / "prefixes").rglob("*.safetensors"):
        kept.unlink()
    part = await reply_until(9, "part")
    got = tuple(tokens_of(part))
    rest = await reply_until(1000, "rest", prefix_tokens=got, prefix_text=text_of(part))
    assert list(got) + tokens_of(rest)[: 24 - len(got)] == tokens_of(whole)
    assert rest[-1].cached_tokens >= rest[-1].prompt_tokens - 2


async def test_another_model_has_a_process_of_its_own_and_what_the_first_has_read_is_kept(tiny_model, tmp_path):
    other = synthesise(tmp_path / "other", "qwen3-moe", **TINY | {"experts": 4})
    client = EngineClient(str(tiny_model), tmp_path)
    await client.start()
    try:
        first = await reply(client, "first")
        process = client._child
        client.switch(str(other))
        events = await reply(client, "other")
        assert tokens_of(events) == stock_tokens(other, len(tokens_of(events)))
        assert process.returncode is not None, "the first model's memory is the system's again"
        client.switch(str(tiny_model))
        again = await reply(client, "again")
        assert tokens_of(again) == tokens_of(first)
        assert again[-1].cached_tokens == again[-1].prompt_tokens - 1
    finally:
        await client.close()


def memory_of_engines() -> tuple[int, int]:
    """How many engines this process has now, and the memory that they take together, in bytes."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,rss=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in table.stdout.splitlines()]
    mine = [int(rss) * 1024 for _, parent, rss, args in rows if int(parent) == os.getpid() and "engine.worker" in args]
    return len(mine), sum(mine)


async def test_switching_between_models_gives_all_memory_back(tmp_path):
    large, small = (
        synthesise(tmp_path / name, "qwen3-moe", **TINY | {"experts": count, "expert_hidden": 1024, "layers": 4})
        for name, count in (("large", 64), ("small", 4))
    )
    expected = 60 * 4 * 3 * 128 * 1024 * 0.75  # experts more, layers, matrices, weights of 6 bits with their scales
    client = EngineClient(str(small), tmp_path)
    await client.start()
    try:
        await reply(client, "first")
        count, before = memory_of_engines()
        assert count == 1
        for turn in range(2):
            client.switch(str(large))
            await reply(client, f"large {turn}")
            async with asyncio.timeout(60):  # while nobody asks, all of its experts are read
                while memory_of_engines()[1] < before + 0.7 * expected:
                    await asyncio.sleep(0.05)
            client.switch(str(small))
            await reply(client, f"small {turn}")
            count, after = memory_of_engines()
            assert count == 1, "one model at a time"
            assert after < before + 0.3 * expected
    finally:
        await client.close()
