"""The tests here share a browser; Playwright's event loop keeps async tests out of this folder."""

from tests.browser.conftest import browser, room

__all__ = ["browser", "room"]
