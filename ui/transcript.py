"""The conversation on screen: the Python half of static/transcript.js.

It keeps nothing and re-renders nothing: everything goes through methods of the component (DESIGN §4).
"""

from collections.abc import Callable
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from ui.assets import static_folder


class Transcript(Element, component=static_folder() / "transcript.js"):
    def __init__(self, on_open: Callable[[str | None, int], None], on_read: Callable[[str], None]) -> None:
        """`on_open(conversation_id, generation)`: the person looks at it now and needs a snapshot that carries the
        generation. `on_read(conversation_id)`: what has arrived there was seen."""
        super().__init__()

        def opened(event: GenericEventArguments) -> None:
            on_open(event.args["id"], int(event.args["generation"]))

        def read(event: GenericEventArguments) -> None:
            on_read(event.args["id"])

        self.on("open", opened)
        self.on("read", read)

    def show(self, snapshot: dict[str, Any], generation: int) -> None:
        """A whole conversation, with the server's clock as `now`. The page drops an old generation."""
        self.run_method("show", snapshot, generation)

    def missing(self, conversation_id: str, generation: int) -> None:
        """There is no such conversation."""
        self.run_method("missing", conversation_id, generation)

    def merge(self, conversation_id: str, messages: list[dict[str, Any]], now: float) -> None:
        """Messages that are new, or have new attempts or another selected one. `now` is the server's clock."""
        self.run_method("merge", conversation_id, messages, now)

    def deltas(self, batch: list[dict[str, Any]]) -> None:
        """What was written since the last batch (ui/deltas.py)."""
        self.run_method("deltas", batch)

    def model(self, status: dict[str, Any]) -> None:
        """How the model is: loading, ready, failed."""
        self.run_method("model", status)
