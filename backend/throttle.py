"""Progress at a pace a page can use: the newest value at most every `interval` seconds, and never a stale last one."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from backend.chunks import Progress


class Throttle:
    """Passes progress on to `emit`. A new stage or queue place passes at once; an unchanged wait never does."""

    def __init__(self, emit: Callable[[Progress], object], interval: float = 0.2) -> None:
        self._emit = emit
        self._interval = interval
        self._pending: Progress | None = None
        self._newest: Progress | None = None
        self._last_time = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def offer(self, progress: Progress) -> None:
        """Pass it on now, later, or (when a newer one comes first) never."""
        newest = self._newest
        if newest is not None and newest == replace(progress, elapsed_s=newest.elapsed_s):
            return
        urgent = newest is None or (newest.stage, newest.queue_position) != (progress.stage, progress.queue_position)
        self._newest = self._pending = progress
        wait = self._last_time + self._interval - time.monotonic()
        if urgent or wait <= 0:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait, self.flush)

    def flush(self) -> None:
        """Pass on what waits, if anything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending is not None:
            progress, self._pending = self._pending, None
            self._last_time = time.monotonic()
            self._emit(progress)

    def close(self) -> None:
        """What waits is not worth saying any more."""
        self._pending = None
        self.flush()
