"""A real browser, a real Pagoda with the real default model, and people in front of tabs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from tests.browser.person import PATIENCE_MS, Person
from tests.browser.running_pagoda import RunningPagoda, give_model
from tests.browser.staged_pagoda import StagedPagoda

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

expect.set_options(timeout=PATIENCE_MS)


# Package scope: Playwright keeps an event loop running in this thread, which async tests elsewhere could not bear.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    installed = next((path for name in names if (path := shutil.which(name))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pagoda(tmp_path_factory: pytest.TempPathFactory, default_data_dir: Path) -> Iterator[RunningPagoda]:
    """One Pagoda for the tests of a file, with its model in memory."""
    data_dir = tmp_path_factory.mktemp("data")
    give_model(data_dir, default_data_dir)
    running = RunningPagoda(data_dir)
    running.wait_until_ready()
    yield running
    running.stop()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[StagedPagoda]:
    """Pagoda whose model says what the test lets it say."""
    running = StagedPagoda(tmp_path)
    yield running
    running.stop()


class Room:
    """Seats people in front of tabs, and sees to it that their pages behave."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.foreign: list[str] = []
        self.errors: list[str] = []

    def seat(self, url: str, **options) -> Person:
        """A person with a browser of their own; `options` are Playwright's for a context."""
        defaults = {"locale": "en-US", "viewport": {"width": 1280, "height": 860}}
        context = self._browser.new_context(**{**defaults, **options})
        self._contexts.append(context)
        context.on("request", lambda request: self._note(request.url, url))
        return self._tab(context, url)

    def second_tab(self, person: Person) -> Person:
        """The same browser, another tab."""
        return self._tab(person.page.context, person.url)

    def _tab(self, context: BrowserContext, url: str) -> Person:
        page = context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        return Person(page, url)

    def _note(self, address: str, url: str) -> None:
        if not address.startswith((url, "data:", "blob:")):
            self.foreign.append(address)

    def close(self) -> None:
        for context in self._contexts:
            context.close()


@pytest.fixture
def room(browser: Browser) -> Iterator[Room]:
    """No test may end with an error on a page, or with a request to another host."""
    room = Room(browser)
    yield room
    room.close()
    assert not room.foreign, f"asked other hosts: {room.foreign}"
    assert not room.errors, f"errors on the page: {room.errors}"


@pytest.fixture
def person(room: Room, pagoda: RunningPagoda) -> Person:
    return room.seat(pagoda.url)
