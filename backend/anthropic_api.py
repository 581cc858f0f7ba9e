"""Anthropic's messages API: text and tool calls, whole or streamed, and the counting of tokens."""

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from backend.answer import Answer, Desk, Failure
from backend.anthropic_request import Prompt, generate, read
from backend.chunks import StateChange, Text
from backend.completion_shapes import Parts, parts_of
from backend.delivery import LEFT, deliver, unless_gone
from backend.event_stream import event
from backend.gateway import Gateway
from backend.refusals import error_body
from backend.states import Reason, State

PATH = "/v1/messages"


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/messages and /v1/messages/count_tokens."""
    api = APIRouter()
    desk = Desk(gateway)

    @api.post(PATH)
    async def messages(body: dict[str, Any], client: Request) -> Response:
        asked = read(body := desk.with_model(body))
        model = desk.known(asked.model)
        answer = desk.answer(client, body, "msg_", model, lambda id: generate(id, asked), wait=False)
        whole = None if asked.stream else lambda texts, end: _message(answer, model, texts, end)
        return await deliver(client, answer, whole, lambda: _events(answer, model))

    @api.post(f"{PATH}/count_tokens")
    async def count_tokens(body: dict[str, Any], client: Request) -> Response:
        asked = read(body := desk.with_model(body), Prompt)
        model = desk.here(asked.model)
        answer = desk.answer(client, body, "msg_", model, lambda id: generate(id, asked, count_only=True), wait=False)
        found = await unless_gone(client, answer.whole())
        if found is None:
            return Response(status_code=LEFT)
        return JSONResponse({"input_tokens": (found[1].usage or {})["prompt_tokens"]})

    return api


def _message(answer: Answer, model: str, texts: Sequence[Text], end: StateChange | None) -> dict[str, Any]:
    parts = parts_of(texts)
    return {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(_content(parts)) if end is not None else [],
        **_stop(end, bool(parts.calls)),
        "usage": _usage(end),
    }


def _content(parts: Parts) -> Iterator[dict[str, Any]]:
    if parts.thought:
        yield {"type": "thinking", "thinking": parts.thought, "signature": ""}
    if parts.said or not parts.calls:
        yield {"type": "text", "text": parts.said}
    for call in parts.calls:
        function = call["function"]
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": _object(function["arguments"])}


class _Blocks:
    """Opens and closes the blocks of a streamed message, one after the other."""

    def __init__(self) -> None:
        self._index, self._now = -1, ""
        self.called = False

    def of(self, text: Text) -> Iterator[bytes]:
        """The events for a piece of the reply."""
        if text.text and text.channel != "mark":
            kind, field = ("thinking", "thinking") if text.channel == "reasoning" else ("text", "text")
            block = {"type": kind, field: ""} | ({"signature": ""} if kind == "thinking" else {})
            yield from self._in(kind, block)
            yield self._delta(type=f"{kind}_delta", **{field: text.text})
        for number, piece in enumerate((text.extra or {}).get("tool_calls") or ()):
            self.called = True
            said = piece.get("function") or {}
            block = {"type": "tool_use", "id": piece.get("id"), "name": said.get("name"), "input": {}}
            yield from self._in(f"tool {piece.get('index', number)}", block)
            if said.get("arguments"):
                yield self._delta(type="input_json_delta", partial_json=said["arguments"])

    def close(self) -> Iterator[bytes]:
        if self._now:
            yield _event("content_block_stop", index=self._index)

    def _in(self, block: str, begin: dict[str, Any]) -> Iterator[bytes]:
        if block != self._now:
            yield from self.close()
            self._index, self._now = self._index + 1, block
            yield _event("content_block_start", index=self._index, content_block=begin)

    def _delta(self, **delta: Any) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


async def _events(answer: Answer, model: str) -> AsyncGenerator[bytes, None]:
    yield _event("message_start", message=_message(answer, model, (), None))
    blocks = _Blocks()
    async with aclosing(answer.told()) as told:
        async for payload in told:
            if isinstance(payload, Text):
                for block in blocks.of(payload):
                    yield block
            elif payload.state != State.COMPLETE:
                failure = Failure(payload)
                yield event(error_body(PATH, failure.kind, failure.message, None, failure.status), "error")
            else:
                for block in blocks.close():
                    yield block
                yield _event("message_delta", delta=_stop(payload, blocks.called), usage=_usage(payload))
                yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _stop(end: StateChange | None, called: bool) -> dict[str, str | None]:
    """Why it ended; while it goes on, nothing."""
    if end is None:
        return {"stop_reason": None, "stop_sequence": None}
    if end.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    limits = {Reason.LENGTH: "max_tokens", Reason.CONTEXT_FULL: "model_context_window_exceeded"}
    reason = limits.get(end.reason or Reason.STOP)  # type: ignore[arg-type]
    return {"stop_reason": reason or ("tool_use" if called else "end_turn"), "stop_sequence": None}


def _object(arguments: str) -> dict[str, Any]:
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        found = arguments
    return found if isinstance(found, dict) else {"arguments": found}  # an upstream's, in no shape that fits here


def _usage(end: StateChange | None) -> dict[str, int]:
    """At the beginning of a stream nothing is counted yet; the last event has the counts."""
    usage = (end.usage if end is not None else None) or {}
    cached = usage.get("cached_tokens", 0)
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.get("completion_tokens", 0),
    }
