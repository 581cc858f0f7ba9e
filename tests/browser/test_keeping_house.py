"""Conversations are renamed and deleted, here and in every other tab."""

from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.running_pagoda import RunningPagoda


def test_a_conversation_is_renamed_in_place(room: Room, person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=4)
    person.open_conversation(chat).say("An old name").wait_until("complete")
    other = room.second_tab(person).open()
    person.row("An old name").hover()
    person.page.get_by_role("button", name="Rename “An old name”").click()
    person.page.get_by_label("Title of the conversation").fill("A better name")
    person.page.keyboard.press("Enter")
    expect(person.row("A better name")).to_be_visible()
    expect(person.page.get_by_role("heading", level=1)).to_have_text("A better name")
    expect(other.row("A better name")).to_be_visible()
    assert pagoda.conversation(chat)["title"] == "A better name"


def test_escape_leaves_the_name_as_it_was(person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=4)
    person.open_conversation(chat).say("Keep this name").wait_until("complete")
    person.row("Keep this name").get_by_role("link").dblclick()
    person.page.get_by_label("Title of the conversation").fill("never mind")
    person.page.keyboard.press("Escape")
    expect(person.row("Keep this name")).to_be_visible()
    assert pagoda.conversation(chat)["title"] == "Keep this name"


def test_a_conversation_is_deleted_after_a_question(room: Room, person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=400)
    person.open_conversation(chat).say("To be forgotten, at length").wait_for_text()
    other = room.second_tab(person).open_conversation(chat)
    person.row("To be forgotten").hover()
    delete = person.page.get_by_role("button", name="Delete “To be forgotten, at length”")
    delete.click()
    person.page.get_by_role("button", name="Keep it").click()
    expect(person.row("To be forgotten")).to_be_visible()
    delete.click()
    person.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(person.row("To be forgotten")).to_have_count(0)
    expect(person.prompts).to_have_count(0)
    expect(other.row("To be forgotten")).to_have_count(0)
    expect(other.prompts).to_have_count(0)
    assert chat not in [row["id"] for row in pagoda.get("/api/conversations")]  # type: ignore[index]


def test_a_conversation_that_does_not_exist_is_told_apart_from_an_empty_one(person: Person):
    person.open("/c/c_0000000000000000")
    expect(person.page.get_by_text("This conversation does not exist")).to_be_visible()
    expect(person.page.get_by_role("button", name="Send")).to_be_disabled()
