"""Waiting: a reply says how far it is and how long that took others, never more than is known."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.running_pagoda import until
from tests.browser.staged_pagoda import StagedPagoda


@pytest.fixture
def person(room: Room, stage: StagedPagoda) -> Person:
    return room.seat(stage.url).open_conversation(stage.new_conversation(max_tokens=200))


def test_a_slow_reply_says_when_it_may_be_there_as_a_range_and_only_once_that_was_measured(
    person: Person, stage: StagedPagoda
):
    reply = person.say("Read this")
    stage.say("next")
    stage.say("progress", "prefill", 0, 100_000, 3, 22, 0, 0)
    expect(reply.status).to_contain_text("Reading your message")
    assert "first token in" not in reply.status.inner_text()
    done = iter(range(100, 100_000, 100))

    def told() -> bool:
        stage.say("progress", "prefill", next(done), 100_000, 22, 22, 60, 40)
        return "first token in" in reply.status.inner_text()

    until(told, "there is an estimate")
    assert re.search(r"first token in [\d.,]+–[\d.,]+ (s|min|h)", reply.status.inner_text())
    assert "100,000 tokens" in reply.status.inner_text()
    stage.say("token", "Once")
    done = iter(range(1, 200))

    def limited() -> bool:
        stage.say("progress", "decode", next(done), 200, 11, 22, 600, 400)
        return "at most" in reply.status.inner_text()

    until(limited, "there is an estimate for the whole")
    expect(reply.status).to_contain_text("60% of experts from memory")
    stage.say("finish")
    reply.wait_until("complete")


def test_after_the_end_the_line_folds_and_tells_why_it_was_this_fast(person: Person, stage: StagedPagoda):
    reply = person.say("Write")
    stage.say("next")
    for done in range(1, 5):
        stage.say("token", f"word{done} ")
        before = f"token {done + 1}"
        stage.say("progress", "decode", done, 200, 5, 22, 60 * done, 40 * done)
        expect(reply.status).to_contain_text(before)
    stage.say("finish")
    reply.wait_until("complete")
    timings = reply.article.locator(".pg-timings")
    expect(timings).to_contain_text(
        re.compile(r"TTFT [\d.]+ m?s · 0\.25 s/token · 4 tok/s · 90% of experts from memory")
    )
    reply.press("Why this speed?")
    details = person.page.get_by_role("dialog", name="Why this speed")
    expect(details).to_be_visible()
    expect(details.locator("[data-plot=seconds] rect")).not_to_have_count(0)
    expect(details.locator("[data-plot=experts] rect.reads")).not_to_have_count(0)
    expect(details).to_contain_text("waiting for the disk")
    split = {"the disk": "0.1 s", "which experts": "50 ms", "computing": "1.2 s", "the rest": "50 ms"}
    for what, time in split.items():
        expect(details.locator(f"dt:has-text('{what}') + dd")).to_have_text(time)
    expect(details.locator("dt:has-text('With 2 GB of memory') + dd")).to_have_text("about 0.24 s/token")
    expect(details.locator("dt:has-text('With 8 GB of memory') + dd")).to_have_text("about 0.23 s/token")
    expect(details).to_contain_text("4 of 7 tokens")
    expect(details).to_contain_text("0.23 s/token instead of 0.25 s")  # 0.1 of 1.4 s went to the disk
    person.page.keyboard.press("Escape")
    expect(details).not_to_be_visible()


def test_the_bar_moves_within_a_token_that_takes_long(person: Person, stage: StagedPagoda):
    reply = person.say("Write")
    stage.say("next")
    stage.say("token", "Slowly")

    def slow() -> bool:
        stage.say("progress", "decode", 1, 200, next(reads) % 22, 22, 60, next(reads))
        return "layer" in reply.status.inner_text()

    reads = iter(range(40, 100_000))
    until(slow, "the token is a slow one")
    for layer in (5, 11, 20):
        stage.say("progress", "decode", 1, 200, layer, 22, 60, 40)
        expect(reply.status).to_contain_text(f"layer {layer} of 22")
        shown = reply.status.locator(".pg-progress i").evaluate("bar => new DOMMatrix(bar.style.transform).a")
        assert abs(shown - layer / 22) < 0.001
    stage.say("finish")


def test_a_screen_reader_hears_of_beginning_and_end_and_nothing_between(person: Person, stage: StagedPagoda):
    person.page.evaluate(
        """() => {
          window.heard = [];
          const status = document.querySelector(".pg-transcript > .pg-unseen");
          const note = () => status.textContent && window.heard.push(status.textContent);
          new MutationObserver(note).observe(status, {childList: true, characterData: true, subtree: true});
        }"""
    )
    reply = person.say("Write")
    stage.say("next")
    for word in ("One ", "two ", "three."):
        stage.say("token", word)
        reply.wait_for_text(len(word))
    expect(reply.article).to_have_attribute("aria-busy", "true")
    stage.say("finish")
    reply.wait_until("complete")
    expect(reply.article).to_have_attribute("aria-busy", "false")
    assert person.page.evaluate("window.heard") == ["The reply begins.", "The reply is complete."]


def test_a_reply_that_failed_on_the_way_can_go_on_from_its_text(person: Person, stage: StagedPagoda):
    reply = person.say("Write")
    stage.say("next")
    stage.say("token", "Half a")
    stage.say("fail", "The engine ran out of memory.")
    expect(reply.outcome).to_contain_text("The engine ran out of memory.")
    reply.press("Continue")
    expect(reply.version).to_have_text("2/2")
    stage.say("next")
    stage.say("token", " sentence.")
    stage.say("finish")
    assert reply.wait_until("complete").text() == "Half a sentence."


def test_a_row_says_that_its_reply_waits(person: Person, stage: StagedPagoda):
    person.say("Runs for long")
    stage.say("next")
    person.open_conversation(stage.new_conversation(max_tokens=9)).say("Waits for it")
    expect(person.row("Waits for it").locator(".pg-dot")).to_contain_text("waiting")
    stage.say("finish")
    stage.say("next")
    expect(person.row("Waits for it").locator(".pg-dot")).not_to_contain_text("waiting")
    stage.say("finish")
    person.reply().wait_until("complete")


def test_loading_is_told_once_not_twice(person: Person, stage: StagedPagoda):
    reply = person.say("Hello")
    stage.say("next")
    stage.say("loading", "download", 41_000_000, 82_000_000)
    expect(person.banner).to_contain_text("41 MB of 82 MB")
    expect(reply.status).to_contain_text("Waiting for the model")
    assert "MB" not in reply.status.inner_text()
    stage.say("ready")
    expect(person.banner).to_have_count(0)
    stage.say("finish")


def impatient(person: Person) -> None:
    person.page.evaluate("localStorage.setItem('pagoda.patience.default', '1')")
    person.reload()


def test_silence_is_said_and_keep_waiting_waits_until_the_next_sign_of_life(person: Person, stage: StagedPagoda):
    impatient(person)
    reply = person.say("Hello?")
    stage.say("next")
    stage.say("token", "I ")
    stalled = reply.article.locator(".pg-stalled")
    expect(stalled).to_contain_text("No sign of life")
    reply.press("Keep waiting")
    expect(stalled).to_have_count(0)
    stage.say("token", "live")
    reply.wait_for_text(6)
    expect(stalled).to_contain_text("No sign of life")
    assert reply.state == "streaming", "nobody but the person ends it"
    stalled.get_by_role("combobox").select_option("never")
    expect(stalled).to_have_count(0)
    assert person.page.evaluate("localStorage.getItem('pagoda.patience.default')") == "never"
    stage.say("finish")
    reply.wait_until("complete")


def test_silence_is_said_also_of_a_reply_that_has_left_the_queue(person: Person, stage: StagedPagoda):
    impatient(person)
    for text in ("First", "Second"):
        person.say(text)
    first, second = person.reply(0), person.reply(1)
    stage.say("next")
    expect(second.status).to_contain_text("in line")
    expect(second.article.locator(".pg-stalled")).to_have_count(0)
    stage.say("token", "One.")
    stage.say("finish")
    first.wait_until("complete")
    stage.say("next")
    expect(second.article.locator(".pg-stalled")).to_contain_text("No sign of life")
    assert first.article.locator(".pg-stalled").count() == 0
    stage.say("finish")


def test_a_silent_reply_can_be_tried_again_in_one_step(person: Person, stage: StagedPagoda):
    impatient(person)
    reply = person.say("Hello?")
    stage.say("next")
    stage.say("token", "Hm")
    expect(reply.article.locator(".pg-stalled")).to_be_visible()
    reply.press("Retry")
    expect(reply.version).to_have_text("2/2")
    stage.say("next")
    stage.say("token", "Here I am.")
    stage.say("finish")
    reply.wait_until("complete")
    assert reply.text() == "Here I am."


def test_how_long_a_source_is_silent_is_still_known_after_a_reload(person: Person, stage: StagedPagoda):
    reply = person.say("Hello?")
    stage.say("next")
    stage.say("token", "Hm")
    reply.wait_for_text(2)
    person.page.evaluate("localStorage.setItem('pagoda.patience.default', '2')")
    until(lambda: person.page.evaluate("performance.now() > 2500"), "some time has passed")
    person.reload()
    expect(person.reply().article.locator(".pg-stalled")).to_be_visible()
    stage.say("finish")


def test_the_shape_of_a_text_stands_there_until_the_first_word(person: Person, stage: StagedPagoda):
    reply = person.say("Write")
    skeleton = reply.article.locator(".pg-skeleton")
    expect(skeleton).to_be_visible()
    stage.say("next")
    stage.say("progress", "prefill", 3, 7, 5, 22, 0, 0)
    expect(reply.status).to_contain_text("Reading your message")
    expect(skeleton).to_be_visible()
    stage.say("token", "Word")
    reply.wait_for_text(4)
    expect(skeleton).to_have_count(0)
    stage.say("finish")
    reply.wait_until("complete")
    expect(skeleton).to_have_count(0)


def test_patience_is_a_models_own(person: Person, stage: StagedPagoda):
    stage.say("also", "slowest")
    person.page.evaluate("localStorage.setItem('pagoda.patience.slowest', '1')")
    impatient(person)
    reply = person.say("Hello?")
    stage.say("next")
    stage.say("token", "I ")
    stalled = reply.article.locator(".pg-stalled")
    stalled.get_by_role("combobox").select_option("120")
    expect(stalled).to_have_count(0)
    other = stage.post("/api/conversations", {"model": "slowest"})["id"]
    silent = person.open_conversation(other).say("And you?")
    expect(silent.article.locator(".pg-stalled")).to_contain_text("No sign of life")
    kept = [
        person.page.evaluate(f"localStorage.getItem('pagoda.patience.{model}')") for model in ("default", "slowest")
    ]
    assert kept == ["120", "1"]
    stage.say("finish")


def test_each_prompt_that_waits_can_be_cancelled_and_the_others_run_in_order(person: Person, stage: StagedPagoda):
    for text in ("First", "Second", "Third", "Fourth"):
        person.say(text)
    first, second, third, fourth = (person.reply(position) for position in range(4))
    stage.say("next")
    stage.say("token", "One.")
    expect(fourth.status).to_contain_text("number 3 in line")
    second.press("Cancel")
    second.wait_until("cancelled")
    expect(second.outcome).to_contain_text("Stopped by you")
    expect(fourth.status).to_contain_text("number 2 in line")
    assert [first.state, third.state] == ["streaming", "sending"]
    third.press("Cancel")
    third.wait_until("cancelled")
    stage.say("finish")
    first.wait_until("complete")
    stage.say("next")
    stage.say("token", "Four.")
    stage.say("finish")
    fourth.wait_until("complete")
    assert [reply.text() for reply in (first, second, third, fourth)] == ["One.", "", "", "Four."]
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["First", "Second", "Third", "Fourth"])
