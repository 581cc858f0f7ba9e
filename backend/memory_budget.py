"""How much memory the engine may use, as a person sets it on the page: kept, and applied between two replies."""

import asyncio
import logging
from typing import Any

from backend.kept import Kept
from backend.queue import Queue
from engine import memory
from engine.client import EngineClient

log = logging.getLogger(__name__)

KEPT = "memory_bytes"
LEAST = 64 << 20  # below that it is a slip of the hand, whatever the model


class MemoryBudget:
    """`named` is what the command line or the configuration file says; it holds until the person sets another."""

    def __init__(self, engine: EngineClient, lane: str, queue: Queue, kept: Kept, named: int | None) -> None:
        self._engine, self._lane, self._queue, self._kept = engine, lane, queue, kept
        self._applying: asyncio.Task[None] | None = None
        engine.memory_bytes = named if named is not None else kept.get(KEPT)
        self._wish = engine.memory_bytes

    def to_dict(self) -> dict[str, Any]:
        """`chosen_bytes` None is as much as this machine can spare; `waits`: until no reply is being written."""
        return {
            "chosen_bytes": self._wish,
            "auto_bytes": memory.auto_budget(),
            "physical_bytes": memory.physical_bytes(),
            "waits": self._applying is not None,
        }

    def set(self, nbytes: int | None) -> None:
        """From now on, or as soon as the reply that is being written has ended. Raises CannotWrite."""
        self._kept.set(KEPT, nbytes)
        self._wish = nbytes
        if self._applying is None and nbytes != self._engine.memory_bytes:
            self._applying = asyncio.get_running_loop().create_task(self._apply(), name="memory budget")

    async def close(self) -> None:
        if self._applying is not None:
            self._applying.cancel()
            await asyncio.gather(self._applying, return_exceptions=True)

    async def _apply(self) -> None:
        """Takes a turn like a reply: the engine's model changes between two of them, never under one."""
        ticket = self._queue.enter(self._lane, "memory budget", lambda *_: None, model="memory budget")
        try:
            if await ticket.turn():
                log.info("the engine's memory budget is now %s", self._wish or "auto")
                self._engine.rebudget(self._wish)
        finally:
            ticket.leave()
            self._applying = None
