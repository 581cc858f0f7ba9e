"""Abort as in the browser: a controller that says stop once, and a signal that its holders listen to.

Everything happens in the event loop's thread; callbacks run at once, inside `abort()`.
"""

import asyncio
from collections.abc import Callable


class AbortSignal:
    """The listening side. `reason` is None until the abort."""

    def __init__(self) -> None:
        self.aborted = False
        self.reason: str | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._event = asyncio.Event()

    def on_abort(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the abort comes, or now if it has come. Returns what takes it back."""
        if self.aborted:
            callback()
            return lambda: None
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    async def wait(self) -> None:
        """Until the abort."""
        await self._event.wait()


class AbortController:
    """The side that may say stop."""

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self, reason: str | None = None) -> None:
        """Say stop. The second time does nothing; the first reason stays."""
        signal = self.signal
        if signal.aborted:
            return
        signal.aborted, signal.reason = True, reason
        signal._event.set()
        callbacks, signal._callbacks = signal._callbacks, []
        for callback in callbacks:
            callback()
