"""Tells every subscriber what happened, in order, at once. A subscriber that fails harms nobody else."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from backend.chunks import Chunk
from backend.notices import Notice

log = logging.getLogger(__name__)

Subscriber = Callable[[Chunk | Notice], None]
# Notices after which an attempt may no longer be there to read.
ENDINGS = ("deleted", "branch", "closing")


class Broadcast:
    """Remembers the newest row shown of each conversation, so that a row is sent only when it differs."""

    def __init__(self) -> None:
        self._subscribers: dict[object, Subscriber] = {}
        self._of_attempt: dict[str, dict[object, Subscriber]] = {}
        self._rows: dict[str, dict[str, Any]] = {}

    def subscribe(self, callback: Subscriber, attempt_id: str | None = None) -> Callable[[], None]:
        """Call back from now on, with an attempt only for its chunks and for what may take it away. Returns what ends
        that; ending twice is harmless."""
        key = object()
        group = self._subscribers if attempt_id is None else self._of_attempt.setdefault(attempt_id, {})
        group[key] = callback

        def unsubscribe() -> None:
            group.pop(key, None)
            if attempt_id is not None and not group and self._of_attempt.get(attempt_id) is group:
                del self._of_attempt[attempt_id]

        return unsubscribe

    def publish(self, item: Chunk | Notice) -> None:
        """To everybody who listens now. With 200 readers, each of its own attempt, a chunk is for one of them."""
        to = list(self._subscribers.values())
        groups: Iterable[dict[object, Subscriber]] = ()
        if isinstance(item, Chunk):
            groups = [self._of_attempt.get(item.attempt_id, {})]
        elif item.kind in ENDINGS:
            groups = self._of_attempt.values()
        for callback in (*to, *(callback for group in list(groups) for callback in list(group.values()))):
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
