"""What the page costs: bytes, server CPU, and the time until a person sees something. `python -m bench.page.run`.

The server and the page are the real ones, in a real Chromium. The model is a script that says its words at a set pace:
this measures the page and the way to it, and nothing about any model.
"""

import os
import shutil
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import FLAGS
from tests.browser.staged_pagoda import StagedPagoda
from tests.browser.written import write_turns

TOKENS, PER_SECOND = 4000, 50
LONG = 40_000  # tokens of the longest reply
MESSAGES = 1000
PROSE = """

## A step of it

The **keeper** lit the lamp, and for a while nothing happened; then the `beam` turned over the water and back.

- one thing to remember
- and another, with $a^2 + b^2 = c^2$ in it

```python
def turn(lamp, degrees):
    return lamp.angle + degrees  # and so on
```

Then she went down the stairs, counting them as she always did, and there were as many of them as the day before."""

WATCH_TASKS = """() => {
  window.longTasks = [];
  new PerformanceObserver(list => window.longTasks.push(...list.getEntries().map(entry => entry.duration)))
    .observe({type: "longtask"});
}"""

# From the key to the frame in which the bubble was painted.
CLICK_TO_BUBBLE = """async text => {
  const field = document.querySelector("textarea");
  field.value = text;
  field.dispatchEvent(new Event("input", {bubbles: true}));
  await new Promise(requestAnimationFrame);
  const before = document.querySelectorAll(".pg-prompt").length;
  const began = performance.now();
  field.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true}));
  while (document.querySelectorAll(".pg-prompt").length === before) await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""

# From the click to the frame in which the newest reply of that conversation was there.
SWITCH = """async ([id, words]) => {
  const link = document.querySelector(`a[href="/c/${id}"]`);
  const there = () => [...document.querySelectorAll(".pg-answer")].at(-1)?.textContent.includes(words);
  const began = performance.now();
  link.click();
  while (!there()) await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Tab:
    """One page whose traffic is counted."""

    def __init__(self, browser: Browser, stage: StagedPagoda) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 860}, locale="en-US")
        self.page: Page = self.context.new_page()
        self.received = self.sent = 0
        self.foreign: list[str] = []
        self.page.set_default_timeout(600_000)
        self.page.on("websocket", self._follow)
        self.page.on("request", lambda request: self._note(request.url, stage.url))

    def _follow(self, socket) -> None:
        socket.on("framereceived", lambda data: setattr(self, "received", self.received + len(data)))
        socket.on("framesent", lambda data: setattr(self, "sent", self.sent + len(data)))

    def _note(self, address: str, own: str) -> None:
        if not address.startswith((own, own.replace("http", "ws"), "data:", "blob:")):
            self.foreign.append(address)

    def open(self, address: str) -> None:
        self.page.goto(address)
        self.page.wait_for_selector(".pg-transcript[data-loaded=true]")


def streaming(tab: Tab, stage: StagedPagoda, before: str, count: int) -> tuple[int, float, list[float]]:
    """Websocket bytes, server CPU seconds and long tasks while a reply that begins with `before` grows by `count`."""
    chat = stage.new_conversation(max_tokens=2 * LONG)
    tab.open(f"{stage.url}/c/{chat}")
    tab.page.fill("textarea", "Go on")
    tab.page.press("textarea", "Enter")
    stage.say("next")
    if before:
        stage.say("token", before)
    tab.page.wait_for_selector(".pg-reply .pg-answer:not(:empty)" if before else ".pg-reply", state="attached")
    tab.page.evaluate(WATCH_TASKS)
    bytes_before, cpu_before = tab.received + tab.sent, cpu_seconds(stage.pid)
    stage.begin("stream", count, PER_SECOND, PROSE)
    tab.page.wait_for_selector(".pg-reply[data-state=complete]")
    stage.finish_saying()
    cost = tab.received + tab.sent - bytes_before, cpu_seconds(stage.pid) - cpu_before
    return *cost, tab.page.evaluate("window.longTasks")


def measure(browser: Browser, stage: StagedPagoda) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    tab = Tab(browser, stage)
    tab.open(stage.url)
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    rows.append(("first paint, empty cache", f"{tab.page.evaluate(paint):.0f} ms", "<= 1500 ms"))

    tab.open(f"{stage.url}/c/{stage.new_conversation(max_tokens=9)}")
    clicks = []
    for number in range(5):
        clicks.append(tab.page.evaluate(CLICK_TO_BUBBLE, f"Bubble {number}"))
        stage.say("next")
        stage.say("finish")
    rows.append(("click to bubble, median of 5", f"{statistics.median(clicks):.0f} ms", "<= 50 ms"))

    first = tab.page.evaluate(SWITCH, ["c_thousand", f"Answer {MESSAGES // 2 - 1}"])
    rows.append((f"switch to {MESSAGES:,} messages, first time", f"{first:.0f} ms", "<= 150 ms"))
    tab.page.evaluate(SWITCH, ["c_small", "Answer 0"])
    again = tab.page.evaluate(SWITCH, ["c_thousand", f"Answer {MESSAGES // 2 - 1}"])
    rows.append((f"switch to {MESSAGES:,} messages, again", f"{again:.0f} ms", "<= 150 ms"))

    moved, cpu, tasks = streaming(tab, stage, "", TOKENS)
    pace = f"{TOKENS:,} tokens at {PER_SECOND} a second"
    rows.append((f"{pace}: websocket, all frames", f"{moved / 1e6:.3f} MB", "<= 0.1 MB payload"))
    rows.append((f"{pace}: server CPU, script included", f"{cpu:.2f} s", "<= 2 s"))
    rows.append((f"{pace}: longest task in the page", f"{max(tasks, default=0):.0f} ms", "<= 100 ms"))

    start = PROSE * (LONG // len(PROSE.split()))
    _, _, tasks = streaming(tab, stage, start, 500)
    rows.append((f"the end of a {LONG:,}-token reply: longest task", f"{max(tasks, default=0):.0f} ms", "<= 100 ms"))
    rows.append(("requests to any other host", str(len(tab.foreign)), "0"))
    tab.context.close()
    return rows


def main() -> None:
    installed = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        data_dir = Path(folder)
        write_turns(data_dir, "c_small", [("Question 0", "Answer 0.")])
        turns = [(f"Question {n}", f"Answer {n}.{PROSE}") for n in range(MESSAGES // 2)]
        write_turns(data_dir, "c_thousand", turns)
        stage = StagedPagoda(data_dir)
        browser = playwright.chromium.launch(executable_path=installed, args=list(FLAGS))
        rows = measure(browser, stage)
        browser.close()
        stage.stop()
    print("| scripted source, real server and page | measured | goal |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(f"\nload average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
