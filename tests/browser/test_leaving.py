"""Leaving a reply and coming back: other conversations, a reload, a second tab."""

from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person, letters
from tests.browser.running_pagoda import RunningPagoda

STORY = "Tell me a long story about a lighthouse keeper and her dog."


def test_two_conversations_are_written_at_once_and_never_mix(person: Person, pagoda: RunningPagoda):
    a, b = pagoda.new_conversation(max_tokens=240), pagoda.new_conversation(max_tokens=60)
    person.open_conversation(b)
    person.open_conversation(a)
    reply_a = person.say(STORY).wait_for_text(20)
    with pagoda.engine_held():
        seen = reply_a.text()
        person.go_to("New chat")
        assert person.page.url.endswith(b)
        assert person.replies.count() == 0
        expect(person.row("Tell me a long story")).to_have_attribute("data-dot", "running")
        reply_b = person.say("What is a tide?")
        assert reply_b.text() == ""
        person.go_to("Tell me a long story")
        assert person.reply().text().startswith(seen)
        assert person.reply().state == "streaming"
    person.go_to("What is a tide?").reply().wait_for_text()
    expect(person.row("Tell me a long story")).to_have_attribute("data-dot", "running")
    person.go_to("Tell me a long story")
    text_a = person.reply().wait_until("complete").text()
    person.go_to("What is a tide?")
    text_b = person.reply().wait_until("complete").text()

    assert person.loads == 2, "switching never loads the page again"
    assert letters(text_a) == letters(pagoda.conversation(a)["messages"][1]["text"])
    assert letters(text_b) == letters(pagoda.conversation(b)["messages"][1]["text"])
    assert text_b and text_b not in text_a


def test_back_and_forward_switch_inside_the_page(person: Person, pagoda: RunningPagoda):
    a, _ = pagoda.new_conversation(max_tokens=4), pagoda.new_conversation(max_tokens=4)
    person.open_conversation(a).say("First thing").wait_until("complete")
    person.go_to("New chat").say("Second thing").wait_until("complete")
    person.page.go_back()
    expect(person.prompts).to_have_text(["First thing"])
    person.page.go_forward()
    expect(person.prompts).to_have_text(["Second thing"])
    assert person.loads == 1


def test_what_ended_elsewhere_is_marked_until_it_is_read(person: Person, pagoda: RunningPagoda):
    a = pagoda.new_conversation(max_tokens=60)
    person.open_conversation(a).say("Why is the sea salty?").wait_for_text()
    with pagoda.engine_held():
        person.new_chat()
    row = person.row("Why is the sea salty?")
    expect(row).to_have_attribute("data-dot", "unread")
    person.go_to("Why is the sea salty?")
    expect(row).not_to_have_attribute("data-dot", "unread")
    person.new_chat()
    expect(row).not_to_have_attribute("data-dot", "unread")


def test_a_reload_in_the_middle_shows_the_exact_beginning_and_then_the_rest(person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=80)
    person.open_conversation(chat).say(STORY).wait_for_text(20)
    with pagoda.engine_held():
        seen = person.reply().text()
        reply = person.reload().reply()
        assert reply.text().startswith(seen)
        assert letters(reply.text()) == letters(pagoda.conversation(chat)["messages"][1]["text"])
        assert reply.state == "streaming"
    reply.wait_until("complete")
    assert letters(reply.text()) == letters(pagoda.conversation(chat)["messages"][1]["text"])


def test_two_tabs_show_the_same(room: Room, person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=40)
    person.open_conversation(chat)
    other = room.second_tab(person).open_conversation(chat)
    reply = person.say("Why do dogs bark?")
    expect(other.prompts).to_have_text(["Why do dogs bark?"])
    other.reply().wait_for_text()
    reply.wait_until("complete")
    other.reply().wait_until("complete")
    assert other.reply().text() == reply.text() != ""
    other.reply().press("Regenerate")
    expect(reply.version).to_have_text("2/2")
    reply.wait_until("complete")
    other.reply().wait_until("complete")
    reply.press("Previous version")
    expect(other.reply().version).to_have_text("1/2")


def test_the_view_stays_where_the_person_reads(room: Room, pagoda: RunningPagoda):
    person = room.seat(pagoda.url, viewport={"width": 700, "height": 300})
    chat = pagoda.new_conversation(max_tokens=300)
    reply = person.open_conversation(chat).say(STORY)
    scroller = person.page.locator(".pg-scroll")
    person.page.wait_for_function("document.querySelector('.pg-scroll').scrollTop > 0")
    with pagoda.engine_held():
        scroller.hover()
        person.page.mouse.wheel(0, -4000)
        person.page.wait_for_function("document.querySelector('.pg-scroll').scrollTop === 0")
        so_far = len(reply.text())
    reply.wait_for_text(so_far + 40)
    assert scroller.evaluate("element => element.scrollTop") == 0
    person.page.get_by_role("button", name="Newest").click()
    person.page.wait_for_function(
        "e = document.querySelector('.pg-scroll'), e.scrollHeight - e.scrollTop - e.clientHeight < 2"
    )
