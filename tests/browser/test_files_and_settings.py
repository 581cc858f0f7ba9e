"""Conversations are saved to files and read back; how the model answers is set for one conversation."""

import json
from pathlib import Path

from playwright.sync_api import expect

from tests.backend.test_transfer import chatgpt
from tests.browser.person import Person
from tests.browser.running_pagoda import RunningPagoda


def test_a_conversation_is_exported_deleted_and_imported_again(person: Person, pagoda: RunningPagoda, tmp_path: Path):
    chat = pagoda.new_conversation(max_tokens=2)
    person.open_conversation(chat).say("Keep me safe").wait_until("complete")
    with person.page.expect_download() as download:
        person.choose("Keep me safe", "Export as Markdown")
    assert download.value.suggested_filename == "Keep me safe.md"
    assert "## You\n\nKeep me safe" in Path(download.value.path()).read_text("utf-8")
    with person.page.expect_download() as download:
        person.choose("Keep me safe", "Export as JSON")
    copy = json.loads(Path(download.value.path()).read_text("utf-8"))
    copy["conversations"][0]["id"] = "c_copy"
    copy["conversations"][0]["title"] = "A copy"
    for message in copy["conversations"][0]["messages"]:
        for key in ("id", "parent"):
            message[key] = message[key] and f"{message[key]}_copy"
        for attempt in message["attempts"]:
            attempt["id"] += "_copy"
    file = tmp_path / "copy.json"
    file.write_text(json.dumps(copy), "utf-8")
    for words in ("Imported: 1. Known already: 0.", "Imported: 0. Known already: 1."):
        person.page.get_by_role("button", name="Import and export").click()
        with person.page.expect_file_chooser() as chooser:
            person.page.get_by_role("menuitem", name="Import conversations").click()
        chooser.value.set_files(file)
        expect(person.banner).to_contain_text(words)
    person.go_to("A copy")
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["Keep me safe"])


def test_conversations_of_chatgpt_are_read_and_gone_on_with(person: Person, tmp_path: Path):
    person.open()
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([chatgpt("of_a_page")]), "utf-8")
    person.page.get_by_label("Import conversations").set_input_files(file)
    expect(person.banner).to_contain_text("Imported: 1. Known already: 0.")
    person.go_to("From elsewhere")
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["Hello", "Thanks"])
    expect(person.page.locator(".pg-answer").first).to_have_text("Hi there")
    person.say("And now here").wait_until("complete")
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["Hello", "Thanks", "And now here"])


def test_a_file_of_something_else_is_refused_in_words(person: Person, tmp_path: Path):
    person.open()
    file = tmp_path / "holiday.json"
    file.write_text('{"photos": []}')
    person.page.get_by_label("Import conversations").set_input_files(file)
    expect(person.banner).to_contain_text("neither an export of Pagoda nor")


def test_how_it_answers_is_set_before_the_first_message_and_later(person: Person, pagoda: RunningPagoda):
    person.open()
    person.page.get_by_role("button", name="How it answers").click()
    person.page.get_by_label("System prompt").fill("You are a lighthouse keeper.")
    presets = {"Creative": ("1.1", "1", "1.05"), "Balanced": ("0.7", "0.95", ""), "Precise": ("0.2", "0.9", "")}
    for preset, values in presets.items():
        person.page.get_by_role("button", name=preset).click()
        expect(person.page.get_by_role("button", name=preset)).to_have_attribute("aria-pressed", "true")
        for field, value in zip(("Temperature", "Top p", "Repetition penalty"), values, strict=True):
            expect(person.page.get_by_label(field)).to_have_value(value)
    person.page.get_by_label("Most tokens in a reply").fill("3")
    person.page.get_by_role("button", name="Save").click()
    person.say("Who are you?").wait_until("complete")
    chat = person.page.url.rsplit("/", 1)[1]
    stored = pagoda.conversation(chat)
    assert stored["system"] == "You are a lighthouse keeper."
    assert stored["sampling"] == {"temperature": 0.2, "top_p": 0.9, "max_tokens": 3}
    assert stored["messages"][1]["attempts"][0]["usage"]["completion_tokens"] == 3
    person.page.get_by_role("button", name="How it answers").click()
    person.page.get_by_role("button", name="Model’s own").click()
    person.page.get_by_label("Top p").fill("0")
    person.page.get_by_role("button", name="Save").click()
    assert pagoda.conversation(chat)["sampling"] == {"temperature": 0.2, "top_p": 0.9, "max_tokens": 3}
    person.page.get_by_label("Top p").fill("")
    person.page.get_by_role("button", name="Save").click()
    expect(person.page.get_by_role("dialog")).to_have_count(0)
    assert pagoda.conversation(chat)["sampling"] == {"max_tokens": 3}
