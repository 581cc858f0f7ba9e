"""Everything ends at the worst moment: the engine, the whole of Pagoda, the connection."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import letters
from tests.browser.running_pagoda import RunningPagoda, give_model
from tests.conftest import place_wheel

STORY = "Tell me a long story about a lighthouse keeper and her dog."


@pytest.fixture
def mortal(tmp_path: Path, default_data_dir: Path) -> Iterator[RunningPagoda]:
    """A Pagoda for one test, which may kill it."""
    give_model(tmp_path, default_data_dir)
    running = RunningPagoda(tmp_path)
    running.wait_until_ready()
    yield running
    running.stop()


def test_the_first_reply_comes_from_a_fresh_data_folder(tmp_path: Path, default_wheel: Path, room: Room):
    place_wheel(default_wheel, tmp_path)
    fresh = RunningPagoda(tmp_path)
    try:
        person = room.seat(fresh.url).open()
        expect(person.page.get_by_text("cut from a dense model")).to_be_visible()
        reply = person.say("Say hello.")
        expect(reply.status).to_contain_text("model")
        expect(person.banner).to_be_visible()
        reply.wait_for_text()
        expect(person.banner).to_have_count(0)
    finally:
        fresh.stop()


def test_a_killed_engine_interrupts_the_reply_and_continue_works(mortal: RunningPagoda, room: Room):
    chat = mortal.new_conversation(max_tokens=60)
    person = room.seat(mortal.url).open_conversation(chat)
    reply = person.say(STORY).wait_for_text(20)
    with mortal.engine_held():
        seen = reply.text()
        mortal.kill_engine()
    reply.wait_until("interrupted")
    assert reply.text().startswith(seen)
    expect(reply.outcome).to_contain_text("the engine stopped")
    cut = mortal.conversation(chat)["messages"][1]["attempts"][0]["text"]
    reply.press("Continue")
    expect(reply.version).to_have_text("2/2")
    reply.wait_until("complete")
    whole = mortal.conversation(chat)["messages"][1]["attempts"][1]["text"]
    assert whole.startswith(cut) and len(whole) > len(cut)
    assert letters(reply.text()) == letters(whole)
    assert person.loads == 1, "the page never loaded again"


def test_a_killed_pagoda_has_kept_everything_that_was_on_screen(mortal: RunningPagoda, room: Room):
    chat = mortal.new_conversation(max_tokens=400)
    person = room.seat(mortal.url).open_conversation(chat)
    reply = person.say(STORY).wait_for_text(40)
    person.composer.fill("what I was about to ask")
    seen = reply.text()
    mortal.kill()
    expect(person.banner).to_contain_text("connection")
    on_screen = reply.text()
    assert on_screen.startswith(seen)
    mortal.start()
    reply.wait_until("interrupted")
    assert reply.text().startswith(on_screen)
    expect(reply.outcome).to_contain_text("restarted")
    expect(person.prompts).to_have_text([STORY])
    expect(person.composer).to_have_value("what I was about to ask")


def test_a_short_cut_of_the_network_ends_in_the_same_page(mortal: RunningPagoda, room: Room):
    chat = mortal.new_conversation(max_tokens=60)
    person = room.seat(mortal.url).open_conversation(chat)
    reply = person.say(STORY).wait_for_text(20)
    person.page.context.set_offline(True)
    person.page.evaluate("window.socket.io.engine.close()")  # what the cut does to it, without the wait to notice it
    expect(person.banner).to_contain_text("connection")
    person.page.context.set_offline(False)
    expect(person.banner).to_have_count(0)
    reply.wait_until("complete")
    assert letters(reply.text()) == letters(mortal.conversation(chat)["messages"][1]["text"])
    assert person.loads == 1
