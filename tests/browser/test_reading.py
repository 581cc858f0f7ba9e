"""Reading: what markdown and TeX mean in a reply, and that nothing of it runs or asks for anything."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.staged_pagoda import StagedPagoda
from tests.browser.written import write_turns

RICH = (
    r"""- [x] bought bread
- [ ] call the lighthouse
  1. by radio
  2. or by lamp

~~old~~ new, with a note[^1] and another[^2].

[^1]: The first note.
[^2]: The second, with *stress*.

Euler: $e^{i\pi} + 1 = 0$, also \(a < b\), and display:

$$
\int_0^1 x \, dx
= \frac{1}{2}
$$

\[ \sum_{k=1}^n k = \frac{n(n+1)}{2} \]

It costs $5 and $6, or $7/$8, not $9, or 10$ more. A `$code$` stays code.

Wrong: $\frac{$ and $\notacommand{x}$ stand as they are. $\href{javascript:window.broken=1}{x}$

| left | right |
|:--|--:|
| a | 1 |

بسم الله، مرحبا

```text
"""
    + "a line that is far too long for any phone " * 12
    + "\n```\n"
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory):
    data_dir = tmp_path_factory.mktemp("data")
    write_turns(data_dir, "c_rich", [("Show me", RICH)])
    running = StagedPagoda(data_dir)
    yield running
    running.stop()


@pytest.fixture
def person(room: Room, stage: StagedPagoda) -> Person:
    return room.seat(stage.url, viewport={"width": 360, "height": 740}).open_conversation("c_rich")


def test_a_reply_reads_as_its_writer_meant_it(person: Person):
    answer = person.reply().article.locator(".pg-answer")
    expect(answer.locator(".pg-task .pg-box")).to_have_text(["☑", "☐"])
    expect(answer.locator("ul > li > ol > li")).to_have_text(["by radio", "or by lamp"])
    expect(answer.locator("td").last).to_have_css("text-align", "right")
    expect(answer.locator("s")).to_have_text("old")
    expect(answer.locator("sup .pg-note")).to_have_text(["1", "2"])
    expect(answer.locator(".pg-notes li")).to_have_text(["The first note. ↩", "The second, with stress. ↩"])
    expect(answer.locator("[dir=auto]").filter(has_text="مرحبا")).to_have_css("direction", "rtl")
    assert person.page.evaluate("document.documentElement.scrollWidth") == 360, "long lines scroll inside their block"
    wide = "e => e.scrollWidth > e.clientWidth"
    assert answer.locator("pre").evaluate(wide)


def test_a_footnote_leads_to_its_note_and_back(person: Person):
    answer = person.reply().article.locator(".pg-answer")
    answer.locator("sup .pg-note").nth(1).click()
    note = answer.locator(".pg-notes li").nth(1)
    expect(note).to_be_focused()
    expect(note).to_be_in_viewport()
    note.get_by_role("button", name="↩").click()
    expect(answer.locator("sup .pg-note").nth(1)).to_be_focused()
    assert person.page.url.endswith("/c/c_rich")


def test_formulas_are_set_and_prices_are_left_alone(person: Person):
    answer = person.reply().article.locator(".pg-answer")
    expect(answer.locator(".katex")).to_have_count(5)  # the link is set as its name, and leads nowhere
    expect(answer.locator(".katex-display")).to_have_count(2)
    expect(answer).to_contain_text("It costs $5 and $6, or $7/$8, not $9, or 10$ more.")
    expect(answer.locator("code").filter(has_text="$code$")).to_have_count(1)
    expect(answer).to_contain_text(r"$\frac{$ and $\notacommand{x}$ stand as they are")
    assert answer.locator(".katex a").count() == 0
    assert person.page.evaluate("window.broken") is None
    loaded = "[...document.fonts].some(font => font.family === 'KaTeX_Math' && font.status === 'loaded')"
    assert person.page.evaluate(f"document.fonts.ready.then(() => {loaded})")


def blocks(person: Person, source: str) -> Any:
    return person.page.evaluate(
        "async source => (await import('pagoda/markdown.js')).renderBlocks(source).map(block => block.html).join('')",
        source,
    )


@pytest.mark.parametrize(
    "source",
    ["$5 and $6", "$ 5$", "US$5 to US$6", "it is $20,000, not 30,000$ at all", "a \\$5 bill and $6", "$$ $$", "$1$2"],
)
def test_money_is_no_formula(person: Person, source: str):
    assert "pg-math" not in blocks(person, source)


@pytest.mark.parametrize(
    "source", ["$x$", "$2 + 2 = 4$", "($\\alpha$)", "$$x$$", "\\(x\\)", "\\[x\\]", "- $$x$$", "$3x$."]
)
def test_a_formula_is_a_formula(person: Person, source: str):
    assert "pg-math" in blocks(person, source)


def test_formulas_are_set_while_the_reply_is_still_written(room: Room, stage: StagedPagoda):
    person = room.seat(stage.url).open_conversation(stage.new_conversation(max_tokens=99))
    reply = person.say("Teach me")
    stage.say("next")
    stage.say("token", "First: $a^2$ is a square.\n\nThen: $b^")
    expect(reply.article.locator(".katex")).to_have_count(1)
    expect(reply.article.locator(".pg-answer")).to_contain_text("Then: $b^")
    stage.say("token", "3$ is a cube.")
    expect(reply.article.locator(".katex")).to_have_count(2)
    stage.say("finish")
    reply.wait_until("complete")
    expect(reply.article.locator(".katex")).to_have_count(2)
