"""The engine's child process as a source of replies: a source for each model, one of them loaded."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

from backend.abort import AbortSignal
from backend.sources import Messages, ModelStatus, SourceEvent, SourceInterrupted
from backend.states import Reason
from engine.client import EngineClient, EngineStatus
from engine.errors import EngineDied, EngineError
from engine.events import REPLIES_AT_ONCE, Generate, Loading, RunFailed


class EngineSource:
    """Several replies of one model at a time, which the engine makes together. Replies of other models wait in the same
    lane; when the turn comes, the engine changes its model."""

    lane = "engine"
    capacity = REPLIES_AT_ONCE
    elsewhere = False

    def __init__(self, name: str, client: EngineClient) -> None:
        self.name = name
        self._client = client

    def status(self) -> ModelStatus:
        """How the engine stands, with whatever model it has now."""
        now = self._client.status
        return ModelStatus(
            name=self._client.model,
            state=now.state,
            detail=now.failure.message if now.failure else now.note,
            progress=now.loading if now.state == "loading" else None,
            loaded=now.loaded,
        )

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._client.watch(lambda _: callback())

    def retry(self) -> None:
        if self._client.status.state == "failed":
            self._client.retry()

    def restart(self) -> None:
        self._client.kill()

    def warm(self, messages: Messages) -> None:
        if self._client.model == self.name:  # looking at a conversation changes no model
            self._client.warm(messages)

    async def run(self, request: Generate, abort: AbortSignal) -> AsyncGenerator[SourceEvent, None]:
        self._client.switch(self.name)
        for again in (False, True):
            try:
                async with aclosing(self._once(request, abort)) as events:
                    async for event in events:
                        yield event
                return
            except _NothingBegan as error:
                # It hung because of another reply, say: this one is none the worse for beginning once more.
                if again:
                    raise SourceInterrupted(Reason.ENGINE_DIED, str(error)) from error

    async def _once(self, request: Generate, abort: AbortSignal) -> AsyncGenerator[SourceEvent, None]:
        async with aclosing(self._until_ready(abort)) as waiting:
            async for loading in waiting:
                yield loading
        if abort.aborted:
            return
        status = self._client.status
        if status.failure is not None and status.state == "failed":
            yield RunFailed(request.run_id, status.failure.kind, status.failure.message)
            return
        begun = False
        unlisten = abort.on_abort(lambda: self._client.abort(request.run_id))
        try:
            async with aclosing(cast(AsyncGenerator[SourceEvent, None], self._client.generate(request))) as events:
                async for event in events:
                    begun = True
                    yield event
        except EngineDied as error:
            if not begun and not abort.aborted:
                raise _NothingBegan(str(error)) from error
            raise SourceInterrupted(Reason.ENGINE_DIED, str(error)) from error
        except EngineError as error:
            yield RunFailed(request.run_id, type(error).__name__, str(error))
        finally:
            unlisten()

    async def _until_ready(self, abort: AbortSignal) -> AsyncGenerator[Loading, None]:
        """The steps of loading, until it ended one way or the other, or the person gave up."""
        changes: asyncio.Queue[EngineStatus | None] = asyncio.Queue()
        unwatch = self._client.watch(changes.put_nowait)
        unlisten = abort.on_abort(lambda: changes.put_nowait(None))
        try:
            status: EngineStatus | None = self._client.status
            while status is not None and status.state == "loading" and not abort.aborted:
                if status.loading is not None:
                    yield status.loading
                status = await changes.get()
        finally:
            unwatch()
            unlisten()


class _NothingBegan(Exception):
    """The engine died before it said anything of a reply."""
