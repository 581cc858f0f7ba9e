"""Words are found in all conversations, and a hit is one click away from its place."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.running_pagoda import RunningPagoda, give_model
from tests.browser.test_hostile_text import write_conversation


@pytest.fixture(scope="module")
def pagoda(tmp_path_factory: pytest.TempPathFactory, default_data_dir: Path) -> Iterator[RunningPagoda]:
    data_dir = tmp_path_factory.mktemp("data")
    give_model(data_dir, default_data_dir)
    long = "\n\n".join(f"Paragraph {number} of a long reply." for number in range(80))
    write_conversation(data_dir, "c_wood", f"{long}\n\nThe roof is of cedar <b>bark</b>.\n\n{long}")
    write_conversation(data_dir, "c_ta", "这是一座七层的宝塔。")
    running = RunningPagoda(data_dir)
    running.wait_until_ready()
    yield running
    running.stop()


def search(person: Person, words: str) -> None:
    person.page.get_by_label("Search all conversations").fill(words)


def test_hits_are_marked_and_open_the_conversation_at_the_message(person: Person):
    person.open()
    search(person, "CEDAR bark")
    hits = person.page.locator(".pg-hits li")
    expect(hits).to_have_count(1)
    expect(hits.locator("mark")).to_have_text(["cedar", "bark"])
    expect(hits).to_contain_text("<b>bark</b>")
    person.page.get_by_label("Search all conversations").press("ArrowDown")
    person.page.keyboard.press("Enter")
    expect(person.page.locator(".pg-transcript")).to_have_attribute("data-conversation", "c_wood")
    lit = person.page.locator(".pg-reply.pg-lit")
    expect(lit).to_be_in_viewport()
    assert "/c/c_wood" in person.page.url


def test_chinese_is_found_and_escape_brings_the_list_back(person: Person):
    person.open()
    search(person, "宝塔")
    expect(person.page.locator(".pg-hits mark")).to_have_text(["宝塔"])
    expect(person.rows.first).to_be_hidden()
    search(person, "没有这样的话")
    expect(person.page.get_by_text("Nothing found.")).to_be_visible()
    person.page.keyboard.press("Escape")
    expect(person.rows.first).to_be_visible()


def test_a_hit_on_a_branch_out_of_sight_brings_that_branch_back(room: Room, pagoda: RunningPagoda):
    person = room.seat(pagoda.url)
    chat = pagoda.new_conversation(max_tokens=2)
    person.open_conversation(chat).say("About magnolias").wait_until("complete")
    pagoda.call(
        "POST",
        f"/api/messages/{pagoda.conversation(chat)['messages'][0]['id']}/edit",
        {"request_id": "e", "text": "About irises"},
    )
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["About irises"])
    search(person, "magnolia")
    person.page.locator(".pg-hits a").filter(has_text="You").click()
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["About magnolias"])
