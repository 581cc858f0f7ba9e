"""A person and the default model: asking, stopping, asking again."""

import time

from playwright.sync_api import expect

from tests.browser.person import Person, letters, words
from tests.browser.running_pagoda import RunningPagoda, until

STORY = "Tell me a long story about a lighthouse keeper and her dog."


def test_a_reply_streams_in_and_ends_with_what_it_took(person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=30)
    reply = person.open_conversation(chat).say("What is a lighthouse?")
    reply.wait_for_text().wait_until("complete")
    kept = pagoda.conversation(chat)["messages"][1]["attempts"][0]
    assert letters(reply.text()) == letters(kept["text"])
    line = reply.article.locator(".pg-timings").inner_text()
    assert "TTFT" in line and "tok/s" in line and "of experts from memory" in line


def test_a_model_that_is_all_in_memory_is_said_to_gain_nothing_from_more(person: Person, pagoda: RunningPagoda):
    reply = person.open_conversation(pagoda.new_conversation(max_tokens=12)).say("What is a dog?")
    reply.wait_until("complete").press("Why this speed?")
    details = person.page.get_by_role("dialog", name="Why this speed")
    expect(details).to_contain_text("more memory would not make it faster")
    expect(details).not_to_contain_text("GB of memory")


def test_the_bubble_is_there_before_the_server_answers(person: Person, pagoda: RunningPagoda):
    person.open_conversation(pagoda.new_conversation(max_tokens=4))
    held = []
    person.page.route("**/messages", lambda route: held.append(route))
    person.composer.fill("Are you there?")
    person.composer.press("Enter")
    person.prompts.get_by_text("Are you there?").wait_for()
    assert person.composer.input_value() == ""
    until(lambda: person.page.evaluate("true") and held, "the page has sent it")
    assert person.replies.count() == 0
    held[0].continue_()
    person.reply().wait_until("complete")
    assert person.prompts.count() == 1


def test_a_message_that_did_not_arrive_turns_red_and_is_sent_again_once(person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=4)
    person.open_conversation(chat)
    person.page.route("**/messages", lambda route: route.abort())
    person.composer.fill("Can you hear me?")
    person.composer.press("Enter")
    person.page.locator(".pg-prompt.failed").get_by_text("Can you hear me?").wait_for()
    person.page.unroute("**/messages")
    person.page.get_by_role("button", name="Retry").click()
    person.reply().wait_until("complete")
    assert person.page.locator(".pg-prompt.failed").count() == 0
    assert [m["role"] for m in pagoda.conversation(chat)["messages"]] == ["user", "assistant"]


def test_stop_keeps_what_was_written(person: Person, pagoda: RunningPagoda):
    reply = person.open_conversation(pagoda.new_conversation(max_tokens=400)).say(STORY).wait_for_text(20)
    seen = reply.text()
    person.stop()
    reply.wait_until("cancelled")
    assert reply.text().startswith(seen)
    assert "Stopped by you" in reply.outcome.inner_text()


def test_stop_reaches_the_engine_inside_the_layer(person: Person, pagoda: RunningPagoda):
    """A prompt this long is read in one go of many seconds: only a stop inside it can end it at once."""
    chat = pagoda.new_conversation(max_tokens=4)
    reply = person.open_conversation(chat).say("The keeper lit the lamp and waited for the ships. " * 120)
    reply.status.get_by_text("layer").wait_for()
    person.stop()
    reply.wait_until("cancelled")

    def stands_still() -> bool:
        before = pagoda.engine_cpu_seconds()
        time.sleep(0.2)  # a span to measure over, not a wait for something
        return pagoda.engine_cpu_seconds() - before <= 0.02

    until(stands_still, "the engine stands still", patience_s=2)
    attempt = pagoda.conversation(chat)["messages"][1]["attempts"][0]
    assert attempt["state"] == "cancelled"
    assert attempt["progress"]["stage"] == "prefill"
    assert attempt["progress"]["layer"] < attempt["progress"]["layers"]


def test_regenerate_keeps_the_old_version(person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=24, temperature=0.9)
    reply = person.open_conversation(chat).say("Name an animal and say why you like it.").wait_until("complete")
    first = reply.text()
    reply.press("Regenerate")
    reply.version.get_by_text("2/2").wait_for()
    reply.wait_until("complete")
    second = reply.text()
    reply.press("Previous version")
    reply.version.get_by_text("1/2").wait_for()
    assert reply.text() == first
    person.reload()
    assert reply.version.inner_text() == "1/2"
    assert reply.text() == first
    reply.press("Next version")
    reply.version.get_by_text("2/2").wait_for()
    assert reply.text() == second


def test_continue_goes_on_from_the_very_character(person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=12)
    reply = person.open_conversation(chat).say(STORY).wait_until("complete")
    assert "limit" in reply.outcome.inner_text()
    cut = pagoda.conversation(chat)["messages"][1]["attempts"][0]["text"]
    reply.press("Continue")
    reply.version.get_by_text("2/2").wait_for()
    reply.wait_until("complete")
    whole = pagoda.conversation(chat)["messages"][1]["attempts"][1]["text"]
    assert whole.startswith(cut) and len(whole) > len(cut)
    assert letters(reply.text()) == letters(whole)


def test_what_was_typed_and_not_sent_is_there_after_a_reload(person: Person, pagoda: RunningPagoda):
    first, second = pagoda.new_conversation(max_tokens=4), pagoda.new_conversation(max_tokens=4)
    person.open_conversation(first).composer.fill("half a thou")
    person.open_conversation(second).composer.fill("another")
    person.open_conversation(first)
    assert person.composer.input_value() == "half a thou"
    assert words(person.reload().composer.input_value()) == "half a thou"
