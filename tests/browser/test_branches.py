"""A message is edited and sent again, both branches stay within reach; a turn is deleted and brought back."""

from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.running_pagoda import RunningPagoda


def chat_of(person: Person, pagoda: RunningPagoda, *questions: str) -> str:
    chat = pagoda.new_conversation(max_tokens=4)
    person.open_conversation(chat)
    for question in questions:
        person.say(question).wait_until("complete")
    return chat


def edit(person: Person, position: int, text: str) -> None:
    person.prompts.nth(position).hover()
    person.prompts.nth(position).get_by_role("button", name="Edit this message").click()
    person.page.get_by_label("Edited message").fill(text)
    person.page.get_by_label("Edited message").press("Enter")


def test_an_edited_message_begins_a_branch_and_the_old_one_is_one_step_away(
    room: Room, person: Person, pagoda: RunningPagoda
):
    chat = chat_of(person, pagoda, "First", "Secnd", "Third")
    other = room.second_tab(person).open_conversation(chat)
    old = [m["id"] for m in pagoda.conversation(chat)["messages"]]
    edit(person, 1, "Second")
    for tab in (person, other):
        expect(tab.prompts.locator(".pg-bubble")).to_have_text(["First", "Second"])
        expect(tab.prompts.nth(1).locator(".pg-versions")).to_contain_text("2/2")
        tab.reply().wait_until("complete")
    person.prompts.nth(1).get_by_role("button", name="Previous version of this message").click()
    for tab in (person, other):
        expect(tab.prompts.locator(".pg-bubble")).to_have_text(["First", "Secnd", "Third"])
        expect(tab.prompts.nth(1).locator(".pg-versions")).to_contain_text("1/2")
    assert [m["id"] for m in pagoda.conversation(chat)["messages"]] == old
    person.say("Fourth").wait_until("complete")
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["First", "Secnd", "Third", "Fourth"])
    person.reload()
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["First", "Secnd", "Third", "Fourth"])


def test_escape_leaves_an_edited_message_as_it_was(person: Person, pagoda: RunningPagoda):
    chat_of(person, pagoda, "As it was")
    person.prompts.hover()
    person.page.get_by_role("button", name="Edit this message").click()
    person.page.get_by_label("Edited message").fill("never mind")
    person.page.keyboard.press("Escape")
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["As it was"])
    expect(person.page.get_by_role("button", name="Edit this message")).to_be_focused()


def test_an_edit_that_does_not_reach_pagoda_comes_back_to_the_person(person: Person, pagoda: RunningPagoda):
    chat_of(person, pagoda, "A question")
    person.page.context.set_offline(True)
    edit(person, 0, "A better question")
    expect(person.page.get_by_label("Edited message")).to_have_value("A better question")
    expect(person.banner.filter(has_text="does not answer")).to_be_visible()
    person.page.context.set_offline(False)
    person.page.get_by_label("Edited message").press("Enter")
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["A better question"])
    person.reply().wait_until("complete")


def test_editing_stops_the_reply_that_is_being_written_and_keeps_its_text(person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=400)
    person.open_conversation(chat).say("Tell me everything").wait_for_text()
    with pagoda.engine_held():  # so that it cannot end by itself
        edit(person, 0, "Tell me a long story about a lighthouse keeper")
        expect(person.prompts.locator(".pg-bubble")).to_have_text(["Tell me a long story about a lighthouse keeper"])
    person.reply().wait_for_text()
    person.stop()
    person.page.get_by_role("button", name="Previous version of this message").click()
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["Tell me everything"])
    person.reply().wait_until("cancelled").wait_for_text()


def test_a_deleted_turn_is_gone_in_every_tab_and_undo_puts_it_back_in_its_place(
    room: Room, person: Person, pagoda: RunningPagoda
):
    chat = chat_of(person, pagoda, "First", "Second", "Third")
    other = room.second_tab(person).open_conversation(chat)
    person.prompts.nth(1).hover()
    person.prompts.nth(1).get_by_role("button", name="Delete this message and its reply").click()
    for tab in (person, other):
        expect(tab.prompts.locator(".pg-bubble")).to_have_text(["First", "Third"])
        expect(tab.replies).to_have_count(2)
    person.page.get_by_role("button", name="Undo").click()
    for tab in (person, other):
        expect(tab.prompts.locator(".pg-bubble")).to_have_text(["First", "Second", "Third"])
    expect(person.page.get_by_role("button", name="Undo")).to_have_count(0)
