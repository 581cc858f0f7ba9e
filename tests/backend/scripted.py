"""A source that replays typed engine events as a test says them, among them a crash. No model is behind it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from backend.abort import AbortSignal
from backend.sources import ModelStatus, SourceEvent, SourceInterrupted
from backend.states import Reason
from engine.events import Finished, Generate, Loading, Progress, RunFailed, Token

_BROKEN_OFF = EOFError()


class Call:
    """One run the gateway asked for. What a test says here, the gateway hears; each method returns once it was taken,
    or at once when nobody takes it any more."""

    def __init__(self, request: Generate, abort: AbortSignal, deaf: bool) -> None:
        self.request, self.abort = request, abort
        self.run_id = request.run_id
        self.written = 0
        self.over = asyncio.Event()
        self._events: asyncio.Queue[SourceEvent | Exception] = asyncio.Queue()
        if not deaf:
            abort.on_abort(lambda: self._events.put_nowait(finished(self.run_id, "aborted", self.written)))

    async def say(self, event: SourceEvent | Exception) -> None:
        self._events.put_nowait(event)
        taken, over = asyncio.ensure_future(self._events.join()), asyncio.ensure_future(self.over.wait())
        await asyncio.wait({taken, over}, return_when=asyncio.FIRST_COMPLETED)
        taken.cancel()
        over.cancel()

    async def token(self, text: str, token: int | None = None) -> None:
        await self.say(self._next(text, token))

    def hand(self, text: str) -> None:
        """A token, without waiting until it was taken: what a bench measures is not this script."""
        self._events.put_nowait(self._next(text, None))

    def _next(self, text: str, token: int | None) -> Token:
        self.written += 1
        return Token(self.run_id, 1000 + self.written if token is None else token, text)

    async def write(self, text: str) -> None:
        """Each word as a token."""
        for word in text.split(" "):
            await self.token(word if self.written == 0 else f" {word}")

    async def prefill(self, done: int, total: int, layer: int = 1) -> None:
        await self.say(Progress(self.run_id, "prefill", done, total, layer, 30, 5 * layer, 3 * layer, 1000 * layer))

    async def load(self, done: int, total: int, stage: str = "download") -> None:
        await self.say(Loading(stage, done, total))

    async def finish(self, reason: str = "stop", text: str = "", context_full: bool = False) -> None:
        await self.say(finished(self.run_id, reason, self.written, text, context_full))
        await self.over.wait()

    async def fail(self, message: str = "The prompt is too long.", kind: str = "PromptError") -> None:
        await self.say(RunFailed(self.run_id, kind, message))
        await self.over.wait()

    async def crash(self) -> None:
        await self.say(SourceInterrupted(Reason.ENGINE_DIED, "The engine was killed."))
        await self.over.wait()

    async def drop(self) -> None:
        """The way to the source breaks."""
        await self.say(SourceInterrupted(Reason.NETWORK, "The connection broke."))
        await self.over.wait()

    async def break_off(self) -> None:
        """The stream ends without a proper end."""
        await self.say(_BROKEN_OFF)
        await self.over.wait()

    async def events(self) -> AsyncGenerator[SourceEvent, None]:
        try:
            while True:
                event = await self._events.get()
                if event is _BROKEN_OFF:
                    return
                if isinstance(event, Exception):
                    raise event
                yield event
                self._events.task_done()
                if isinstance(event, Finished | RunFailed):
                    return
        finally:
            self.over.set()


def finished(run_id: str, reason: str, tokens: int, text: str = "", context_full: bool = False) -> Finished:
    times, counts = (0.5, 0.4, 1.0, 0.25, 0.24, 0.1), (90, 10, 12345)
    larger = ((2_000_000_000, 4.1), (8_000_000_000, 4.3))
    end = Finished(run_id, reason, text, 7, tokens, *times, *counts, context_full, cached_tokens=4)
    return replace(end, router_s=0.05, compute_s=1.2, larger=larger)


class ScriptedSource:
    """`deaf` runs do not hear an abort, like an engine that hangs."""

    elsewhere = False

    def __init__(self, name: str = "scripted", capacity: int = 1) -> None:
        self.name = self.lane = name
        self.capacity = capacity
        self.deaf = False
        self.retried = self.restarted = 0
        self.calls: list[Call] = []
        self._status = ModelStatus(name, "ready")
        self._began: asyncio.Queue[Call] = asyncio.Queue()
        self._watchers: list[Callable[[], None]] = []
        self.warmed: list[tuple[dict, ...]] = []

    def status(self) -> ModelStatus:
        return self._status

    def become(self, status: ModelStatus) -> None:
        self._status = status
        for callback in list(self._watchers):
            callback()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback)

    def retry(self) -> None:
        self.retried += 1

    def warm(self, messages: tuple[dict, ...]) -> None:
        self.warmed.append(messages)

    def restart(self) -> None:
        self.restarted += 1
        for call in self.calls:
            if not call.over.is_set():
                call._events.put_nowait(SourceInterrupted(Reason.ENGINE_DIED, "The engine no longer answered."))

    async def next_call(self, within: float = 10) -> Call:
        """The next run, as soon as the gateway starts it."""
        return await asyncio.wait_for(self._began.get(), within)

    def run(self, request: Generate, abort: AbortSignal) -> AsyncGenerator[SourceEvent, None]:
        call = Call(request, abort, self.deaf)
        self.calls.append(call)
        self._began.put_nowait(call)
        return call.events()
