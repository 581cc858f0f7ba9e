"""A hundred replies that attack whoever reads them, in one page: nothing runs, asks, hides, or leaves its bubble."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from backend.journal import Journal
from tests.browser.attacks import ATTACKS, RLO
from tests.browser.conftest import Room
from tests.browser.person import Person
from tests.browser.staged_pagoda import StagedPagoda
from tests.browser.written import write_turns

TRIPWIRES = """
window.tripped = [];
const trip = what => window.tripped.push(what);
addEventListener("securitypolicyviolation", event => trip(`policy: ${event.violatedDirective} ${event.blockedURI}`));
for (const name of ["alert", "confirm", "prompt", "open", "print"]) window[name] = () => trip(name);
navigator.sendBeacon = () => trip("beacon");
"""

# What stands in an answer that no answer may make. Returns names of attacks with what was found.
FOUND = """() => {
  const found = [];
  const GROUP = /^contain-intrinsic-block-size: auto [\\d.]+rem;$/; // the page's own, around many blocks
  for (const answer of document.querySelectorAll(".pg-reply")) {
    const name = answer.previousElementSibling.innerText.trim();
    for (const element of answer.querySelectorAll(".pg-prose *")) {
      const tag = element.tagName.toLowerCase();
      const formula = element.closest(".katex");
      const known = "a b blockquote br button code div em h1 h2 h3 h4 h5 h6 hr i li ol p pre s span strong sub sup " +
        "table tbody td th thead tr ul";
      if (!formula && !known.split(" ").includes(tag)) found.push(`${name}: <${tag}>`);
      if (formula && ["a", "img", "script", "iframe", "style", "foreignobject", "image", "use"].includes(tag))
        found.push(`${name}: <${tag}> in a formula`);
      if (tag === "button" && !element.matches(".pg-copy-code, .pg-note")) found.push(`${name}: a button`);
      if (element.matches("[id], [name], [is], [slot], .pg-banner, .pg-button, .q-dialog, .fixed-full"))
        found.push(`${name}: poses as the page`);
      for (const { name: attribute } of element.attributes) {
        if (attribute.startsWith("on")) found.push(`${name}: ${attribute}`);
        if (attribute === "style" && !formula && !GROUP.test(element.getAttribute("style")))
          found.push(`${name}: a style`);
      }
      if (["fixed", "sticky"].includes(getComputedStyle(element).position)) found.push(`${name}: fixed`);
      if (tag === "a" && !["http:", "https:", "mailto:"].includes(new URL(element.href).protocol))
        found.push(`${name}: ${element.href}`);
      if (tag === "a" && new URL(element.href).host === location.host) found.push(`${name}: leads into the page`);
    }
  }
  return found;
}"""

# Where something of an answer can be hit outside of it, looked for with the answer in the middle of the view.
OUTSIDE = """() => {
  const found = new Set();
  for (const answer of document.querySelectorAll(".pg-answer")) {
    answer.scrollIntoView({ block: "center", behavior: "instant" });
    for (let x = 4; x < innerWidth; x += 40) for (let y = 4; y < innerHeight; y += 40) {
      const hit = document.elementFromPoint(x, y)?.closest(".pg-answer");
      if (!hit) continue;
      const { left, right, top, bottom } = hit.getBoundingClientRect();
      if (x < left - 5 || x > right + 5 || y < top - 5 || y > bottom + 5)
        found.add(hit.closest(".pg-reply").previousElementSibling.innerText.trim());
    }
  }
  return [...found];
}"""

# Letters that turn others around or are not seen, and stand in the text without their mark.
UNMARKED = """() => {
  const found = [];
  for (const answer of document.querySelectorAll(".pg-prose")) {
    const walker = document.createTreeWalker(answer, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const { data, parentElement } = walker.currentNode;
      if (parentElement.closest(".pg-odd, .katex-mathml")) continue;
      const odd = parentElement.closest("code") ? /[\\u202a-\\u202e\\u2066-\\u2069\\u200b]/u : /[\\u202d\\u202e]/u;
      if (odd.test(data) || /[\\u{E0000}-\\u{E007F}]/u.test(data)) found.push(data);
    }
  }
  return found;
}"""

LEFTS = """(element, word) => {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const at = walker.currentNode.data.indexOf(word);
    if (at < 0) continue;
    return [...word].map((_, index) => {
      const range = document.createRange();
      range.setStart(walker.currentNode, at + index);
      range.setEnd(walker.currentNode, at + index + 1);
      return range.getBoundingClientRect().left;
    });
  }
}"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StagedPagoda]:
    data_dir = tmp_path_factory.mktemp("data")
    write_turns(data_dir, "c_attacks", list(ATTACKS.items()))
    journal = Journal(data_dir)
    journal.change_conversation("c_attacks", title=f"Invoice {RLO}fdp.exe")
    journal.close()
    running = StagedPagoda(data_dir)
    yield running
    running.stop()


# Earlier messages come by themselves when one scrolls up to them, and at a press.
ALL_SHOWN = """count => {
  document.querySelector(".pg-earlier")?.click();
  return document.querySelectorAll(".pg-reply").length === count;
}"""


def reply_to(person: Person, attack: str):
    prompt = person.page.locator(".pg-prompt").filter(has=person.page.get_by_text(attack, exact=True))
    return prompt.locator("+ .pg-reply .pg-answer")


def test_a_hundred_attacks_in_one_page_run_nothing_ask_nobody_and_stay_in_their_bubbles(
    room: Room, stage: StagedPagoda
):
    assert len(ATTACKS) == 100
    person = room.seat(stage.url)
    person.page.add_init_script(TRIPWIRES)
    tabs: list = []
    person.page.context.on("page", lambda tab: tabs.append(tab))
    person.open_conversation("c_attacks")
    person.page.wait_for_function(ALL_SHOWN, arg=len(ATTACKS), polling=200)
    expect(person.replies).to_have_count(100)
    expect(person.page.locator(".pg-math:not(.set)")).to_have_count(0)
    assert person.page.evaluate("typeof window.broken + typeof parent.broken") == "undefinedundefined"
    assert person.page.evaluate(FOUND) == []
    assert person.page.evaluate(OUTSIDE) == []
    assert person.page.evaluate(UNMARKED) == []
    assert person.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert person.page.evaluate("window.tripped") == [] and tabs == []
    assert RLO not in person.page.title() and person.loads == 1

    # Nothing is turned around but what belongs to a language that is written so.
    name = reply_to(person, "letters: reversed name of a file")
    lefts = name.evaluate(LEFTS, "fdp.exe")
    assert lefts == sorted(lefts)
    expect(name.locator(".pg-odd")).to_have_attribute("data-code", "U+202E")
    code = reply_to(person, "letters: reversed code").locator("code")
    lefts = code.evaluate(LEFTS, "# only admins")
    assert lefts == sorted(lefts) and code.locator(".pg-odd").count() == 4

    # Nothing is hidden.
    assert "×15" in (reply_to(person, "letters: invisible letters").locator(".pg-odd").get_attribute("data-code") or "")
    formula = reply_to(person, "formula: black on black").locator(".katex-html .mord.text").last
    assert formula.evaluate("e => getComputedStyle(e).color !== getComputedStyle(document.body).backgroundColor")
    phantom = reply_to(person, "formula: phantom").locator(".katex-html [style*=hidden]").first
    expect(phantom).to_have_css("visibility", "hidden")  # room without text: it cannot be selected and pasted

    # Nothing says it leads where it does not.
    link = reply_to(person, "address: address that shows another").locator("a")
    expect(link).to_have_text("https://bank.example/login (evil.example)")
    expect(reply_to(person, "address: address with a user").locator("a").first).to_contain_text("(evil.example)")
    for lookalike in reply_to(person, "address: address in letters that look alike").locator("a").all():
        expect(lookalike).to_contain_text("(xn--80ak6aa92e.com)")
    fence = reply_to(person, "markdown: fence that poses as the page")
    expect(fence.locator(".pg-code-head span")).to_have_text("text")


def test_what_is_marked_as_odd_is_copied_as_it_was_written(room: Room, stage: StagedPagoda):
    person = room.seat(stage.url, permissions=["clipboard-read", "clipboard-write"])
    person.open_conversation("c_attacks")
    reply_to(person, "letters: reversed code").locator(".pg-copy-code").click()
    expect(reply_to(person, "letters: reversed code").locator(".pg-copy-code")).to_have_text("Copied")
    source = ATTACKS["letters: reversed code"]
    assert person.page.evaluate("navigator.clipboard.readText()") == source.split("\n", 1)[1].rsplit("```", 1)[0]


def test_a_flag_and_a_language_written_from_the_right_stay_as_they_are(room: Room, stage: StagedPagoda):
    wales = "\U0001f3f4\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f"
    person = room.seat(stage.url).open_conversation(stage.new_conversation(max_tokens=99))
    reply = person.say("Say it")
    stage.say("next")
    stage.say(
        "token", f"\u2067مرحبا\u2069 {wales} 👩‍👩‍👧 葛\U000e0100 [GitHub](https://github.com) <https://pypi.org/x>"
    )
    stage.say("finish")
    reply.wait_until("complete")
    assert reply.article.locator(".pg-odd, .pg-host").count() == 0
