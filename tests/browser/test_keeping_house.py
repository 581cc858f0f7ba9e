"""Conversations are renamed and deleted, here and in every other tab."""

from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.running_pagoda import RunningPagoda


def test_a_conversation_is_renamed_in_place(room: Room, person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=4)
    person.open_conversation(chat).say("An old name").wait_until("complete")
    other = room.second_tab(person).open()
    person.choose("An old name", "Rename")
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


def test_a_deleted_conversation_stops_and_is_gone_everywhere_until_undo(
    room: Room, person: Person, pagoda: RunningPagoda
):
    chat = pagoda.new_conversation(max_tokens=400)
    person.open_conversation(chat).say("Forgotten, at length").wait_for_text()
    with pagoda.engine_held():  # so that it cannot end by itself
        other = room.second_tab(person).open_conversation(chat)
        person.choose("Forgotten, at length", "Delete")
        for tab in (person, other):
            expect(tab.row("Forgotten, at length")).to_have_count(0)
            expect(tab.prompts).to_have_count(0)
    assert chat not in [row["id"] for row in pagoda.get("/api/conversations")]  # type: ignore[index]
    person.page.get_by_role("button", name="Undo").click()
    for tab in (person, other):
        expect(tab.row("Forgotten, at length")).to_be_visible()
    expect(person.prompts).to_have_count(1)
    person.reply().wait_until("cancelled").wait_for_text()


def test_pinned_conversations_stand_first_and_archived_ones_are_folded_away(
    room: Room, person: Person, pagoda: RunningPagoda
):
    for title in ("Alpha", "Beta", "Gamma"):
        person.open_conversation(pagoda.new_conversation(max_tokens=2)).say(title).wait_until("complete")
    other = room.second_tab(person).open()
    person.choose("Alpha", "Pin")
    person.choose("Beta", "Archive")
    for tab in (person, other):
        expect(tab.group("pinned").locator(".pg-row")).to_have_text(["Alpha"])
        expect(tab.row("Beta")).to_be_hidden()
        expect(tab.group("today")).to_contain_text("Gamma")
    person.group("archived").locator("summary").click()
    person.choose("Beta", "Take out of the archive")
    expect(other.group("today")).to_contain_text("Beta")
    person.choose("Alpha", "Unpin")
    expect(other.group("pinned")).to_have_count(0)


def test_a_row_says_how_far_its_reply_is(person: Person, pagoda: RunningPagoda):
    person.open_conversation(pagoda.new_conversation(max_tokens=400)).say("Runs for long").wait_for_text()
    with pagoda.engine_held():
        expect(person.row("Runs for long").locator(".pg-dot")).to_contain_text("%")
        person.stop()
    person.reply().wait_until("cancelled")


def test_the_menu_of_a_row_is_walked_with_the_keyboard(person: Person, pagoda: RunningPagoda):
    person.open_conversation(pagoda.new_conversation(max_tokens=2)).say("By hand").wait_until("complete")
    more = person.page.get_by_role("button", name="Options for “By hand”")
    person.row("By hand").get_by_role("link").focus()
    more.press("Enter")
    expect(person.page.get_by_role("menuitem", name="Rename")).to_be_focused()
    person.page.keyboard.press("ArrowDown")
    expect(person.page.get_by_role("menuitem", name="Pin")).to_be_focused()
    person.page.keyboard.press("Escape")
    expect(person.page.get_by_role("menuitem", name="Pin")).to_be_hidden()
    expect(more).to_be_focused()


def test_a_conversation_that_does_not_exist_is_told_apart_from_an_empty_one(person: Person):
    person.open("/c/c_0000000000000000")
    expect(person.page.get_by_text("This conversation does not exist")).to_be_visible()
    expect(person.page.get_by_role("button", name="Send")).to_be_disabled()


def test_an_address_of_nothing_leads_on_and_the_draft_comes_along(person: Person, pagoda: RunningPagoda):
    person.page.goto(f"{pagoda.url}/c/not-there")
    expect(person.page.get_by_text("This conversation does not exist, or not any more.")).to_be_visible()
    person.composer.fill("half a thought")
    person.page.locator(".pg-missing").get_by_role("button", name="New chat").click()
    expect(person.composer).to_have_value("half a thought")
    assert person.page.evaluate("localStorage.getItem('pagoda.draft.not-there')") is None


def test_a_draft_survives_the_deletion_of_its_conversation_elsewhere(room: Room, person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=2)
    person.open_conversation(chat).say("Soon gone").wait_until("complete")
    person.composer.fill("half a long message")
    room.second_tab(person).open().choose("Soon gone", "Delete")
    expect(person.prompts).to_have_count(0)
    expect(person.composer).to_have_value("half a long message")
