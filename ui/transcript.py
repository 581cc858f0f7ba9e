"""The conversation on screen: the Python half of static/transcript.js.

It keeps nothing and re-renders nothing: everything goes through methods of the component (DESIGN §4).
"""

from collections.abc import Callable
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from ui.assets import static_folder


class Transcript(Element, component=static_folder() / "transcript.js"):
    def on_open(self, handler: Callable[[str | None, int], None]) -> None:
        """Call `handler(conversation_id, generation)` when the person looks at another conversation (None: a new
        chat), or misses something of this one: a snapshot that carries the generation is due."""

        def opened(event: GenericEventArguments) -> None:
            handler(event.args["id"], int(event.args["generation"]))

        self.on("open", opened)

    def on_earlier(self, handler: Callable[[str, str], None]) -> None:
        """Call `handler(conversation_id, message_id)` when the person scrolls up to what lies before that message."""

        def earlier(event: GenericEventArguments) -> None:
            handler(event.args["id"], event.args["before"])

        self.on("earlier", earlier)

    def on_read(self, handler: Callable[[str], None]) -> None:
        """Call `handler(conversation_id)` when what has arrived there was seen."""

        def read(event: GenericEventArguments) -> None:
            handler(event.args["id"])

        self.on("read", read)

    def show(self, snapshot: dict[str, Any], generation: int) -> None:
        """A whole conversation, with the server's clock as `now`. The page drops an old generation."""
        self.run_method("show", snapshot, generation)

    def earlier(self, conversation_id: str, messages: list[dict[str, Any]], ids: list[str]) -> None:
        """Messages that come before the first one the page has, and the ids of those before them."""
        self.run_method("earlier", conversation_id, messages, ids)

    def missing(self, conversation_id: str, generation: int) -> None:
        """There is no such conversation."""
        self.run_method("missing", conversation_id, generation)

    def merge(self, conversation_id: str, messages: list[dict[str, Any]], now: float) -> None:
        """Messages that are new, or have new attempts or another selected one. `now` is the server's clock."""
        self.run_method("merge", conversation_id, messages, now)

    def deltas(self, batch: list[dict[str, Any]]) -> None:
        """What was written since the last batch (ui/deltas.py)."""
        self.run_method("deltas", batch)

    def more(self, first: int, last: int, offset: int, text: str) -> None:
        """A delta that is nothing but text, of the attempt that the delta before it was of."""
        self.run_method("more", first, last, offset, text)

    def model(self, status: dict[str, Any]) -> None:
        """How the model is: loading, ready, failed."""
        self.run_method("model", status)

    def downloads(self, rows: list[dict[str, Any]]) -> None:
        """What is on its way from the hub."""
        self.run_method("downloads", rows)
