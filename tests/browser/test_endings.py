"""How a reply ends, in words and with what to do about it; and that no ending moves what a person reads."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.staged_pagoda import StagedPagoda

THOUGHTS = "\n\n".join(f"Thought {n}: the keeper lights the lamp and looks at the sea." for n in range(30))
FORMULAS = "\n\n".join(f"So, as always,\n\n$$E_{{{n}}} = \\frac{{1}}{{2}} m v^2$$" for n in range(12))


@pytest.fixture
def person(room: Room, stage: StagedPagoda) -> Person:
    return room.seat(stage.url).open_conversation(stage.new_conversation(max_tokens=200))


@pytest.mark.parametrize(
    ("ending", "state", "words", "buttons"),
    [
        (("break_off",), "interrupted", "Incomplete: the source ended too early.", ("Continue", "Regenerate")),
        (("drop",), "interrupted", "Incomplete: the network dropped.", ("Continue", "Regenerate")),
        (("crash",), "interrupted", "Incomplete: the engine stopped in the middle.", ("Continue", "Regenerate")),
        (("finish", "length"), "complete", "the limit for one reply was reached", ("Continue", "Regenerate")),
        (("fail", "The lamp broke."), "failed", "The lamp broke.", ("Continue", "Retry")),
    ],
)
def test_a_reply_that_was_cut_off_says_by_what_and_keeps_its_text(
    person: Person, stage: StagedPagoda, ending: tuple, state: str, words: str, buttons: tuple
):
    reply = person.say("Tell me a story")
    stage.say("next")
    stage.say("write", "Once upon a time")
    stage.say(*ending)
    reply.wait_until(state)
    expect(reply.outcome).to_contain_text(words)
    assert reply.text() == "Once upon a time"
    for button in buttons:
        expect(reply.article.get_by_role("button", name=button)).to_be_visible()
    person.reload()
    expect(person.reply().outcome).to_contain_text(words)
    person.reply().press("Continue")
    stage.say("next")
    stage.say("token", ", in a tower.")
    stage.say("finish")
    assert person.reply().wait_until("complete").text() == "Once upon a time, in a tower."


def test_a_silent_reply_is_stopped_where_its_silence_is_said(person: Person, stage: StagedPagoda):
    person.page.evaluate("localStorage.setItem('pagoda.patience.default', '1')")
    person.reload()
    reply = person.say("Hello?")
    stage.say("next")
    stage.say("token", "Hm")
    stalled = reply.article.locator(".pg-stalled")
    expect(stalled).to_contain_text("No sign of life")
    stalled.get_by_role("button", name="Stop").click()
    reply.wait_until("cancelled")
    expect(reply.outcome).to_contain_text("Stopped by you.")
    expect(stalled).to_have_count(0)
    assert reply.text() == "Hm"


def test_a_reply_that_failed_elsewhere_is_marked_until_it_is_looked_at(person: Person, stage: StagedPagoda):
    person.say("Break, please")
    stage.say("next")
    person.new_chat()
    stage.say("fail", "It broke.")
    row = person.row("Break, please")
    expect(row.locator(".pg-dot")).to_have_attribute("title", "The last reply failed")
    person.go_to("Break, please")
    expect(person.reply().outcome).to_contain_text("It broke.")


def test_a_whole_reply_is_copied_also_without_a_clipboard_interface(room: Room, stage: StagedPagoda):
    person = room.seat(stage.url, permissions=["clipboard-read"])
    read = "window.read = () => clipboard.readText()"
    person.page.add_init_script(
        f"{{ const clipboard = navigator.clipboard; {read};"
        " Object.defineProperty(navigator, 'clipboard', { value: undefined }) }"
    )
    reply = person.open_conversation(stage.new_conversation(max_tokens=20)).say("Write")
    stage.say("next")
    stage.say("token", "It is **bold**, and costs $5.")
    stage.say("finish")
    reply.wait_until("complete").press("Copy")
    assert person.page.evaluate("navigator.clipboard") is None
    assert person.page.evaluate("window.read()") == "It is **bold**, and costs $5."


def _top(of: Locator) -> float:
    return of.evaluate("element => element.getBoundingClientRect().top")


def test_neither_an_answer_nor_formulas_nor_the_end_move_what_is_being_read(room: Room, stage: StagedPagoda):
    person = room.seat(stage.url, viewport={"width": 700, "height": 420})
    reply = person.open_conversation(stage.new_conversation(max_tokens=200)).say("Think well")
    stage.say("next")
    stage.say("token", f"<think>{THOUGHTS}")
    thoughts = reply.article.locator("details")
    thoughts.locator("summary").click()
    read = thoughts.get_by_text("Thought 9:")
    read.evaluate("element => element.scrollIntoView({ block: 'center' })")
    person.page.locator(".pg-scroll").hover()
    person.page.mouse.wheel(0, -40)
    expect(person.page.get_by_role("button", name="Newest")).to_be_visible()
    expect(read).to_be_in_viewport()
    before = _top(read)
    stage.say("token", "</think>So it is.\n\n")
    reply.wait_for_text(9)
    assert _top(read) == before, "the answer begins"
    stage.say("token", FORMULAS)
    expect(reply.article.locator(".pg-math.display")).to_have_count(12)
    assert _top(read) == before, "formulas are set"
    stage.say("finish")
    reply.wait_until("complete")
    expect(reply.article.locator(".pg-timings")).to_be_visible()
    assert _top(read) == before, "the end"


def test_all_conversations_go_out_and_come_back(person: Person, stage: StagedPagoda, tmp_path: Path):
    for prompt in ("First of all", "Second of all"):
        person.new_chat()
        reply = person.say(prompt)
        stage.say("next")
        stage.say("token", f"Answer to {prompt}.")
        stage.say("finish")
        reply.wait_until("complete")

    def export(what: str) -> str:
        person.page.get_by_role("button", name="Import and export").click()
        with person.page.expect_download() as download:
            person.page.get_by_role("menuitem", name=what).click()
        return Path(download.value.path()).read_text("utf-8")

    text = export("Export all as Markdown")
    for prompt in ("First of all", "Second of all"):
        assert prompt in text and f"Answer to {prompt}." in text
    everything = export("Export all as JSON")
    (file := tmp_path / "all.json").write_text(everything, "utf-8")
    there = [row["id"] for row in json.loads(everything)["conversations"] if row["messages"]]
    assert len(there) == 2
    for id in there:
        stage.call("DELETE", f"/api/conversations/{id}")
    expect(person.row("First of all")).to_have_count(0)
    person.page.get_by_role("button", name="Import and export").click()
    with person.page.expect_file_chooser() as chooser:
        person.page.get_by_role("menuitem", name="Import conversations").click()
    chooser.value.set_files(file)
    expect(person.banner).to_contain_text("Imported: 2.")
    person.go_to("First of all")
    assert person.reply().text() == "Answer to First of all."
