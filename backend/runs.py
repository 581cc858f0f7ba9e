"""One attempt from its place in the queue to its terminal state, as a task that belongs to the gateway.

It knows nothing of pages or requests. What it has to say goes through `deliver`, which journals and publishes.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from backend.abort import AbortController
from backend.chunks import Payload, StateChange, Text
from backend.errors import GatewayError
from backend.meter import Meter
from backend.pace import Pace
from backend.queue import Queue
from backend.sources import Delta, Ended, Reading, Source, SourceEvent, SourceInterrupted
from backend.states import Reason, State
from backend.throttle import Throttle
from engine.errors import PromptTooLong
from engine.events import Finished, Generate, Loading, Progress, RunFailed, Token

log = logging.getLogger("pagoda.replies")
prompts = logging.getLogger("pagoda.prompts")  # silent unless a person asked for it
prompts.setLevel(logging.WARNING)

# A stop reaches the engine inside the current layer. If even that takes longer than this, the person is not kept
# waiting: the attempt ends now, and what the engine says afterwards is dropped. Its place in the queue stays taken.
STOP_GRACE_S = 3.0
# A source that says nothing for so long after an abort hangs. While somebody waits for it, it is started again. On a
# slow machine one layer of a large chunk of prompt may take ten seconds.
HUNG_S = 30.0


class Run:
    """`request` is built when the turn comes, so that it contains the replies that ended meanwhile."""

    def __init__(
        self,
        source: Source,
        queue: Queue,
        key: str,
        request: Callable[[], Generate],
        deliver: Callable[[Payload], bool],
        share: str | None = None,
        pace: Pace | None = None,
        id: str = "",
    ) -> None:
        self._id = id or key
        self._source, self._queue, self._key, self._share = source, queue, key, share
        self._request = request
        self._deliver = deliver
        self._abort = AbortController()
        self._pace = pace
        self._meter = Meter(pace)
        self._throttle = Throttle(self._send)
        self._streaming = self._ended = self._started = self._waited = False
        self._calls = 0
        self._grace: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._heard = 0.0  # when the source last said something, or was told to stop

    def start(self) -> asyncio.Task[None]:
        """Line up now; the rest happens in the returned task."""
        self._ticket = self._queue.enter(
            self._source.lane,
            self._key,
            self._wait_at,
            self._source.capacity,
            self._share,
            None if self._source.elsewhere else self._source.name,
        )
        self._abort.signal.on_abort(self._on_abort)
        return asyncio.get_running_loop().create_task(self._go())

    def _wait_at(self, place: int, behind: str | None) -> None:
        self._waited = True
        self._throttle.offer(self._meter.queued(place, behind))

    def silence(self) -> float | None:
        """Seconds since its source last said anything; None while it waits for its turn."""
        return self._meter.silence() if self._started else None

    def stop(self, reason: Reason = Reason.STOPPED_BY_PERSON) -> None:
        """The person's Stop, or that of whoever asked for it. Text that is there stays."""
        self._abort.abort(reason)

    def cut(self, state: State, reason: Reason, detail: str | None = None) -> None:
        """Enter a terminal state now, without waiting for the source; what it still says is dropped."""
        try:
            self._end(state, reason, detail)
        finally:  # whatever went wrong in saying so: nothing computes for a reply that nobody gets
            self._abort.abort(reason)

    def _end(
        self,
        state: State,
        reason: Reason,
        detail: str | None = None,
        kind: str | None = None,
        param: str | None = None,
        stop: str | None = None,
    ) -> None:
        if self._ended:
            return
        self._throttle.flush()
        if self._ended:  # the flush found that nothing can be written any more
            return
        self._ended = True
        log.info("%s %s: %s", self._id, self._source.name, _in_short(state, reason, self._meter))
        timings = self._meter.timings()
        if self._pace is not None:
            self._pace.learn(timings)
        self._deliver(StateChange(state, reason, detail, self._meter.usage(), timings, kind, param, stop))

    def _on_abort(self) -> None:
        if not self._started:
            self._cancelled()
            self._ticket.leave()
        else:
            loop = asyncio.get_running_loop()
            self._heard = loop.time()
            self._grace = loop.call_later(STOP_GRACE_S, self._cancelled)
            self._patience = loop.call_later(HUNG_S, self._lose_patience)

    def _lose_patience(self) -> None:
        """Nobody comes past a source that hangs: who has a turn beside this one hears nothing either."""
        loop = asyncio.get_running_loop()
        silent = loop.time() - self._heard
        if silent >= HUNG_S and self._queue.wanted(self._source.lane, self._ticket):
            log.warning("%s said nothing for %.0f s after a stop: it is started again", self._source.name, silent)
            self._source.restart()
        else:
            self._patience = loop.call_later(max(HUNG_S - silent, HUNG_S / 10), self._lose_patience)

    def _cancelled(self) -> None:
        self._end(State.CANCELLED, self._stopped())

    def _stopped(self) -> Reason:
        return Reason(self._abort.signal.reason or Reason.STOPPED_BY_PERSON)

    async def _go(self) -> None:
        try:
            if await self._ticket.turn():
                self._started = True
                self._meter.turn_came()
                if self._waited:
                    self._throttle.offer(self._meter.begun())
                if not self._ended:
                    await self._consume()
            if self._abort.signal.aborted:
                self._cancelled()
            else:
                self._end(State.INTERRUPTED, Reason.UPSTREAM_ENDED, "The reply broke off without a proper end.")
        except SourceInterrupted as error:
            self._end(State.INTERRUPTED, error.reason, error.message)
        except GatewayError as error:
            self._end(State.FAILED, Reason.ERROR, error.message)
        except Exception as error:
            log.exception("a run ended in an unexpected way")
            self._end(State.FAILED, Reason.ERROR, f"Something unexpected went wrong in Pagoda: {error!r}. Try again.")
        finally:
            self._throttle.close()
            for timer in (self._grace, self._patience):
                if timer is not None:
                    timer.cancel()
            self._ticket.leave()

    async def _consume(self) -> None:
        request = self._request()
        self._meter.asked(request.sampling.max_tokens)
        prompts.info("%s %s reads: %s", self._id, self._source.name, request.messages)
        async with aclosing(self._source.run(request, self._abort.signal)) as events:
            async for event in events:
                self._heard = asyncio.get_running_loop().time()
                self._meter.see(event)
                self._take(event)

    def _take(self, event: SourceEvent) -> None:
        match event:
            case Loading() | Progress() | Reading():
                if not self._ended:
                    self._throttle.offer(self._meter.progress(event))
            case Token(token=token, text=text, logprobs=logprobs, thought=thought, calls=calls):
                if thought:
                    self._text(Text(thought, (token,), "reasoning"))
                if text or not (thought or calls):
                    self._text(Text(text, (token,), logprobs=logprobs or None))
                self._called(calls)
            case Delta(text=text, channel=channel, extra=extra):
                self._text(Text(text, channel=channel, extra=extra))
            case Ended():
                self._end(*self._ending(event))
            case Finished():
                if event.thought:
                    self._text(Text(event.thought, channel="reasoning"))
                if event.text:
                    self._text(Text(event.text))
                self._called(event.calls)
                self._end(*self._ending(event), stop=event.stop)
            case RunFailed():
                reason = Reason.TOO_LONG if event.kind == PromptTooLong.__name__ else Reason.ERROR
                self._end(State.FAILED, reason, event.message, event.kind, event.param)

    def _called(self, calls: Sequence[dict[str, Any]]) -> None:
        """Tool calls, each whole."""
        for call in calls:
            self._text(Text("", extra={"tool_calls": [{"index": self._calls, **call}]}))
            self._calls += 1

    def _text(self, text: Text) -> None:
        if self._ended:
            return
        if text.text and not self._streaming:
            self._streaming = True
            self._throttle.flush()
            self._send(StateChange(State.STREAMING))
        self._send(text)

    def _send(self, payload: Payload) -> None:
        if self._ended:
            return
        try:
            self._deliver(payload)
        except GatewayError as error:
            # Said here, because a timer's exception is heard by nobody; what cannot be kept is not worth computing.
            self.cut(State.FAILED, Reason.ERROR, error.message)

    def _ending(self, event: Finished | Ended) -> tuple[State, Reason]:
        match event.reason:
            case "stop":
                return State.COMPLETE, Reason.STOP
            case "length":
                full = isinstance(event, Finished) and event.context_full
                return State.COMPLETE, Reason.CONTEXT_FULL if full else Reason.LENGTH
            case "aborted" if not self._abort.signal.aborted:
                return State.INTERRUPTED, Reason.ENGINE_DIED
            case "aborted":
                return State.CANCELLED, self._stopped()
        raise ValueError(f"a source ended with the unknown reason {event.reason!r}")


def _in_short(state: State, reason: Reason, meter: Meter) -> str:
    usage = meter.usage()
    tokens = f", {usage['prompt_tokens']} tokens read, {usage['completion_tokens']} written" if usage else ""
    return f"{state.value} ({reason.value}){tokens}, {meter.elapsed():.2f} s"
