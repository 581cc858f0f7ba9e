"""What a run and the layers it passes through tell each other: "I am here", "stop".

Every paged layer passes through `Watch.at_layer`, so progress is what the engine really did, and a stop takes effect
inside the layer.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from engine.errors import Aborted
from engine.together import Meeting


class Flag(Protocol):
    """Whether something is to stop: a threading.Event, or something made of several."""

    def is_set(self) -> bool: ...


class Watch:
    """One per model. `on_layer(layer)` is called on the engine's thread, between layers.

    `meeting` is there while several passes go through the layers together.
    """

    def __init__(self) -> None:
        self._abort: Flag = threading.Event()
        self.on_layer: Callable[[int], None] | None = None
        self.meeting: Meeting | None = None

    def begin(self, on_layer: Callable[[int], None] | None, abort: Flag | None = None) -> None:
        """Start to watch a run; setting `abort` (from any thread) stops it."""
        self.on_layer = on_layer
        self._abort = abort or threading.Event()

    def end(self) -> None:
        """The run is over; layers pass unwatched until the next one."""
        self.begin(None)

    def check(self) -> None:
        """Raises Aborted when the run was stopped."""
        if self._abort.is_set():
            raise Aborted("stopped")

    def at_layer(self, layer: int) -> None:
        """The forward pass has arrived at `layer`. Raises Aborted when the run was stopped."""
        self.check()
        if self.on_layer is not None:
            self.on_layer(layer)
