"""The rules by which a delta may change the page (DESIGN §2, rule 3), and streaming markdown, in the browser itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.running_pagoda import RunningPagoda, give_model
from tests.browser.test_hostile_text import write_conversation

RICH = """\
# Title

A paragraph with **bold**, `code` and a [link](https://example.org).

- one
  - nested

- two, after a blank line

1. first
2. second

```python
def f(x):
    return x  # <b>
```

| a | b |
|---|---|
| 1 | 2 |

> quoted
> twice

- [x] done
- [ ] to do
  - nested [ ] is no task

~~gone~~ and $a^2 + b^2 = c^2$ and \\(x\\).

$$
\\int_0^1 x \\, dx
= \\frac{1}{2}
$$

The end, in 中文 and 🏯.
"""


@pytest.fixture(scope="module")
def pagoda(tmp_path_factory: pytest.TempPathFactory, default_data_dir: Path) -> Iterator[RunningPagoda]:
    data_dir = tmp_path_factory.mktemp("data")
    give_model(data_dir, default_data_dir)
    write_conversation(data_dir, "c_one", "The text of one.")
    write_conversation(data_dir, "c_two", "The text of two.")
    running = RunningPagoda(data_dir)
    yield running
    running.stop()


@pytest.fixture
def person(room: Room, pagoda: RunningPagoda) -> Person:
    return room.seat(pagoda.url).open_conversation("c_one")


def apply(person: Person, *deltas: dict[str, Any]) -> dict[str, Any]:
    """What becomes of an attempt with the text "Hé🏯" and last_seq 2 when these deltas arrive."""
    return person.page.evaluate(
        """async deltas => {
          const { applyDelta, newAttempt } = await import("pagoda/attempt.js");
          const attempt = newAttempt({id: "a", text: "Hé🏯", state: "streaming", last_seq: 2, created_at: 0});
          const outcomes = deltas.map(delta => applyDelta(attempt, delta));
          return {text: attempt.text, state: attempt.state, seq: attempt.lastSeq, outcomes};
        }""",
        [{"text": "", "progress": None, "state": None, **delta} for delta in deltas],
    )


def test_what_follows_is_added(person: Person):
    after = apply(person, {"first": 3, "last": 4, "offset": 3, "text": " there"})
    assert (after["text"], after["seq"], after["outcomes"]) == ("Hé🏯 there", 4, ["applied"])


def test_what_is_known_already_changes_nothing(person: Person):
    after = apply(person, {"first": 1, "last": 2, "offset": 1, "text": "é🏯"})
    assert (after["text"], after["outcomes"]) == ("Hé🏯", ["stale"])


def test_an_overlap_is_trimmed_by_characters_not_by_code_units(person: Person):
    after = apply(person, {"first": 2, "last": 3, "offset": 2, "text": "🏯🏯!"})
    assert (after["text"], after["outcomes"]) == ("Hé🏯🏯!", ["applied"])


def test_a_gap_changes_nothing_and_is_told(person: Person):
    after = apply(person, {"first": 5, "last": 5, "offset": 9, "text": "late"})
    assert (after["text"], after["seq"], after["outcomes"]) == ("Hé🏯", 2, ["gap"])


def test_nothing_comes_after_the_end(person: Person):
    end = {"first": 3, "last": 3, "offset": 3, "state": {"state": "cancelled", "reason": "stopped_by_person"}}
    after = apply(person, end, {"first": 4, "last": 4, "offset": 3, "text": "late"})
    assert (after["text"], after["state"], after["outcomes"]) == ("Hé🏯", "cancelled", ["applied", "stale"])


def call_transcript(person: Person, method: str, *arguments: Any) -> None:
    """Call the component as the server does."""
    person.page.evaluate(
        "([method, args]) => runMethod(Number(document.querySelector('.pg-transcript').id.slice(1)), method, args)",
        [method, list(arguments)],
    )


def test_a_slow_load_that_arrives_after_the_person_moved_on_is_dropped(person: Person, pagoda: RunningPagoda):
    late = {**pagoda.conversation("c_one"), "now": 0}
    person.page.evaluate("history.pushState(null, '', '/c/c_two'); history.pushState(null, '', '/'); history.back()")
    expect(person.reply().article).to_contain_text("The text of two.")
    call_transcript(person, "show", late, 1)
    expect(person.reply().article).to_contain_text("The text of two.")
    call_transcript(person, "show", {**pagoda.conversation("c_two"), "messages": [], "now": 0}, 1)
    expect(person.reply().article).to_contain_text("The text of two.")


def test_a_delta_of_another_conversation_never_touches_this_one(person: Person):
    expect(person.reply().article).to_contain_text("The text of one.")
    foreign = {"conversation_id": "c_two", "message_id": "c_one_m1", "attempt_id": "c_one_a", "first": 2, "last": 2}
    call_transcript(person, "deltas", [{**foreign, "offset": 16, "text": "WRONG", "progress": None, "state": None}])
    assert person.reply().text() == "The text of one."


def test_text_streamed_in_small_pieces_ends_as_text_parsed_at_once_and_closed_blocks_stay(person: Person):
    result = person.page.evaluate(
        """async source => {
          const { Prose } = await import("pagoda/prose.js");
          const [streamed, whole] = [document.createElement("div"), document.createElement("div")];
          const prose = new Prose(streamed);
          const characters = [...source];
          const seen = new Map();
          let replaced = 0;
          for (let end = 1; end <= characters.length; end += 3) {
            prose.write(characters.slice(0, end).join(""), false);
            for (let index = 0; index < prose.settledBlocks; index += 1) {
              const child = streamed.children[index].firstElementChild;
              if (seen.has(index) && seen.get(index) !== child) replaced += 1;
              seen.set(index, child);
            }
          }
          prose.write(source, true);
          new Prose(whole).write(source, true);
          return {same: streamed.innerHTML === whole.innerHTML, replaced, settled: seen.size, html: whole.innerHTML};
        }""",
        RICH,
    )
    assert result["same"]
    assert result["replaced"] == 0
    assert result["settled"] >= 6
    assert "<table>" in result["html"] and 'class="hljs-' in result["html"]


LONG = "\n\n".join(RICH.replace("Title", f"Part {part}") for part in range(60))


def test_a_long_text_comes_in_slices_and_is_the_same_as_at_once(person: Person):
    result = person.page.evaluate(
        """async source => {
          const { Prose, finishAll } = await import("pagoda/prose.js");
          const { clean, renderBlocks } = await import("pagoda/markdown.js");
          const root = document.createElement("div");
          const html = () => [...root.querySelectorAll(".pg-block")].map(block => block.innerHTML);
          const whole = renderBlocks(source).map(block => clean(block.html));
          const prose = new Prose(root);
          prose.write(source, true);
          const first = html().length;
          while (prose.work) await new Promise(requestAnimationFrame);
          const plain = list => list.map(one => one.replace(/<span class="pg-math[^]*?(?=<\\/p>|$)/g, "")).join("|");
          const same = plain(html()) === plain(whole);
          prose.write(source + "\\n\\nAnd more.", false);
          finishAll();
          const grown = html().length - whole.length;
          prose.write("Short.", true);
          return {first, count: whole.length, same, grown, short: root.textContent};
        }""",
        LONG,
    )
    assert result["same"] and result["grown"] == 1 and result["short"].strip() == "Short."
    assert result["first"] < result["count"]
