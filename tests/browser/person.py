"""What a person does with the page and sees on it. Tests speak in these words; only this file knows the markup."""

import re

from playwright.sync_api import Locator, Page, expect

PATIENCE_MS = 90_000  # a busy machine; every wait ends as soon as what it waits for is there


class Reply:
    """One message of the model on the page."""

    def __init__(self, article: Locator) -> None:
        self.article = article

    def text(self) -> str:
        """The words of the answer, without the page's own around it."""
        return words(self.article.locator(".pg-answer").inner_text())

    def wait_for_text(self, characters: int = 1) -> "Reply":
        """Until that much of it can be read."""
        expect(self.article.locator(".pg-answer")).to_have_text(re.compile(rf"[\s\S]{{{characters},}}"))
        return self

    def wait_until(self, state: str) -> "Reply":
        expect(self.article).to_have_attribute("data-state", state)
        return self

    @property
    def state(self) -> str | None:
        return self.article.get_attribute("data-state")

    @property
    def outcome(self) -> Locator:
        """The line that says why the reply ended early."""
        return self.article.locator(".pg-outcome")

    @property
    def status(self) -> Locator:
        """The line that says how far it is."""
        return self.article.locator(".pg-status")

    @property
    def version(self) -> Locator:
        """Such as 1/2."""
        return self.article.locator(".pg-versions span")

    def press(self, label: str) -> None:
        self.article.get_by_role("button", name=label).click()


class Person:
    """Somebody in front of one browser tab."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.loads = 0
        page.on("load", self._count_load)
        page.set_default_timeout(PATIENCE_MS)

    def _count_load(self, _: Page) -> None:
        self.loads += 1

    def open(self, path: str = "/") -> "Person":
        self.page.goto(self.url + path)
        expect(self.page.locator(".pg-transcript[data-loaded=true]")).to_be_visible()
        return self

    def open_conversation(self, id: str) -> "Person":
        return self.open(f"/c/{id}")

    @property
    def composer(self) -> Locator:
        return self.page.get_by_label("Your message")

    def say(self, text: str) -> Reply:
        """Type, press Enter, and look at the reply that begins below."""
        before = self.replies.count()
        self.composer.fill(text)
        self.composer.press("Enter")
        expect(self.replies).to_have_count(before + 1)
        return self.reply()

    @property
    def replies(self) -> Locator:
        return self.page.locator(".pg-reply")

    def reply(self, position: int = -1) -> Reply:
        return Reply(self.replies.nth(position))

    @property
    def prompts(self) -> Locator:
        """The person's own messages."""
        return self.page.locator(".pg-prompt")

    def stop(self) -> None:
        self.page.get_by_role("button", name="Stop").click()

    @property
    def rows(self) -> Locator:
        """The conversations in the sidebar."""
        return self.page.locator(".pg-row")

    def row(self, title: str) -> Locator:
        return self.rows.filter(has_text=title)

    def choose(self, title: str, action: str) -> None:
        """Something in the menu of a conversation's row."""
        self.row(title).hover()
        self.page.get_by_role("button", name=f"Options for “{title}”").click()
        self.page.get_by_role("menuitem", name=action, exact=True).click()

    def group(self, name: str) -> Locator:
        """A part of the sidebar: pinned, today, yesterday, earlier, archived."""
        return self.page.locator(f".pg-rows [data-group={name}]")

    def go_to(self, title: str) -> "Person":
        self.row(title).get_by_role("link").click()
        expect(self.page.locator(".pg-transcript[data-loaded=true]")).to_be_visible()
        return self

    def new_chat(self) -> "Person":
        self.page.get_by_role("button", name="New chat").click()
        expect(self.prompts).to_have_count(0)
        return self

    @property
    def banner(self) -> Locator:
        """What the page says about the model or the connection."""
        return self.page.locator(".pg-banner")

    def reload(self) -> "Person":
        self.page.reload()
        expect(self.page.locator(".pg-transcript[data-loaded=true]")).to_be_visible()
        return self


def words(text: str) -> str:
    """Text as it is read: how it is broken into lines does not matter."""
    return " ".join(text.split())


def letters(text: str) -> str:
    """The letters alone: the same in a reply's source and on the page, whatever its markup."""
    return re.sub(r"[^A-Za-z]+", "", text)
