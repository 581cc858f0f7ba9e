"""The small hub of tests/backend/hub_server.py in a thread of its own: tests with a browser are not asynchronous."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.backend.hub_server import HubServer, hub_server


class ModelHub:
    """`hold` keeps large files waiting after their first half, `let_go` lets them go on."""

    def __init__(self) -> None:
        self._ready, self._over = threading.Event(), asyncio.Event()
        self.server: HubServer
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with hub_server() as self.server:
            self._ready.set()
            await self._over.wait()

    def offer(self, name: str, folder: Path) -> None:
        """Have the model in `folder` under that name."""
        self.server.models[name] = {path.name: path.read_bytes() for path in folder.iterdir()}

    def hold(self) -> None:
        self.server.held = asyncio.Event()

    def let_go(self) -> None:
        held, self.server.held = self.server.held, None
        if held is not None:
            self._loop.call_soon_threadsafe(held.set)

    def close(self) -> None:
        self.let_go()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)


@contextmanager
def model_hub() -> Iterator[ModelHub]:
    hub = ModelHub()
    try:
        yield hub
    finally:
        hub.close()
