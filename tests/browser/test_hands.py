"""Fingers: Enter, Enter twice, Enter while an input method is at work, and a phone."""

from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.running_pagoda import RunningPagoda


def test_double_enter_is_one_message(person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=4)
    person.open_conversation(chat).composer.fill("Only once")
    person.page.evaluate(
        """() => {
          const field = document.querySelector("textarea");
          const enter = () => new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true});
          field.dispatchEvent(enter());
          field.dispatchEvent(enter());
        }"""
    )
    person.composer.press("Enter")
    person.reply().wait_until("complete")
    expect(person.prompts).to_have_text(["Only once"])
    assert [m["role"] for m in pagoda.conversation(chat)["messages"]] == ["user", "assistant"]


def test_shift_enter_breaks_the_line(person: Person):
    person.open().composer.fill("one")
    person.composer.press("Shift+Enter")
    person.composer.press_sequentially("two")
    expect(person.composer).to_have_value("one\ntwo")
    expect(person.prompts).to_have_count(0)


def test_enter_while_composing_chinese_does_not_send(person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=4)
    person.open_conversation(chat).composer.focus()
    devtools = person.page.context.new_cdp_session(person.page)
    devtools.send("Input.imeSetComposition", {"text": "ni hao", "selectionStart": 6, "selectionEnd": 6})
    # An input method takes the key for itself: the page hears of it, but no character follows.
    enter = {"type": "rawKeyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
    devtools.send("Input.dispatchKeyEvent", enter)
    devtools.send("Input.insertText", {"text": "你好"})
    # Safari reports the Enter that ends a composition after it, with the key code of an input method.
    devtools.send("Input.dispatchKeyEvent", {**enter, "windowsVirtualKeyCode": 229})
    expect(person.composer).to_have_value("你好")
    expect(person.prompts).to_have_count(0)
    person.composer.press("Enter")
    expect(person.prompts).to_have_text(["你好"])
    person.reply().wait_until("complete")


def test_a_phone_has_a_usable_drawer(room: Room, pagoda: RunningPagoda):
    person = room.seat(pagoda.url, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    chat = pagoda.new_conversation(max_tokens=4)
    person.open_conversation(chat).composer.fill("From the phone")
    person.page.get_by_role("button", name="Send").tap()
    person.reply().wait_until("complete")
    assert person.page.evaluate("document.documentElement.scrollWidth") == 360
    expect(person.row("From the phone")).not_to_be_visible()
    person.page.get_by_role("button", name="Show conversations").tap()
    expect(person.row("From the phone")).to_be_visible()
    person.page.get_by_role("button", name="New chat").tap()
    expect(person.row("From the phone")).not_to_be_visible()
    expect(person.prompts).to_have_count(0)
    person.page.get_by_role("button", name="Show conversations").tap()
    person.row("From the phone").get_by_role("link").tap()
    expect(person.prompts).to_have_text(["From the phone"])


def test_enter_on_glass_breaks_the_line_and_the_button_sends(room: Room, pagoda: RunningPagoda):
    person = room.seat(pagoda.url, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    person.open_conversation(pagoda.new_conversation(max_tokens=4))
    expect(person.composer).to_have_attribute("enterkeyhint", "enter")
    person.composer.press_sequentially("one")
    person.composer.press("Enter")
    person.composer.press_sequentially("two")
    expect(person.composer).to_have_value("one\ntwo")
    person.page.get_by_role("button", name="Send").tap()
    expect(person.prompts).to_have_text(["one\ntwo"])
    person.reply().wait_until("complete")


def test_rows_that_are_not_open_are_renamed_and_deleted_with_a_thumb(room: Room, pagoda: RunningPagoda):
    person = room.seat(pagoda.url, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    chat = pagoda.new_conversation(max_tokens=2)
    pagoda.call("PATCH", f"/api/conversations/{chat}", {"title": "Far from here"})
    person.open()
    person.page.get_by_role("button", name="Show conversations").tap()
    more = person.page.get_by_role("button", name="Options for “Far from here”")
    box = more.bounding_box()
    assert box is not None and round(box["width"], 2) >= 44 and round(box["height"], 2) >= 44
    more.tap()
    person.page.get_by_role("menuitem", name="Rename").tap()
    person.page.get_by_label("Title of the conversation").fill("Renamed by thumb")
    person.page.keyboard.press("Enter")
    expect(person.row("Renamed by thumb")).to_be_visible()
    person.page.get_by_role("button", name="Options for “Renamed by thumb”").tap()
    person.page.get_by_role("menuitem", name="Delete").tap()
    expect(person.row("Renamed by thumb")).to_have_count(0)


def test_language_and_appearance_are_those_of_every_tab(room: Room, person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=2)
    other = room.second_tab(person).open_conversation(chat)
    other.say("Hello").wait_until("complete")
    announcement = other.page.locator(".pg-transcript > .pg-unseen")
    expect(announcement).to_have_text("The reply is complete.")
    person.open().page.get_by_label("Language").select_option("zh")
    person.page.get_by_label("外观").select_option("dark")
    expect(other.page.get_by_role("button", name="新对话")).to_be_visible()
    expect(other.page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(announcement).not_to_have_text("The reply is complete.")


def test_the_page_speaks_chinese_to_a_chinese_browser_and_english_on_request(room: Room, pagoda: RunningPagoda):
    person = room.seat(pagoda.url, locale="zh-CN").open()
    expect(person.page.get_by_role("button", name="新对话")).to_be_visible()
    person.page.get_by_label("语言").select_option("en")
    expect(person.page.get_by_role("button", name="New chat")).to_be_visible()
    person.reload()
    expect(person.page.get_by_role("button", name="New chat")).to_be_visible()


def test_dark_follows_the_system_until_the_person_chooses(room: Room, pagoda: RunningPagoda):
    person = room.seat(pagoda.url, color_scheme="dark").open()
    page = person.page.locator("html")
    expect(page).to_have_attribute("data-theme", "dark")
    person.page.get_by_label("Appearance").select_option("light")
    expect(page).to_have_attribute("data-theme", "light")
    person.reload()
    expect(page).to_have_attribute("data-theme", "light")
