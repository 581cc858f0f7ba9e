"""The gateway on the real engine: a child process, the default model, and a kill in the middle."""

import asyncio
import os
import signal

from backend.chunks import Chunk, Progress, StateChange, Text
from backend.engine_source import EngineSource
from backend.gateway import Gateway
from backend.journal import Journal
from backend.local_models import LocalModel
from backend.notices import Notice
from engine.client import EngineClient
from engine.synth import synthesise


class RealHouse:
    """A gateway whose source is the engine; `until` waits for a chunk that fits."""

    def __init__(self, folder, model: str) -> None:
        self.engine = EngineClient(model, folder)
        self.journal = Journal(folder)
        self.gateway = Gateway(self.journal, [EngineSource(model, self.engine)])

    async def __aenter__(self) -> "RealHouse":
        self.gateway.start()
        await self.engine.start()
        return self

    async def __aexit__(self, *_) -> None:
        await self.gateway.close()
        await self.engine.close()
        self.journal.close()

    def send(self, conversation: str, text: str) -> str:
        return self.gateway.send(conversation, f"r-{text}", text).attempt_id

    async def until(self, attempt_id: str, fits) -> Chunk:
        found = asyncio.get_running_loop().create_future()

        def look(item) -> None:
            if isinstance(item, Chunk) and item.attempt_id == attempt_id and fits(item) and not found.done():
                found.set_result(item)

        unsubscribe = self.gateway.subscribe(look)
        for chunk in self.gateway.chunks(attempt_id):
            look(chunk)
        try:
            return await asyncio.wait_for(found, 120)
        finally:
            unsubscribe()


def is_text(chunk: Chunk) -> bool:
    return isinstance(chunk.data, Text) and bool(chunk.data.text)


def is_end(chunk: Chunk) -> bool:
    return isinstance(chunk.data, StateChange) and chunk.data.state.terminal


async def test_a_message_waits_for_the_model_survives_a_kill_continues_and_stops(tmp_path, default_model_dir):
    async with RealHouse(tmp_path, str(default_model_dir)) as house:
        conversation = house.gateway.create_conversation(sampling={"temperature": 0, "max_tokens": 400})["id"]
        attempt = house.send(conversation, "Tell me everything about pagodas.")
        first = await house.until(attempt, lambda chunk: isinstance(chunk.data, Progress))
        assert first.data.stage == "loading"
        await house.until(attempt, lambda chunk: is_text(chunk) and chunk.offset > 8)
        os.kill(house.engine.pid, signal.SIGKILL)
        end = (await house.until(attempt, is_end)).data
        assert (end.state, end.reason) == ("interrupted", "engine_died") and "killed" in end.detail
        kept = house.gateway.attempt(attempt)
        assert len(kept.text) > 8

        further = house.gateway.continue_(kept.message_id)
        await house.until(further, lambda chunk: is_text(chunk) and chunk.offset > len(kept.text) + 8)
        house.gateway.stop(further)
        end = (await house.until(further, is_end)).data
        assert (end.state, end.reason) == ("cancelled", "stopped_by_person")
        assert end.usage["completion_tokens"] > 0 and end.timings["expert_hits"] + end.timings["expert_reads"] > 0
        text = house.gateway.attempt(further).text
        assert text.startswith(kept.text) and house.gateway.attempt(attempt).text == kept.text

        # The same model and greedy choice: what was continued is what one run without a break would have said.
        again = house.gateway.regenerate(kept.message_id)
        await house.until(again, lambda chunk: is_text(chunk) and chunk.offset + len(chunk.data.text) >= len(text))
        assert house.gateway.attempt(again).text.startswith(text)


async def test_an_engine_that_hangs_is_started_again_for_whoever_waits(tmp_path, default_model_dir, monkeypatch):
    monkeypatch.setattr("backend.runs.STOP_GRACE_S", 0.2)
    monkeypatch.setattr("backend.runs.HUNG_S", 1.0)
    async with RealHouse(tmp_path, str(default_model_dir)) as house:
        said = []
        house.gateway.subscribe(lambda item: isinstance(item, Notice) and item.kind == "model" and said.append(item))
        one, two = (
            house.gateway.create_conversation(sampling={"temperature": 0, "max_tokens": most})["id"]
            for most in (4000, 5)
        )
        attempt = house.send(one, "Tell me everything about pagodas.")
        await house.until(attempt, is_text)
        hung = house.engine.pid
        os.kill(hung, signal.SIGSTOP)
        house.gateway.stop(attempt)
        following = house.send(two, "Hello")
        assert (await house.until(attempt, is_end)).data.state == "cancelled"
        assert (await house.until(following, is_end)).data.state == "complete"
        assert house.engine.pid not in (hung, None)
        assert any(n.data["state"] == "loading" and "no longer answered" in (n.data["detail"] or "") for n in said)
        assert house.gateway.model_status()["detail"] is None


async def test_two_conversations_are_answered_at_the_same_time_each_as_if_alone(tmp_path, default_model_dir):
    async with RealHouse(tmp_path, str(default_model_dir)) as house:
        sampling = {"temperature": 0, "max_tokens": 24}
        ones = [house.gateway.create_conversation(sampling=sampling)["id"] for _ in range(2)]
        attempts = [house.send(one, text) for one, text in zip(ones, ("Name a tree.", "Name a river."), strict=True)]
        for attempt in attempts:
            await house.until(attempt, is_text)
        assert not any(house.gateway.attempt(attempt).state.terminal for attempt in attempts)
        for attempt in attempts:
            assert (await house.until(attempt, is_end)).data.state == "complete"
        for attempt in attempts:
            again = house.gateway.regenerate(house.gateway.attempt(attempt).message_id)
            assert (await house.until(again, is_end)).data.usage["cached_tokens"] > 0
            assert house.gateway.attempt(again).text == house.gateway.attempt(attempt).text


async def test_a_model_that_cannot_be_loaded_fails_the_reply_in_words_and_can_be_tried_again(tmp_path):
    async with RealHouse(tmp_path / "data", str(tmp_path / "nothing-here")) as house:
        conversation = house.gateway.create_conversation()["id"]
        attempt = house.send(conversation, "Hello")
        end = (await house.until(attempt, is_end)).data
        assert end.state == "failed" and end.detail
        status = house.gateway.model_status()
        assert (status["state"], status["detail"]) == ("failed", end.detail)
        house.gateway.retry_model()
        assert house.gateway.model_status()["state"] == "loading"


async def test_conversations_on_two_models_take_turns_and_each_reply_is_of_its_model(tmp_path, default_model_dir):
    other = str(synthesise(tmp_path / "other", "olmoe", layers=2, experts=4, hidden=64, expert_hidden=64))
    first = str(default_model_dir)
    async with RealHouse(tmp_path / "data", first) as house:
        house.gateway.serve_models(
            lambda: [LocalModel(first, None), LocalModel(other, None)], lambda name: EngineSource(name, house.engine)
        )
        choices = {choice["name"]: choice["here"] for choice in await house.gateway.model_choices()}
        assert choices == {first: True, other: True}
        short = {"temperature": 0, "max_tokens": 3}
        here = house.gateway.create_conversation(sampling=short)["id"]
        there = house.gateway.create_conversation(model=other, sampling=short)["id"]
        attempts = [house.send(here, "One"), house.send(there, "Two")]
        waiting = await house.until(attempts[1], lambda chunk: isinstance(chunk.data, Progress))
        assert (waiting.data.stage, waiting.data.queue_position) == ("queued", 1)
        assert waiting.data.queued_behind == first
        for attempt, model in zip(attempts, (first, other), strict=True):
            end = (await house.until(attempt, is_end)).data
            assert end.state == "complete", end.detail
            assert house.gateway.attempt(attempt).model == model
        assert house.gateway.model_status()["name"] == other
        stages = [c.data.stage for c in house.gateway.chunks(attempts[1]) if isinstance(c.data, Progress)]
        assert stages.index("queued") < stages.index("loading")
        house.gateway.update_conversation(there, model=first)
        back = house.send(there, "Three")
        assert (await house.until(back, is_end)).data.state == "complete"
        assert house.gateway.attempt(back).model == house.gateway.model_status()["name"] == first


async def test_a_model_switched_away_from_while_it_loads_does_not_answer_for_the_new_one(tmp_path, default_model_dir):
    async with RealHouse(tmp_path / "data", str(tmp_path / "nothing-here")) as house:
        house.engine.switch(str(default_model_dir))
        loaded = await asyncio.wait_for(house.engine.wait_ready(), 120)
        assert loaded.expert_bytes > 0
