"""Thoughts fold, in whichever of the three ways a model tells them apart from its answer."""

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.backend.other_server import Answer, OtherServer, delta, other_server, sse
from tests.browser.conftest import Room
from tests.browser.person import Person, Reply
from tests.browser.running_pagoda import RunningPagoda, until
from tests.browser.staged_pagoda import StagedPagoda


@pytest.fixture
def person(room: Room, stage: StagedPagoda) -> Person:
    return room.seat(stage.url).open_conversation(stage.new_conversation(max_tokens=200))


@pytest.fixture
def other() -> Iterator[OtherServer]:
    """It serves in a thread: what is tested here waits for the browser."""
    ready, over = threading.Event(), asyncio.Event()
    there: list[OtherServer] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with other_server() as server:
            there.append(server)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    yield there[0]
    loop.call_soon_threadsafe(over.set)
    thread.join()
    loop.close()


def folds(reply: Reply, thought: str, answer: str) -> None:
    """The thought is hidden until it is asked for; the answer stands alone."""
    details = reply.article.locator("details")
    expect(details.locator("summary")).to_have_text(re.compile(r"Thought for [\d.]+ m?s"))
    inside = details.get_by_text(thought, exact=True)
    expect(inside).not_to_be_visible()
    expect(reply.article.locator(".pg-answer > .pg-block")).to_have_text([answer])
    details.locator("summary").click()
    expect(inside).to_be_visible()


def test_thoughts_say_how_long_they_took(person: Person, stage: StagedPagoda):
    reply = person.say("Think")
    stage.say("next")
    stage.say("token", "<think>Hm, ")
    expect(reply.article.locator("summary")).to_have_text("Thinking")
    until(lambda: person.page.evaluate("performance.now() % 1000 < 900"), "a moment has passed")
    stage.say("token", "well.</think>Yes.")
    stage.say("finish")
    reply.wait_until("complete")
    expect(reply.article.locator("summary")).to_have_text(re.compile(r"Thought for [\d.]+ m?s"))


def test_the_thoughts_of_gpt_oss_fold(person: Person, stage: StagedPagoda):
    reply = person.say("Think")
    stage.say("next")
    analysis = "<|channel|>analysis<|message|>A short question."
    stage.say("harmony", f"{analysis}<|end|><|start|>assistant<|channel|>final<|message|>A short answer.", 7)
    folds(reply.wait_until("complete"), "A short question.", "A short answer.")


def test_the_thoughts_that_another_server_tells_apart_fold(room: Room, other: OtherServer, tmp_path: Path):
    thoughts = [delta(reasoning_content=text) for text in ("A short ", "question.")]
    answer = [delta("A short "), delta("answer.", "stop"), "[DONE]"]
    other.answers = [Answer([sse(*thoughts), sse(*answer)])]
    pagoda = RunningPagoda(tmp_path, "--upstream", f"far={other.url},model=small", "--model", "far/small")
    try:
        person = room.seat(pagoda.url).open_conversation(pagoda.new_conversation(max_tokens=20))
        folds(person.say("Think").wait_until("complete"), "A short question.", "A short answer.")
        person.reload()
        folds(person.reply(), "A short question.", "A short answer.")
    finally:
        pagoda.stop()
