"""One reply to an API request under way: what it said so far, for one reader or, after a repeated request, several.

It belongs to its readers: when the last one leaves, it is stopped, so that nobody's slow reply keeps others waiting.
With an idempotency key it stays for a while, because the same request may come again.
"""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from fastapi import Request

from backend.chunks import Payload, StateChange, Text
from backend.errors import Busy, Conflict, GatewayError, Invalid, NotFound, NotReady
from backend.gateway import Gateway
from backend.sources import Source
from backend.states import Reason, State
from engine.events import Generate

WAITING_LIMIT = 64  # requests that may wait for one source; more would wait longer than clients do
LOADING_RETRY_S = 5
OPENING_S = 2.0  # a prompt that cannot be taken is known as soon as the turn comes; the stream then begins anyway
KEEP_WITHOUT_READER_S = 60.0
REMEMBER_S = 600.0
REMEMBERED = 256

_STATUS = {
    "PromptError": 400,
    "PromptTooLong": 400,
    "Unsupported": 400,
    "upstream_invalid": 400,
    "upstream_not_found": 404,
    "upstream_busy": 429,
    "upstream_unauthorized": 502,
    "upstream_unreachable": 502,
    "upstream_error": 502,
    "BudgetError": 503,
    "CheckpointError": 503,
    "ModelNotLoaded": 503,
    "EngineDied": 503,
}
_CODES = {"PromptError": "invalid_prompt", "PromptTooLong": "context_length_exceeded", "Unsupported": "unsupported"}


class Failure(GatewayError):
    """A reply that ended otherwise than complete, as an error of the API."""

    def __init__(self, end: StateChange) -> None:
        words = "The reply was broken off because Pagoda is shutting down or was restarted. Send it again."
        super().__init__(end.detail or words, end.param)
        kind = end.kind or ("interrupted" if end.state == State.INTERRUPTED else "internal_error")
        self.status = _STATUS.get(kind, 503 if end.state == State.INTERRUPTED else 500)
        self.kind = _CODES.get(kind, kind)
        self.retry_after = 5 if self.status == 429 or end.reason == Reason.RESTARTED else None


class NoModel(NotFound):
    """In the words of the API."""

    kind = "model_not_found"


class Answer:
    """`said` grows until it ends with a terminal state."""

    def __init__(self, prefix: str) -> None:
        self.id = f"{prefix}{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.said: list[Payload] = []
        self.readers = 0
        self.keep_s = 0.0
        self._news = asyncio.Event()
        self._stop: Callable[[], None] = lambda: None

    def begin(self, gateway: Gateway, model: str, request: Generate) -> None:
        """Line up for the model."""
        self._stop = partial(gateway.answer(model, request, self._hear).stop, Reason.CLIENT_LEFT)

    def _hear(self, payload: Payload) -> bool:
        self.said.append(payload)
        self._news.set()
        self._news = asyncio.Event()
        return True

    @property
    def end(self) -> StateChange | None:
        last = self.said[-1] if self.said else None
        return last if isinstance(last, StateChange) and last.state.terminal else None

    async def payloads(self) -> AsyncGenerator[Payload, None]:
        """All it says, from the beginning; the terminal state is the last."""
        self.readers += 1
        at = 0
        try:
            while True:
                news = self._news
                while at < len(self.said):
                    at += 1
                    yield self.said[at - 1]
                if self.end is not None:
                    return
                await news.wait()
        finally:
            self.readers -= 1
            self.leave()

    async def begun(self, within: float = OPENING_S) -> bool:
        """Until there is text or an end, at most so long: then a failure can still be told by its status."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.end is None and not any(isinstance(one, Text) for one in self.said):
                    await self._news.wait()
        if (
            (end := self.end) is not None
            and end.state != State.COMPLETE
            and not any(isinstance(one, Text) for one in self.said)
        ):
            raise Failure(end)
        return True

    async def whole(self) -> tuple[list[Text], StateChange]:
        """The texts and the end of a complete reply. Raises Failure."""
        said = [payload async for payload in self.payloads()]
        end = said[-1]
        assert isinstance(end, StateChange)
        if end.state != State.COMPLETE:
            raise Failure(end)
        return [payload for payload in said if isinstance(payload, Text)], end

    def leave(self) -> None:
        """A reader is gone; without any, the reply is stopped, at once or after a while."""
        if self.readers or self.end is not None:
            return
        if self.keep_s:
            asyncio.get_running_loop().call_later(self.keep_s, lambda: None if self.readers else self._stop())
        else:
            self._stop()


class Desk:
    """Takes the requests of API clients to the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._known: dict[str, tuple[float, str, Answer]] = {}

    def with_model(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body; where there is one model only, it need not be named. Raises Invalid naming what there is."""
        if body.get("model") is not None:
            return body
        models = self.gateway.models()
        if len(models) == 1:
            return body | {"model": models[0]}
        raise Invalid(f"model: name one. This Pagoda serves: {', '.join(models)}.", "model")

    def here(self, model: str) -> str:
        """The name, if that model runs here. Raises NotFound or Invalid."""
        source = self.gateway.source(self.known(model))
        if source.elsewhere:
            raise Invalid(f"{model} runs elsewhere, so its tokens cannot be counted here.", "model")
        return source.name

    def known(self, model: str) -> str:
        """The name, if there is such a model. Raises NotFound."""
        try:
            return self.gateway.source(model).name
        except GatewayError as error:
            raise NoModel(error.message, "model") from error

    def find(self, model: str) -> Source | None:
        """The model's source, if there is such a model."""
        try:
            return self.gateway.source(model)
        except GatewayError:
            return None

    def answer(
        self, client: Request, body: Any, prefix: str, model: str, make: Callable[[str], Generate], wait: bool
    ) -> Answer:
        """The answer to this request, or the one that was begun when the same came before. Raises GatewayError."""
        key = client.headers.get("idempotency-key", "")[:200]
        print_ = hashlib.sha256(json.dumps([client.url.path, body]).encode()).hexdigest()
        if key and (known := self._remembered(key)) is not None:
            if known[0] != print_:
                raise Conflict("This Idempotency-Key was used for another request. Take a new one.")
            return known[1]
        self._may_line_up(model, wait)
        answer = Answer(prefix)
        answer.begin(self.gateway, model, make(answer.id))
        if key:
            answer.keep_s = KEEP_WITHOUT_READER_S
            self._known[key] = (time.monotonic(), print_, answer)
        return answer

    def _remembered(self, key: str) -> tuple[str, Answer] | None:
        oldest = time.monotonic() - REMEMBER_S
        self._known = {k: v for k, v in list(self._known.items())[-REMEMBERED:] if v[0] > oldest}
        if key not in self._known:
            return None
        _, print_, answer = self._known[key]
        if (end := answer.end) is not None and end.state != State.COMPLETE:
            return None  # what failed may be tried again
        return print_, answer

    def _may_line_up(self, model: str, wait: bool) -> None:
        source = self.gateway.source(model)
        status = source.status()
        if status.state == "loading" and not wait:
            error = NotReady(f"{model} is still loading. Ask again soon, or ask for its progress and wait.")
            error.retry_after = LOADING_RETRY_S
            raise error
        if status.state == "failed" and not source.elsewhere:
            raise NotReady(f"{model} could not be loaded. {status.detail or ''}".strip())
        if self.gateway.queue.waiting(source.lane, "api") >= WAITING_LIMIT:
            raise Busy(f"{WAITING_LIMIT} requests wait for {model} already. Ask again later.")
