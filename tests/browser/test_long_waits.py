"""Leaving a reply that takes long: being told, a lost connection, and finding the place again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.staged_pagoda import StagedPagoda
from tests.browser.written import write_turns

# A tab that says it is hidden when the test says so, and writes notifications down instead of showing them.
ELSEWHERE = """
  window.away = false;
  Object.defineProperty(document, "hidden", {get: () => window.away});
  window.told = [];
  window.Notification = class {
    static permission = "granted";
    static requestPermission() { return Promise.resolve("granted"); }
    constructor(title, options) { window.told.push([title, options.body]); }
  };
"""

HUGE = "\n\n".join(f"## Part {n}\n\nOf **this** there are `{n}` and many more words." for n in range(4000))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[StagedPagoda]:
    write_turns(tmp_path, "c_huge", [("Everything, please", HUGE)])
    write_turns(tmp_path, "c_long", [(f"Question {n}", f"Answer {n}.\n\nAnd more of it.") for n in range(100)])
    running = StagedPagoda(tmp_path)
    yield running
    running.stop()


@pytest.fixture
def person(room: Room, stage: StagedPagoda) -> Person:
    person = room.seat(stage.url)
    person.page.add_init_script(ELSEWHERE)
    return person


def test_the_title_counts_the_replies_that_are_finished_and_unread(person: Person, stage: StagedPagoda):
    person.open_conversation(stage.new_conversation(max_tokens=9)).say("Why?")
    stage.say("next")
    stage.say("token", "Because.")
    person.new_chat()
    stage.say("finish")
    person.page.wait_for_function("document.title.startsWith('(1) ')")
    person.go_to("Why?")
    person.page.wait_for_function("document.title === 'Why? · Pagoda'")


def test_who_asked_for_it_is_told_when_a_long_reply_is_done_and_only_while_away(person: Person, stage: StagedPagoda):
    reply = person.open_conversation(stage.new_conversation(max_tokens=9)).say("Why?")
    stage.say("next")
    assert person.page.locator(".pg-leave").count() == 0, "nothing says yet that it takes long"
    person.page.evaluate(
        """() => {  // the same as half a minute of waiting
          const now = performance.now.bind(performance);
          performance.now = () => now() + 40_000;
        }"""
    )
    expect(reply.status).to_contain_text("You can leave")
    reply.press("Tell me when it is done")
    expect(reply.status).to_contain_text("You will be told")
    stage.say("token", "Because.")
    person.page.evaluate("window.away = true")
    stage.say("finish")
    person.page.wait_for_function("window.told.length === 1")
    assert person.page.evaluate("window.told") == [["Why?", "The reply is complete."]]
    person.page.evaluate("window.away = false")
    second = person.say("And now?")
    stage.say("next")
    stage.say("token", "Seen.")
    stage.say("finish")
    second.wait_until("complete")
    assert person.page.evaluate("window.told.length") == 1


def test_what_is_typed_without_a_network_waits_and_is_sent_when_it_is_back(person: Person, stage: StagedPagoda):
    person.open_conversation(stage.new_conversation(max_tokens=9))
    person.page.context.set_offline(True)
    expect(person.banner).to_contain_text("connection")
    person.composer.fill("Into the dark")
    person.composer.press("Enter")
    expect(person.prompts).to_contain_text("Will send when Pagoda is back")
    expect(person.page.locator(".pg-prompt.failed")).to_have_count(0)
    person.page.context.set_offline(False)
    stage.say("next")
    expect(person.banner).to_have_count(0)
    expect(person.prompts).to_have_text(["Into the dark"])
    stage.say("token", "I heard you.")
    stage.say("finish")
    assert person.reply().wait_until("complete").text() == "I heard you."


def test_what_waits_is_sent_also_when_pagoda_was_started_again_meanwhile(person: Person, stage: StagedPagoda):
    chat = stage.new_conversation(max_tokens=9)
    person.open_conversation(chat)
    stage.kill()
    expect(person.banner).to_contain_text("connection")
    person.composer.fill("Anybody?")
    person.composer.press("Enter")
    expect(person.prompts).to_contain_text("Will send when Pagoda is back")
    stage.start()
    stage.say("next")
    stage.say("token", "Yes.")
    stage.say("finish")
    assert person.reply().wait_until("complete").text() == "Yes."
    assert len(stage.conversation(chat)["messages"]) == 2


def test_a_huge_reply_opens_at_its_end_and_is_all_there(person: Person, stage: StagedPagoda):
    person.open_conversation("c_huge")
    answer = person.reply().article.locator(".pg-answer")
    expect(answer.get_by_role("heading", name="Part 3999", exact=True)).to_be_in_viewport()
    expect(answer.locator(".pg-block")).to_have_count(8000)
    expect(answer.get_by_role("heading", name="Part 3999", exact=True)).to_be_in_viewport()
    scroller = person.page.locator(".pg-scroll")
    scroller.hover()
    person.page.mouse.wheel(0, -10_000_000)
    expect(answer.get_by_role("heading", name="Part 0", exact=True)).to_be_in_viewport()
    assert "Of this there are 2000 and" in (answer.text_content() or "")


def top_message(person: Person) -> str:
    return person.page.evaluate(
        """() => {
          const edge = document.querySelector(".pg-scroll").getBoundingClientRect().top;
          const articles = [...document.querySelectorAll("article")];
          return articles.find(article => article.getBoundingClientRect().bottom > edge).dataset.message;
        }"""
    )


def test_older_messages_come_as_one_scrolls_up_and_the_place_survives_a_restart(person: Person, stage: StagedPagoda):
    person.open_conversation("c_long")
    expect(person.replies.last).to_contain_text("Answer 99.")
    assert person.prompts.count() == 12
    scroller = person.page.locator(".pg-scroll")
    scroller.hover()
    person.page.mouse.wheel(0, -100_000)
    expect(person.page.get_by_text("Question 87", exact=True)).to_be_attached()
    while person.page.locator("[data-message=c_long_m120]").count() == 0:
        person.page.mouse.wheel(0, -100_000)
    person.page.locator("[data-message=c_long_m120]").evaluate("message => message.scrollIntoView()")
    place = top_message(person)
    assert place == "c_long_m120"
    person.page.wait_for_function("sessionStorage.getItem('pagoda.place.c_long')?.includes('c_long_m120')")
    stage.kill()
    expect(person.banner).to_contain_text("connection")
    stage.start()
    expect(person.banner).to_have_count(0)
    expect(person.page.locator("[data-message=c_long_m120]")).to_be_in_viewport()
    assert top_message(person) == place
    person.new_chat().page.locator("a[href='/c/c_long']").click()
    expect(person.page.locator("[data-message=c_long_m120]")).to_be_in_viewport()
    person.page.get_by_role("button", name="Newest").click()
    expect(person.replies.last).to_be_in_viewport()


def test_a_cut_of_the_network_takes_neither_draft_nor_place_nor_text(person: Person, stage: StagedPagoda):
    person.open_conversation("c_long")
    reply = person.say("Go on")
    stage.say("next")
    stage.say("token", "Before,")
    reply.wait_for_text(7)
    person.composer.fill("half a thou")
    message = person.page.locator("[data-message=c_long_m190]")
    person.page.locator(".pg-scroll").hover()
    person.page.mouse.wheel(0, -300)  # by hand, which ends the following
    expect(person.page.get_by_role("button", name="Newest")).to_be_visible()
    message.evaluate("message => message.scrollIntoView()")
    assert top_message(person) == "c_long_m190"
    place = person.page.locator(".pg-scroll").evaluate("scroller => scroller.scrollTop")
    person.page.context.set_offline(True)
    person.page.evaluate("window.socket.io.engine.close()")  # what the cut does to it, without the wait to notice it
    expect(person.banner).to_contain_text("connection")
    stage.say("token", " during,")
    person.composer.press_sequentially("ght")
    stage.say("token", " and after the cut.")
    stage.say("finish")
    expect(person.composer).to_have_value("half a thought")
    assert reply.text() == "Before,"
    person.page.context.set_offline(False)
    expect(person.banner).to_have_count(0)
    reply.wait_until("complete")
    assert reply.text() == "Before, during, and after the cut."
    expect(person.composer).to_have_value("half a thought")
    assert top_message(person) == "c_long_m190"
    assert person.page.locator(".pg-scroll").evaluate("scroller => scroller.scrollTop") == place
    assert person.loads == 1, "the same page went on"
