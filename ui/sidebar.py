"""The list of conversations: the Python half of static/sidebar.js."""

from typing import Any

from nicegui.element import Element

from ui.assets import static_folder


class Sidebar(Element, component=static_folder() / "sidebar.js"):
    def rows(self, rows: list[dict[str, Any]]) -> None:
        """All conversations."""
        self.run_method("rows", rows)

    def row(self, row: dict[str, Any]) -> None:
        """One conversation that is new or has changed."""
        self.run_method("row", row)

    def gone(self, conversation_id: str) -> None:
        """One conversation was deleted."""
        self.run_method("gone", conversation_id)
