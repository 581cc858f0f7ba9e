"""Much at once: twenty replies, a million characters, a hundred thousand chunks, in a real browser, real processes."""

import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.chorus import Chorus, part_of
from tests.browser.conftest import Room
from tests.browser.person import Person, words
from tests.browser.running_pagoda import RunningPagoda
from tests.browser.staged_pagoda import StagedPagoda

VOICES = 20
WORDS = 120
MILLION = "".join(f"{n:06} 塔\n" for n in range(111_112))[:1_000_000]  # each line is another: a lost one is seen
FITS = MILLION[: 200_000 - 1] + "."
CHUNKS = 100_000


@pytest.fixture
def chorus() -> Iterator[Chorus]:
    with Chorus(VOICES, WORDS).singing() as chorus:
        yield chorus


@pytest.fixture
def pagoda(tmp_path: Path, chorus: Chorus) -> Iterator[RunningPagoda]:
    upstream = f"choir={chorus.url},concurrency={VOICES},model=one"
    running = RunningPagoda(tmp_path, "--upstream", upstream, "--model", "choir/one")
    yield running
    running.stop()


def chunks_as_they_come(pagoda: RunningPagoda, sent: dict, after: int = -1) -> list[dict]:
    path = f"/api/conversations/{sent['conversation_id']}/chunks?attempt={sent['attempt_id']}&after={after}"
    address = pagoda.url + path
    with urllib.request.urlopen(address, timeout=120) as stream:
        return [json.loads(line[6:]) for line in stream if line.startswith(b"data: ")]


def test_twenty_replies_at_the_same_time_are_whole_and_none_has_a_word_of_another(
    room: Room, pagoda: RunningPagoda, chorus: Chorus
):
    person = room.seat(pagoda.url).open()
    chats = {f"v{n:02}": pagoda.new_conversation(max_tokens=9999) for n in range(VOICES)}
    sent = {voice: pagoda.send(chat, f"Question {voice}") for voice, chat in chats.items()}
    with ThreadPoolExecutor(VOICES) as readers:
        heard = {voice: readers.submit(chunks_as_they_come, pagoda, ids) for voice, ids in sent.items()}
        expect(person.page.locator(".pg-row[data-dot=running]")).to_have_count(VOICES)
        for voice in ("v03", "v17"):
            person.go_to(f"Question {voice}")
            half = words("".join(part_of(voice, WORDS)[: WORDS // 2]))
            expect(person.reply().article.locator(".pg-answer")).to_have_text(half)
        chorus.go_on()
        for voice, chunks in heard.items():
            seen = chunks.result()
            assert [chunk["seq"] for chunk in seen] == list(range(len(seen)))
            assert {chunk["attempt_id"] for chunk in seen} == {sent[voice]["attempt_id"]}
            said = [chunk["data"]["text"] for chunk in seen if chunk["kind"] == "text"]
            assert "".join(said) == "".join(part_of(voice, WORDS))
            assert seen[-1]["data"]["state"] == "complete"
    person.reply().wait_until("complete")
    expect(person.page.locator(".pg-row[data-dot=running]")).to_have_count(0)
    expect(person.page.locator(".pg-row[data-dot=unread]")).to_have_count(VOICES - 1)  # all but the one on screen
    for voice, chat in chats.items():
        (kept,) = pagoda.attempts(chat)
        assert (kept["state"], kept["text"]) == ("complete", "".join(part_of(voice, WORDS)))
        person.go_to(f"Question {voice}")
        expect(person.reply().article.locator(".pg-answer")).to_have_text(words(kept["text"]))
        assert person.replies.count() == 1
    expect(person.page.locator(".pg-row[data-dot]")).to_have_count(0)


def paste(person: Person, text: str) -> None:
    """As a person does, with the clipboard and the keyboard."""
    person.page.evaluate("text => navigator.clipboard.writeText(text)", text)
    person.composer.press("ControlOrMeta+V")


def test_a_million_pasted_characters_are_refused_in_words_and_what_fits_arrives_whole(room: Room, stage: StagedPagoda):
    chat = stage.new_conversation(max_tokens=9)
    person = room.seat(stage.url, permissions=["clipboard-read", "clipboard-write"]).open_conversation(chat)
    hint, send = person.page.locator(".pg-hint"), person.page.get_by_role("button", name="Send")
    person.composer.fill("Read this: ")
    paste(person, MILLION)
    expect(hint).to_contain_text("1,000,000 characters are too many to paste: 200,000 fit into one message.")
    expect(person.composer).to_have_value("Read this: ")
    # The page is not held up by it.
    assert person.say("Are you there?") and person.composer.input_value() == ""
    stage.say("next")
    stage.say("finish", "stop", "Yes.")
    assert person.reply().wait_until("complete").text() == "Yes."
    # One character too many is told, kept over a reload, and can be taken away.
    paste(person, FITS)
    person.composer.press("End")
    person.composer.press("!")
    expect(hint).to_contain_text("200,001 characters are too many: 200,000 fit into one message.")
    expect(send).to_be_disabled()
    person.composer.press("Enter")
    person.reload()
    assert person.composer.input_value() == FITS + "!"
    person.composer.press("ControlOrMeta+End")
    person.composer.press("Backspace")
    expect(send).to_be_enabled()
    person.composer.press("Enter")
    expect(person.replies).to_have_count(2)
    stage.say("next")
    stage.say("finish", "stop", "Long.")
    assert person.reply().wait_until("complete").text() == "Long."
    assert stage.conversation(chat)["messages"][-2]["text"] == FITS
    assert person.prompts.last.locator(".pg-bubble").evaluate("element => element.textContent") == FITS


def test_a_draft_that_the_browser_cannot_keep_is_said_and_still_sent(room: Room, stage: StagedPagoda):
    chat, other = stage.new_conversation(max_tokens=9), stage.new_conversation(max_tokens=9)
    person = room.seat(stage.url).open_conversation(chat)
    person.page.evaluate(
        """() => {  // many long drafts fill what a browser keeps for a site
          for (let size = 1 << 20; size >= 1; size >>= 1)
            for (const storage of [localStorage, sessionStorage])
              for (let n = 0; n < 9; n++) try { storage.setItem(`x${size}.${n}`, "x".repeat(size)); } catch { break; }
        }"""
    )
    text = "Where does this go? " * 500
    person.composer.fill(text)
    hint = person.page.locator(".pg-hint")
    expect(hint).to_contain_text("no room to keep")
    person.page.locator(f".pg-row[data-conversation={other}] a").click()
    expect(hint).not_to_contain_text("no room to keep")
    expect(person.composer).to_have_value("")
    person.page.locator(f".pg-row[data-conversation={chat}] a").click()
    expect(person.composer).to_have_value(text)
    expect(hint).to_contain_text("no room to keep")
    person.composer.press("Enter")
    expect(person.replies).to_have_count(1)
    stage.say("next")
    stage.say("finish", "stop", "Here.")
    assert person.reply().wait_until("complete").text() == "Here."
    assert stage.conversation(chat)["messages"][0]["text"] == text.strip()
    expect(person.composer).to_have_value("")
    expect(hint).not_to_contain_text("no room to keep")


def numbers(text: str) -> list[int]:
    """The numbered words of a reply."""
    return [int(word[1:]) for word in re.findall(r"w\d{6}", text)]


@pytest.mark.timeout(900)
def test_a_reply_of_a_hundred_thousand_chunks_is_whole_on_disk_on_the_wire_and_on_the_page(
    room: Room, stage: StagedPagoda
):
    chat = stage.new_conversation(max_tokens=999_999)
    person = room.seat(stage.url).open_conversation(chat)
    reply = person.say("Count")
    stage.say("next")
    parts = ((f" w{n:06}" if n % 50 else f"\n\nw{n:06}") for n in range(CHUNKS))
    stage.begin("stream", CHUNKS, 1e9, "".join(parts))
    (attempt,) = stage.attempts(chat)
    sent = {"conversation_id": chat, "attempt_id": attempt["id"]}
    live = chunks_as_they_come(stage, sent)
    stage.finish_saying()
    texts = [chunk for chunk in live if chunk["kind"] == "text"]
    assert [chunk["seq"] for chunk in live] == list(range(len(live))) and live[-1]["data"]["state"] == "complete"
    assert numbers("".join(chunk["data"]["text"] for chunk in texts)) == list(range(CHUNKS))
    for after in (0, CHUNKS // 2, len(live) - 2, len(live) - 1):
        assert chunks_as_they_come(stage, sent, after) == live[after + 1 :], f"after {after}"
    (attempt,) = stage.attempts(chat)
    assert attempt["text"] == "".join(chunk["data"]["text"] for chunk in texts)
    reply.wait_until("complete")
    answer = reply.article.locator(".pg-answer")
    assert numbers(answer.evaluate("element => element.textContent")) == list(range(CHUNKS)), "the tab that watched"
    person.reload()
    answer = person.reply().wait_until("complete").article.locator(".pg-answer")
    expect(answer.locator(".pg-block").last).to_contain_text(f"w{CHUNKS - 1:06}")
    expect(answer.locator(".pg-block").first).to_contain_text("w000000")  # it opens at its end; the rest comes behind
    assert numbers(answer.evaluate("element => element.textContent")) == list(range(CHUNKS)), "the tab that came later"


STORY = "Every **word** of it goes by, and `none` stays longer than the page needs it.\n\n" * 60
WARM, ROUNDS = 15, 10  # the page keeps twelve conversations at hand: warm is when it gives back the first of them


def kept_by(person: Person) -> dict[str, float]:
    """What the tab holds once its garbage is collected: bytes of JavaScript, nodes, listeners."""
    session = person.page.context.new_cdp_session(person.page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    found = {row["name"]: row["value"] for row in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return {name: found[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")}


def test_a_tab_that_stays_open_all_day_keeps_no_more_than_it_needs(room: Room, stage: StagedPagoda):
    person = room.seat(stage.url).open()
    kept = []
    for _ in range(WARM + ROUNDS):
        chat = stage.new_conversation(max_tokens=9999)
        person.page.locator(f".pg-row[data-conversation={chat}] a").click()
        expect(person.replies).to_have_count(0)
        reply = person.say("Tell me")
        stage.say("next")
        stage.say("token", STORY)
        stage.say("finish")
        reply.wait_until("complete")
        kept.append(kept_by(person))
    warm, now = kept[WARM - 1], kept[-1]
    # A conversation more is a row in the sidebar: 16 nodes and 3 listeners. A reply that stayed would be hundreds.
    assert now["JSHeapUsedSize"] - warm["JSHeapUsedSize"] < 100_000 * ROUNDS, kept
    assert now["Nodes"] - warm["Nodes"] < 40 * ROUNDS, kept
    assert now["JSEventListeners"] - warm["JSEventListeners"] < 10 * ROUNDS, kept
