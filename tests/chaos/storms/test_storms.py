"""A network that is cut, many tabs, reload after reload, in real Chromium: every tab ends with the whole reply."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Reply, letters
from tests.browser.running_pagoda import until
from tests.browser.staged_pagoda import StagedPagoda
from tests.chaos.ledger import Ledger
from tests.chaos.wire import Wire

WORDS = "Every word of this reply has a number and a place, and none may be missing at the end. "

TABS = 49 if (os.cpu_count() or 1) >= 8 else 14  # a small machine is busy with the browser alone


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StagedPagoda]:
    running = StagedPagoda(tmp_path_factory.mktemp("data"))
    yield running
    running.stop()


def open_files(stage: StagedPagoda) -> int:
    folder = Path(f"/proc/{stage.pid}/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def told(stage: StagedPagoda, conversation: str) -> str:
    return stage.attempts(conversation)[-1]["text"]


def test_a_cut_of_the_network_ends_in_the_whole_reply(room: Room, stage: StagedPagoda, ledger: Ledger):
    wire = Wire(stage.url)
    try:
        for seconds in (1, 5, 30, 90) if ledger.long else (2,):
            conversation = stage.new_conversation(max_tokens=9999)
            person = room.seat(wire.url).open_conversation(conversation)
            reply = person.say(f"A cut of {seconds} s")
            stage.say("next")
            count = 20 * (seconds + 4)
            stage.begin("stream", count, 20, WORDS)
            reply.wait_for_text(20)
            with wire.cut():
                time.sleep(seconds)  # the fault itself
            stage.finish_saying()
            last = Reply(person.replies.last)  # after a long cut the page may have loaded again
            last.wait_until("complete")
            assert letters(last.text()) == letters(told(stage, conversation)), f"after {seconds} s"
            ledger.survived("network cut for 1, 5, 30 and 90 s", "the page says so and comes back", "the whole reply")
    finally:
        wire.close()


def test_reload_after_reload_shows_the_whole_reply_and_leaves_nothing_open(
    room: Room, stage: StagedPagoda, ledger: Ledger
):
    draw = ledger.draw("reloads")
    conversation = stage.new_conversation(max_tokens=9999)
    person = room.seat(stage.url).open_conversation(conversation)
    before = open_files(stage)
    reply = person.say("Reload")
    stage.say("next")
    times = 50 if ledger.long else 5
    stage.begin("stream", 40 * times, 40, WORDS)
    reply.wait_for_text(20)
    for _ in range(times):
        person.page.wait_for_timeout(draw.randrange(0, 700))  # also before the page is there
        person.page.reload(wait_until="commit")
    stage.finish_saying()
    last = Reply(person.replies.last)
    last.wait_until("complete")
    assert letters(last.text()) == letters(told(stage, conversation))
    until(lambda: open_files(stage) <= before + 6, "connections of pages that are gone are closed", 120)
    ledger.survived("reload in the middle of a reply", "the reply, going on", "the whole reply", times)


def test_many_tabs_show_the_same_and_give_everything_back(room: Room, stage: StagedPagoda, ledger: Ledger):
    conversation = stage.new_conversation(max_tokens=9999)
    person = room.seat(stage.url).open_conversation(conversation)
    before = open_files(stage)
    tabs = [room.second_tab(person).open_conversation(conversation) for _ in range(TABS if ledger.long else 4)]
    person.say("Tell all of us")
    stage.say("next")
    stage.begin("stream", 200, 20, WORDS)
    stage.finish_saying()
    whole = letters(told(stage, conversation))
    for tab in [person, *tabs]:
        expect(tab.replies.last).to_have_attribute("data-state", "complete")
        assert letters(Reply(tab.replies.last).text()) == whole
    for tab in tabs:
        tab.page.close()
    until(lambda: open_files(stage) <= before + 6, "the tabs' connections are closed", 120)
    ledger.survived("many tabs on one reply", "the same in each", "the whole reply", len(tabs) + 1)
