"""Hands: shortcuts and their sheet, which key sends, text files in a message; large enough to see and to touch."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.staged_pagoda import StagedPagoda
from tests.browser.written import write_turns


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory):
    data_dir = tmp_path_factory.mktemp("data")
    write_turns(data_dir, "c_one", [("One", "The first.")])
    write_turns(data_dir, "c_two", [("Two", "The second.")])
    running = StagedPagoda(data_dir)
    yield running
    running.stop()


@pytest.fixture
def person(room: Room, stage: StagedPagoda) -> Person:
    return room.seat(stage.url)


def test_a_question_mark_shows_the_sheet_but_not_while_one_writes(person: Person):
    person.open_conversation("c_one")
    sheet = person.page.get_by_role("dialog", name="Keyboard")
    person.composer.press("?")
    expect(person.composer).to_have_value("?")
    expect(sheet).not_to_be_visible()
    person.composer.fill("")
    person.page.locator(".pg-scroll").focus()
    person.page.keyboard.press("?")
    expect(sheet).to_be_visible()
    expect(sheet).to_contain_text("Stop the reply")
    person.page.keyboard.press("Escape")
    expect(sheet).not_to_be_visible()


def test_conversations_are_walked_and_begun_without_a_mouse(person: Person):
    links = person.open_conversation("c_one").rows.get_by_role("link")
    order = [link.get_attribute("href") for link in links.all()]
    at = order.index("/c/c_one")
    key, back = ("Alt+ArrowDown", "Alt+ArrowUp") if at + 1 < len(order) else ("Alt+ArrowUp", "Alt+ArrowDown")
    other = order[at + 1] if at + 1 < len(order) else order[at - 1]
    person.page.keyboard.press(key)
    person.page.wait_for_url(f"**{other}")
    person.page.keyboard.press(back)
    person.page.wait_for_url("**/c/c_one")
    expect(person.prompts).to_have_text(["One"])
    person.page.keyboard.press("Control+Shift+O")
    expect(person.prompts).to_have_count(0)
    expect(person.composer).to_be_focused()
    person.page.get_by_label("Language").focus()
    person.page.keyboard.press("Shift+Escape")
    expect(person.composer).to_be_focused()


def test_escape_stops_the_reply_that_is_written(person: Person, stage: StagedPagoda):
    reply = person.open_conversation(stage.new_conversation(max_tokens=9)).say("Go")
    stage.say("next")
    stage.say("token", "On and on")
    reply.wait_for_text(5)
    person.page.get_by_label("Language").focus()
    person.page.keyboard.press("Escape")
    person.composer.focus()
    assert reply.state == "streaming", "Escape in the sidebar is about the sidebar"
    person.page.keyboard.press("Escape")
    reply.wait_until("cancelled")
    assert reply.text() == "On and on"


def test_editing_and_searching_take_no_mouse(person: Person, room: Room, stage: StagedPagoda):
    person.open_conversation("c_one")
    person.composer.focus()
    person.page.keyboard.press("ArrowUp")
    expect(person.page.get_by_label("Edited message")).to_have_value("One")
    expect(person.page.get_by_label("Edited message")).to_be_focused()
    person.page.keyboard.press("Escape")
    person.page.keyboard.press("Control+k")
    expect(person.page.get_by_label("Search all conversations")).to_be_focused()
    narrow = room.seat(stage.url, viewport={"width": 500, "height": 700}).open_conversation("c_one")
    narrow.page.keyboard.press("Control+k")
    expect(narrow.page.get_by_label("Search all conversations")).to_be_focused()


def test_stop_ends_what_is_written_not_what_waits_and_leaves_nothing_to_copy(person: Person, stage: StagedPagoda):
    person.open_conversation(stage.new_conversation(max_tokens=9))
    for text in ("First", "Second", "Third"):
        person.say(text)
    first, second, third = (person.reply(position) for position in range(3))
    stage.say("next")
    expect(second.status).to_contain_text("number 1 in line")
    expect(third.status).to_contain_text("number 2 in line")
    second.press("Cancel")
    second.wait_until("cancelled")
    expect(third.status).to_contain_text("number 1 in line")
    person.stop()
    person.reply(0).wait_until("cancelled")
    expect(first.article.get_by_role("button", name="Copy", exact=True)).to_have_count(0)
    stage.say("next")
    expect(third.status).to_contain_text("first sign")
    stage.say("token", "Third it is.")
    stage.say("finish")
    assert third.wait_until("complete").text() == "Third it is."


def test_a_page_has_one_main_part(person: Person):
    person.open_conversation("c_one")
    assert person.page.get_by_role("main").count() == 1


def test_enter_can_be_set_to_break_lines(person: Person, stage: StagedPagoda):
    person.open_conversation(stage.new_conversation(max_tokens=9))
    person.page.get_by_role("button", name="Keyboard").click()
    person.page.get_by_label("Sending a message").select_option("command")
    person.page.keyboard.press("Escape")
    person.reload()
    person.composer.press_sequentially("one")
    person.composer.press("Enter")
    person.composer.press_sequentially("two")
    expect(person.composer).to_have_value("one\ntwo")
    person.composer.press("Control+Enter")
    expect(person.prompts).to_have_text(["one\ntwo"])
    stage.say("next")
    stage.say("finish")


def drop(person: Person, name: str, content: list[int], event: str = "drop") -> None:
    person.page.evaluate(
        """([name, content, kind]) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(content)], name));
          const options = {bubbles: true, cancelable: true};
          const event = kind === "drop" ? new DragEvent("drop", {...options, dataTransfer: data})
                                        : new ClipboardEvent("paste", {...options, clipboardData: data});
          document.querySelector(".pg-composer textarea").dispatchEvent(event);
        }""",
        [name, content, event],
    )


def test_text_files_are_dropped_or_pasted_into_a_message_and_others_refused(person: Person, stage: StagedPagoda):
    chat = stage.new_conversation(max_tokens=9)
    person.open_conversation(chat)
    drop(person, "notes.md", list(b"# Sea\n```\ntide\n```\n"))
    drop(person, "poem.txt", list("灯塔\r\n".encode()), "paste")
    files = person.page.get_by_role("list", name="Files of this message").get_by_role("listitem")
    expect(files).to_have_count(2)
    expect(files.first).to_contain_text("19 B")
    drop(person, "cat.png", [0x89, 0x50, 0x4E, 0x47, 0, 255])
    expect(person.page.locator(".pg-hint")).to_contain_text("cat.png is no text file")
    expect(files).to_have_count(2)
    person.composer.fill("Read these")
    person.composer.press("Enter")
    stage.say("next")
    stage.say("finish")
    expect(files).to_have_count(0)
    sent = stage.conversation(chat)["messages"][0]["text"]
    assert sent == "Read these\n\nnotes.md\n````\n# Sea\n```\ntide\n```\n````\n\npoem.txt\n```\n灯塔\n```"


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour, over) => {
    canvas.fillStyle = over ?? "#fff"; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = colour => colour.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return rgb(colour, behind.page);
    }
    return rgb(behind.page);
  };
  behind.page = getComputedStyle(document.body).backgroundColor;
  const poor = [];
  for (const element of document.querySelectorAll("main *, form *, .pg-drawer *, dialog *")) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest(":disabled, .pg-unseen, option, .katex")) continue;
    const pair = [light(rgb(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    const words = element.textContent.trim().slice(0, 30);
    if (ratio < 4.5) poor.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)} ${words}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_has_enough_contrast(room: Room, stage: StagedPagoda, scheme: str):
    person = room.seat(stage.url, color_scheme=scheme, reduced_motion="reduce").open_conversation("c_one")
    expect(person.reply(0).article).to_contain_text("The first.")
    assert person.page.evaluate(CONTRAST) == []
    person.page.evaluate("document.activeElement?.blur()")
    person.page.keyboard.press("?")
    expect(person.page.locator("#pg-keys")).to_be_visible()
    assert person.page.evaluate(CONTRAST) == []
    person.page.keyboard.press("Escape")
    for name, dialog in {"How it answers": "How it answers", "Choose another": "Which model"}.items():
        person.page.get_by_role("button", name=name).click()
        expect(person.page.get_by_role("dialog", name=dialog)).to_be_visible()
        assert person.page.evaluate(CONTRAST) == [], name
        person.page.keyboard.press("Escape")
        expect(person.page.get_by_role("dialog", name=dialog)).not_to_be_visible()
    reply = person.say("Why so?")
    stage.say("next")
    for done in range(1, 4):
        stage.say("token", "Because. ")
        stage.say("progress", "decode", done, 9, 5, 22, 60 * done, 40 * done)
        expect(reply.status).to_contain_text(f"token {done + 1}")
    assert person.page.evaluate(CONTRAST) == [], "while it is written"
    stage.say("finish")
    reply.wait_until("complete")
    reply.press("Why this speed?")
    expect(person.page.get_by_role("dialog", name="Why this speed").locator(".pg-larger")).to_be_visible()
    assert person.page.evaluate(CONTRAST) == [], "why this speed"
    person.page.keyboard.press("Escape")
    person.page.get_by_role("button", name="Import and export").click()
    expect(person.page.get_by_role("menuitem", name="Import conversations")).to_be_visible()
    assert person.page.evaluate(CONTRAST) == [], "import and export"
    person.page.keyboard.press("Escape")
    refused = {"name": "holiday.json", "mimeType": "application/json", "buffer": b"{}"}
    person.page.get_by_label("Import conversations").set_input_files(refused)  # type: ignore[arg-type]
    expect(person.banner).to_contain_text("neither an export of Pagoda nor")
    assert person.page.evaluate(CONTRAST) == [], "what an import says"


TOO_SMALL_TO_TOUCH = """() => [...document.querySelectorAll("button, textarea, input, select, summary, a[href]")]
  .filter(element => element.checkVisibility() && !element.closest("[inert], .pg-unseen, .pg-answer"))
  .map(element => [element.tagName + "." + element.className, element.getBoundingClientRect()])
  .filter(([, box]) => box.right > 0 && box.left < innerWidth) // a drawer that is closed stands beside the page
  .filter(([, box]) => Math.min(box.width, box.height) < 43.999 /* layout counts in sixty-fourths */)
  .map(([name, box]) => `${name} ${box.width} x ${box.height}`)"""


def test_everything_to_touch_is_large_enough_on_a_phone(room: Room, stage: StagedPagoda):
    phone = {"width": 360, "height": 740}
    person = room.seat(stage.url, viewport=phone, has_touch=True, is_mobile=True, reduced_motion="reduce")
    page = person.open_conversation("c_one").page
    assert page.evaluate(TOO_SMALL_TO_TOUCH) == []
    for name, dialog in {"How it answers": "How it answers", "Choose another": "Which model"}.items():
        page.get_by_role("button", name=name).tap()
        expect(page.get_by_role("dialog", name=dialog)).to_be_visible()
        assert page.evaluate(TOO_SMALL_TO_TOUCH) == [], name
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog", name=dialog)).not_to_be_visible()
    page.get_by_role("button", name="Show conversations").tap()
    expect(page.get_by_role("button", name="New chat")).to_be_in_viewport(ratio=1)
    assert page.evaluate(TOO_SMALL_TO_TOUCH) == [], "the drawer"
    person.rows.first.get_by_role("button").first.tap()
    expect(page.get_by_role("menuitem").first).to_be_visible()
    assert page.evaluate(TOO_SMALL_TO_TOUCH) == [], "the menu of a row"


def test_nothing_moves_for_whom_motion_is_too_much(room: Room, stage: StagedPagoda):
    person = room.seat(stage.url, reduced_motion="reduce").open_conversation(stage.new_conversation(max_tokens=9))
    person.say("Go")
    stage.say("next")
    assert person.page.evaluate("document.getAnimations().filter(a => a.playState === 'running').length") == 0
    stage.say("finish")
