"""Tells every subscriber what happened, in order, at once. A subscriber that fails harms nobody else."""

import logging
from collections.abc import Callable
from typing import Any

from backend.chunks import Chunk
from backend.notices import Notice

log = logging.getLogger(__name__)

Subscriber = Callable[[Chunk | Notice], None]


class Broadcast:
    """Remembers the newest row shown of each conversation, so that a row is sent only when it differs."""

    def __init__(self) -> None:
        self._subscribers: dict[object, Subscriber] = {}
        self._rows: dict[str, dict[str, Any]] = {}

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call back from now on. Returns what ends that; ending twice is harmless."""
        key = object()
        self._subscribers[key] = callback

        def unsubscribe() -> None:
            self._subscribers.pop(key, None)

        return unsubscribe

    def publish(self, item: Chunk | Notice) -> None:
        """To everybody who listens now."""
        for callback in list(self._subscribers.values()):
            try:
                callback(item)
            except Exception:  # a broken page must not break the others, nor the reply
                log.exception("a subscriber failed")

    def row(self, row: dict[str, Any]) -> None:
        """A conversation's row, if anything in it changed that a person can see: percents move by whole numbers."""
        if row["percent"] is not None:
            row = {**row, "percent": float(int(row["percent"]))}
        if row != self._rows.get(row["id"]):
            self._rows[row["id"]] = row
            self.publish(Notice("conversation", row["id"], row))

    def forget(self, id: str) -> None:
        """The conversation is gone."""
        self._rows.pop(id, None)
        self.publish(Notice("deleted", id, {"id": id}))
