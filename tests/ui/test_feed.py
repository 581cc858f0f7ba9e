"""What one tab is told: its conversation streams, nothing falls between snapshot and stream, ten pushes a second."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.backend.conftest import House
from ui.feed import PUSH_INTERVAL_S, WARM_AFTER_S, WINDOW, Feed


class Tab:
    """Stands for both components in the browser: writes down every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], float]] = []
        self._heard = asyncio.Event()

    def __getattr__(self, name: str):
        def call(*args: Any) -> None:
            self.calls.append((name, args, time.monotonic()))
            self._heard.set()

        return call

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args, _ in self.calls if called == name]

    async def until(self, condition) -> None:
        while not condition():
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), 5)

    def text(self) -> str:
        """What the page would show: the newest snapshot, and the deltas after it."""
        text = ""
        for name, args, _ in self.calls:
            if name == "show":
                text = "".join(message["text"] for message in args[0]["messages"] if message["role"] == "assistant")
            if name == "deltas":
                for delta in args[0]:
                    text += delta["text"][max(0, len(text) - delta["offset"]) :]
            if name == "more":
                text += args[3][max(0, len(text) - args[2]) :]
        return text


class Desk:
    def __init__(self, house: House) -> None:
        self.house = house
        self.tab = Tab()
        self.feed = Feed(house.gateway, self.tab, self.tab)  # type: ignore[arg-type]
        self.feed.listen()


@pytest.fixture
def desk(house: House) -> Desk:
    return Desk(house)


async def test_a_tab_hears_the_rows_and_the_model_as_soon_as_it_is_there(house: House):
    conversation = house.conversation()
    desk = Desk(house)
    [(rows,)] = desk.tab.of("rows")
    assert [row["id"] for row in rows] == [conversation]
    assert len(desk.tab.of("model")) == 1


async def test_snapshot_and_stream_together_are_the_whole_text(desk: Desk):
    conversation = desk.house.conversation()
    _, call = await desk.house.send(conversation, "q")
    await call.token("one ")
    desk.feed.open(conversation, 1)
    await call.token("two ")
    await call.token("three")
    await desk.tab.until(lambda: desk.tab.text().endswith("three"))
    assert desk.tab.text() == "one two three"
    await call.finish()


async def test_the_text_of_another_conversation_never_reaches_the_tab(desk: Desk):
    shown, other = desk.house.conversation(), desk.house.conversation()
    desk.feed.open(shown, 1)
    await desk.house.turn(other, "q", "secret of the other")
    await desk.tab.until(lambda: any(row["id"] == other and row["unread"] for (row,) in desk.tab.of("row")))
    assert desk.tab.of("deltas") == []
    assert desk.tab.of("merge") == []


async def test_a_snapshot_carries_the_generation_it_was_asked_with(desk: Desk):
    first, second = desk.house.conversation(), desk.house.conversation()
    desk.feed.open(first, 7)
    desk.feed.open(second, 8)
    assert [(snapshot["id"], generation) for snapshot, generation in desk.tab.of("show")] == [(first, 7), (second, 8)]


async def test_a_conversation_that_is_gone_is_told(desk: Desk):
    desk.feed.open("c_none", 3)
    assert desk.tab.of("missing") == [("c_none", 3)]


async def test_pushes_keep_their_distance_however_fast_the_tokens_are(desk: Desk):
    conversation = desk.house.conversation()
    desk.feed.open(conversation, 1)
    _, call = await desk.house.send(conversation, "q")
    for _ in range(60):
        await call.token("word ")
        await asyncio.sleep(0.005)  # the pace of the tokens, which is what is tested
    await call.finish()
    await desk.tab.until(lambda: desk.tab.text() == "word " * 60)
    times = [when for name, _, when in desk.tab.calls if name in ("deltas", "more")]
    assert len(times) >= 2
    assert all(later - earlier > 0.9 * PUSH_INTERVAL_S for earlier, later in pairwise(times))


async def test_a_whole_delta_comes_first_after_every_snapshot(desk: Desk):
    conversation = desk.house.conversation()
    desk.feed.open(conversation, 1)
    _, call = await desk.house.send(conversation, "q")
    for word in ("one ", "two ", "three "):
        await call.token(word)
        await desk.tab.until(lambda word=word: desk.tab.text().endswith(word))
    assert [args[3] for args in desk.tab.of("more")] == ["two ", "three "]
    desk.feed.open(conversation, 2)
    await call.token("four")
    await desk.tab.until(lambda: desk.tab.text().endswith("four"))
    assert len(desk.tab.of("more")) == 2
    assert desk.tab.text() == "one two three four"
    await call.finish()


async def test_a_tab_that_left_hears_nothing_and_one_that_comes_back_gets_everything(desk: Desk):
    conversation = desk.house.conversation()
    desk.feed.open(conversation, 1)
    _, call = await desk.house.send(conversation, "q")
    desk.feed.rest()
    heard = len(desk.tab.calls)
    await call.token("while nobody looked")
    assert len(desk.tab.calls) == heard
    desk.feed.listen()
    assert desk.tab.text() == "while nobody looked"
    await call.finish()


async def test_coming_back_twice_is_one_subscription(desk: Desk):
    conversation = desk.house.conversation()
    desk.feed.listen()
    desk.feed.open(conversation, 1)
    await desk.house.turn(conversation, "q", "once")
    await desk.tab.until(lambda: desk.tab.text() != "")
    seen = [delta for (batch,) in desk.tab.of("deltas") for delta in batch if delta["text"]]
    assert [delta["text"] for delta in seen] == ["once"]


async def test_a_long_conversation_arrives_in_windows_without_a_gap(desk: Desk):
    conversation = desk.house.conversation()
    for number in range(WINDOW):
        await desk.house.turn(conversation, f"q{number}", "a")
    whole = [message["id"] for message in desk.house.gateway.conversation(conversation)["messages"]]
    desk.feed.open(conversation, 1)
    [(snapshot, _)] = desk.tab.of("show")
    seen, earlier = [message["id"] for message in snapshot["messages"]], snapshot["earlier"]
    assert len(seen) == WINDOW
    desk.feed.earlier(conversation, seen[0])
    [(_, messages, before)] = desk.tab.of("earlier")
    assert [message["id"] for message in messages] + seen == whole
    assert (earlier, before) == (whole[:WINDOW], [])
    desk.feed.earlier("c_none", seen[0])  # deleted meanwhile: harmless


async def test_what_a_person_looks_at_is_read(desk: Desk):
    conversation = desk.house.conversation()
    await desk.house.turn(conversation, "q", "new")
    assert desk.house.gateway.conversations()[0]["unread"]
    desk.feed.open(conversation, 1)
    assert not desk.house.gateway.conversations()[0]["unread"]
    desk.feed.read("c_none")  # deleted in another tab meanwhile: harmless


async def test_opening_a_conversation_lets_its_model_get_ready_for_the_next_message(desk: Desk):
    conversation, source = desk.house.conversation(), desk.house.source
    desk.feed.open(conversation, 1)
    await warming_is_over()
    assert source.warmed == [], "there is nothing to know of it"
    await desk.house.turn(conversation, "Hello", "Good day")
    desk.feed.open(conversation, 2)
    assert source.warmed == [], "the snapshot goes out first"
    await warming_is_over()
    desk.feed.open("no such conversation", 3)
    await warming_is_over()
    assert source.warmed == [
        ({"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}),
    ]


async def test_who_walks_past_a_conversation_or_leaves_warms_nothing(desk: Desk):
    conversation, other = desk.house.conversation(), desk.house.conversation()
    await desk.house.turn(conversation, "Hello", "Good day")
    desk.feed.open(conversation, 1)
    desk.feed.open(other, 2)
    await warming_is_over()
    desk.feed.open(conversation, 3)
    desk.feed.rest()
    await warming_is_over()
    assert desk.house.source.warmed == []


async def warming_is_over() -> None:
    """Timers ring in order: what was to be warmed before this call is, when it returns."""
    rung = asyncio.Event()
    asyncio.get_running_loop().call_later(WARM_AFTER_S, rung.set)
    await rung.wait()
