"""Brings an answer to the client of an API: in one piece or as a stream, and ends it when the client leaves."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from backend.answer import Answer
from backend.chunks import StateChange, Text
from backend.event_stream import respond

T = TypeVar("T")
LEFT = 499  # the client is gone: nobody reads this status


async def deliver(
    client: Request,
    answer: Answer,
    whole: Callable[[list[Text], StateChange], dict[str, Any]] | None,
    events: Callable[[], AsyncGenerator[bytes, None]],
    at_once: bool = False,
) -> Response:
    """With `whole` one JSON object, otherwise the events. A stream begins when there is something to tell, so that a
    failure before that has its own status; `at_once`: without waiting. Raises Failure."""
    try:
        if whole is not None:
            found = await unless_gone(client, answer.whole())
            return Response(status_code=LEFT) if found is None else JSONResponse(whole(*found))
        if not at_once and not await unless_gone(client, answer.begun()):
            answer.leave()
            return Response(status_code=LEFT)
    except BaseException:
        answer.leave()
        raise
    return respond(events(), on_end=answer.leave)


async def unless_gone(client: Request, work: Awaitable[T]) -> T | None:
    """What `work` gives, or None as soon as the client has left: then the work is cancelled."""
    whole = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(client))
    try:
        await asyncio.wait({whole, gone}, return_when=asyncio.FIRST_COMPLETED)
        return whole.result() if whole.done() else None
    finally:
        for task in (whole, gone):
            task.cancel()


async def _gone(client: Request) -> None:
    while (await client.receive())["type"] != "http.disconnect":
        pass
