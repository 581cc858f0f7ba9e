"""Endings of replies that the disk did not take: kept in memory, shown as they are, written as soon as it does.

A reply must never seem to go on because there was no room to write down that it ended. If Pagoda is killed before it
could write one, the next start finds the attempt unfinished and marks it as interrupted.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from backend.chunks import Chunk, StateChange
from backend.errors import CannotWrite
from backend.rows import Attempt
from backend.states import State

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 5.0


class Endings:
    """At most one per attempt, because an attempt ends once."""

    def __init__(self) -> None:
        self._kept: dict[str, Chunk] = {}

    def __contains__(self, attempt_id: str) -> bool:
        return attempt_id in self._kept

    def keep(self, chunk: Chunk) -> None:
        """The last chunk of an attempt, to be written later."""
        self._kept[chunk.attempt_id] = chunk

    def of(self, attempt: Attempt) -> Attempt:
        """The attempt as it really stands."""
        chunk = self._kept.get(attempt.id)
        if chunk is None or not isinstance(end := chunk.data, StateChange):
            return attempt
        return replace(
            attempt,
            state=end.state,
            reason=end.reason,
            detail=end.detail,
            usage=end.usage,
            timings=end.timings,
            last_seq=chunk.seq,
            ended_at=attempt.ended_at or time.time(),
        )

    def after(self, chunks: list[Chunk], attempt_id: str, after: int, limit: int) -> list[Chunk]:
        """The chunks from the disk, and the ending behind them where it is next."""
        end = self._kept.get(attempt_id)
        if end is None or end.seq <= after or len(chunks) == limit:
            return chunks
        return [*chunks, end]

    def any_of(self, conversation_id: str) -> bool:
        """Whether a reply of the conversation ended and only memory knows."""
        return any(chunk.conversation_id == conversation_id for chunk in self._kept.values())

    def failed(self, conversation_id: str) -> bool:
        """Whether one of them broke off."""
        ends = [chunk.data for chunk in self._kept.values() if chunk.conversation_id == conversation_id]
        return any(isinstance(end, StateChange) and end.state in (State.FAILED, State.INTERRUPTED) for end in ends)

    def write(self, append: Callable[[Chunk], bool]) -> bool:
        """Write what is kept; False when the disk still takes nothing. What has no place any more is dropped."""
        for id, chunk in list(self._kept.items()):
            try:
                append(chunk)
            except CannotWrite:
                return False
            del self._kept[id]
        return True


class Again:
    """Calls `attempt` until it says True, with waits that double: a full disk costs next to nothing."""

    def __init__(self, attempt: Callable[[], bool]) -> None:
        self._attempt = attempt
        self._wait = FIRST_WAIT_S
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> None:
        """Try at once, and go on trying if need be."""
        self.stop()
        if self._attempt():
            self._wait = FIRST_WAIT_S
        else:
            self._timer = asyncio.get_running_loop().call_later(self._wait, self.now)
            self._wait = min(2 * self._wait, LONGEST_WAIT_S)

    def stop(self) -> None:
        """Wait no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
