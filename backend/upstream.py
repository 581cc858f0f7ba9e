"""An OpenAI-compatible server elsewhere as a source of replies: another Pagoda, llama.cpp, mlx_lm.server, Ollama, vLLM.

A slow server is not a broken one: connecting has a short limit, reading has none but the patience that a person set.
Tried again is only what certainly has not begun.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

import httpx

from backend.abort import AbortSignal
from backend.sources import Ended, Forwarded, Messages, ModelStatus, SourceEvent, SourceInterrupted
from backend.states import Reason
from backend.upstream_reply import Reply
from backend.upstream_request import body_of, forwarded, without_refused
from backend.upstream_settings import UpstreamSettings, checked
from backend.upstream_words import refused, unreachable
from engine.events import Generate, RunFailed

log = logging.getLogger("pagoda.upstream")

CONNECT_S = 10.0
# After the end of a reply only counts may follow. A server that keeps the connection open is not waited for.
LINGER_S = 5.0
LIST_TIMEOUT_S = 15.0
LIST_EVERY_S = 300.0
BACKOFF_S = (0.5, 1.5, 4.0)
LONGEST_WAIT_S = 30.0  # a longer Retry-After is for the person to decide
ERROR_BODY_BYTES = 65536
BUFFERED_EVENTS = 256


class Upstream:
    """One server. `start` it to learn its models, `close` it in the end."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.settings = checked(settings)
        self.name = settings.name
        self.problem: str | None = None  # why its models could not be listed
        self.owner = ""  # what it says of itself in the list: pagoda, llamacpp, ...
        self.refused: set[str] = set()  # fields that it does not take
        self._models = list(settings.models)
        self._watchers: list[Callable[[], None]] = []
        self._listing: asyncio.Task[None] | None = None
        self._again = asyncio.Event()
        # A connection that was kept may be closed by the server just when a request goes out on it, and then nobody
        # knows whether the request was taken. Each reply has a connection of its own.
        self.client = httpx.AsyncClient(
            http2=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            timeout=httpx.Timeout(None, connect=CONNECT_S, read=self.settings.patience_s),
        )

    def models(self) -> list[str]:
        return list(self._models)

    def source(self, model: str) -> "UpstreamSource":
        return UpstreamSource(self, model)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(callback)
        return lambda: self._watchers.remove(callback) if callback in self._watchers else None

    async def start(self) -> None:
        """Begin to learn its models; returns at once."""
        self._listing = asyncio.create_task(self._keep_list(), name=f"models of {self.name}")

    async def close(self) -> None:
        """End everything with it."""
        if self._listing is not None:
            self._listing.cancel()
            await asyncio.gather(self._listing, return_exceptions=True)
        await self.client.aclose()

    def refresh(self) -> None:
        """Ask for its models again, soon."""
        self._again.set()

    def headers(self) -> dict[str, str]:
        """For each request. Uncompressed, because what compresses also buffers."""
        key = self.settings.key
        return {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def url(self, path: str) -> str:
        return f"{self.settings.base_url}/{path}"

    async def _keep_list(self) -> None:
        pause = 2.0
        while True:
            await self._list()
            pause = min(pause * 2, 60.0) if self.problem else LIST_EVERY_S
            self._again.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._again.wait(), pause)

    async def _list(self) -> None:
        before = (self._models, self.problem)
        try:
            answer = await self.client.get(self.url("models"), headers=self.headers(), timeout=LIST_TIMEOUT_S)
            if answer.status_code == 200:
                rows = answer.json()["data"]
                found = [row["id"] for row in rows if isinstance(row.get("id"), str)]
                self._models = found or list(self.settings.models)
                self.owner = next((str(row.get("owned_by")) for row in rows), "")
                self.problem = None
            else:
                self.problem = refused(self.settings, answer.status_code, answer.text).message
        except httpx.HTTPError as error:
            self.problem = unreachable(self.settings, error)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.problem = f"{self.name} has no list of models at its base URL, which mostly ends in /v1. Check it."
        if before != (self._models, self.problem):
            for callback in list(self._watchers):
                callback()


class UpstreamSource:
    """One model of an upstream."""

    elsewhere = True

    def __init__(self, upstream: Upstream, model: str) -> None:
        self.name, self.lane, self.capacity = f"{upstream.name}/{model}", upstream.name, upstream.settings.concurrency
        self._upstream, self._model = upstream, model

    def status(self) -> ModelStatus:
        problem = self._upstream.problem
        return ModelStatus(self.name, "failed" if problem else "ready", problem)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._upstream.watch(callback)

    def retry(self) -> None:
        self._upstream.refresh()

    def restart(self) -> None:
        pass  # an abort closes the connection, whatever the other side does

    def warm(self, messages: Messages) -> None:
        pass  # what it keeps is its own affair

    async def run(self, request: Generate, abort: AbortSignal) -> AsyncGenerator[SourceEvent, None]:
        """Reading happens in a task of its own, so that an abort ends it wherever it is."""
        said: asyncio.Queue[SourceEvent | BaseException | None] = asyncio.Queue(BUFFERED_EVENTS)
        reading = asyncio.create_task(self._read_into(request, said))

        def stop() -> None:
            reading.cancel()
            if said.full():  # all of what nobody has seen yet, so that no gap is left
                while not said.empty():
                    said.get_nowait()
            said.put_nowait(Ended("aborted"))

        unlisten = abort.on_abort(stop)
        try:
            while (item := await said.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
                if isinstance(item, Ended | RunFailed):
                    return
        finally:
            unlisten()
            # Once only: a second cancel would break off the closing of the connection, and the server would write on.
            if not reading.cancelling():
                reading.cancel()
            await asyncio.wait({reading})

    async def _read_into(self, request: Generate, said: "asyncio.Queue[SourceEvent | BaseException | None]") -> None:
        try:
            async with aclosing(self._events(request)) as events:
                async for event in events:
                    await said.put(event)
            await said.put(None)
        except Exception as error:
            await said.put(error)

    async def _events(self, request: Generate) -> AsyncGenerator[SourceEvent, None]:
        upstream = self._upstream
        if isinstance(request, Forwarded):
            body, path = forwarded(request.body, upstream.owner), request.path
        else:
            body, path = body_of(request, upstream.owner), "chat/completions"
        body = {**body, "model": self._model, "stream": True}
        waits = list(BACKOFF_S)
        while True:
            asked = without_refused(body, upstream.refused)
            try:
                response = await upstream.client.send(
                    upstream.client.build_request("POST", upstream.url(path), json=asked, headers=upstream.headers()),
                    stream=True,
                )
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if waits and not _hopeless(error):
                    await asyncio.sleep(waits.pop(0))
                    continue
                yield RunFailed(request.run_id, "upstream_unreachable", unreachable(upstream.settings, error))
                return
            except httpx.ReadTimeout as error:
                raise SourceInterrupted(Reason.NETWORK, unreachable(upstream.settings, error)) from error
            except httpx.HTTPError as error:
                # It may have begun: a person decides whether to ask again.
                yield RunFailed(request.run_id, "upstream_unreachable", unreachable(upstream.settings, error))
                return
            try:
                if response.status_code == 200:
                    async with aclosing(self._reply(request.run_id, response)) as events:
                        async for event in events:
                            yield event
                    return
                refusal = refused(upstream.settings, response.status_code, await _start_of(response), self._model)
                if refusal.field(asked) is not None:
                    upstream.refused.add(refusal.field(asked) or "")
                    continue
                wait = _retry_after(response) if response.status_code in (429, 503) else None
                if waits and wait is not None and wait <= LONGEST_WAIT_S:
                    log.info("%s is busy (%d), again in %.1f s", self.name, response.status_code, wait)
                    await response.aclose()
                    await asyncio.sleep(max(wait, waits.pop(0)))
                    continue
                yield RunFailed(request.run_id, refusal.kind, refusal.message, refusal.param)
                return
            finally:
                await response.aclose()

    async def _reply(self, run_id: str, response: httpx.Response) -> AsyncGenerator[SourceEvent, None]:
        reply = Reply(run_id, self._upstream.name)
        pieces = response.aiter_bytes()
        broken: httpx.HTTPError | None = None
        try:
            while not (reply.done or reply.failed):
                try:
                    limit = LINGER_S if reply.finished else None
                    piece = await asyncio.wait_for(anext(pieces), limit) if limit else await anext(pieces)
                except StopAsyncIteration:
                    break
                for event in reply.feed(piece):
                    yield event
        except TimeoutError:
            pass  # the reply is there, only counts are missing
        except httpx.HTTPError as error:
            broken = error
        try:
            for event in reply.close():
                yield event
        except SourceInterrupted:
            if broken is not None:
                raise SourceInterrupted(Reason.NETWORK, unreachable(self._upstream.settings, broken)) from broken
            raise


async def _start_of(response: httpx.Response) -> str:
    """The words of a refusal, which may be a huge web page."""
    body = b""
    with suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(LINGER_S):
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > ERROR_BODY_BYTES:
                    break
    return body.decode("utf-8", "replace")


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(float(response.headers.get("retry-after", "0")), 0.0)
    except ValueError:
        return LONGEST_WAIT_S + 1  # a date: too far to wait for in silence


def _hopeless(error: httpx.HTTPError) -> bool:
    """A certificate that is wrong now is wrong in a second."""
    return "certificate" in str(error).lower() or "ssl" in str(error).lower()
