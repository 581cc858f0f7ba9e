"""Chunks of one tenth of a second made into as few deltas as possible for the browser.

A delta covers the chunks `first`..`last` of one attempt without a gap: their text joined, the newest progress, and
the state they end in. Token ids stay here: the page has no use for them.
"""

from dataclasses import asdict, dataclass
from typing import Any

from backend.chunks import Chunk, Progress, StateChange, Text


@dataclass
class Delta:
    conversation_id: str
    message_id: str
    attempt_id: str
    first: int
    last: int
    offset: int
    text: str = ""
    progress: dict[str, Any] | None = None
    state: dict[str, Any] | None = None

    def take(self, chunk: Chunk) -> None:
        """Add the chunk that follows directly."""
        self.last = chunk.seq
        match chunk.data:
            case Text(text=text):
                self.text += text
            case Progress():
                self.progress = _filled(chunk.data)
            case StateChange():
                self.state = _filled(chunk.data)


class Deltas:
    """Collects chunks until they are taken."""

    def __init__(self) -> None:
        self._open: dict[str, Delta] = {}  # attempt id -> the delta that its next chunk belongs to
        self._all: list[Delta] = []

    def add(self, chunk: Chunk) -> None:
        """Put a chunk behind its predecessor, or begin a new delta where there is none."""
        delta = self._open.get(chunk.attempt_id)
        if delta is None or chunk.seq != delta.last + 1:
            delta = Delta(
                chunk.conversation_id, chunk.message_id, chunk.attempt_id, chunk.seq, chunk.seq - 1, chunk.offset
            )
            self._open[chunk.attempt_id] = delta
            self._all.append(delta)
        delta.take(chunk)

    def drain(self) -> list[dict[str, Any]]:
        """Everything collected since the last time, oldest first, as plain JSON types."""
        deltas, self._all, self._open = self._all, [], {}
        return [asdict(delta) for delta in deltas]


def _filled(payload: Progress | StateChange) -> dict[str, Any]:
    return {key: value for key, value in asdict(payload).items() if value is not None}
