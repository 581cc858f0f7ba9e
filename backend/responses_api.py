"""OpenAI's responses API: text, thoughts and function calls, whole or streamed; nothing is stored."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backend.answer import Answer, Desk, Failure
from backend.chunks import StateChange, Text
from backend.completion_shapes import parts_of
from backend.delivery import deliver
from backend.event_stream import event
from backend.gateway import Gateway
from backend.responses_request import Body, generate, read
from backend.states import Reason, State

PATH = "/v1/responses"


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/responses."""
    api = APIRouter()
    desk = Desk(gateway)

    @api.post(PATH)
    async def responses(body: dict[str, Any], client: Request) -> Response:
        asked = read(body := desk.with_model(body))
        model = desk.known(asked.model)
        answer = desk.answer(client, body, "resp_", model, lambda id: generate(id, asked), wait=False)
        whole = None if asked.stream else lambda texts, end: _response(answer, asked, texts, end)
        return await deliver(client, answer, whole, lambda: _events(answer, asked))

    return api


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _items(answer: Answer, texts: Sequence[Text], status: str) -> list[dict[str, Any]]:
    """The output: what was thought, what was said, what was called."""
    found: list[dict[str, Any]] = []
    parts = parts_of(texts)
    if parts.thought:
        content = [{"type": "reasoning_text", "text": parts.thought}]
        found.append({"id": f"rs_{answer.id}", "type": "reasoning", "summary": [], "content": content})
    if parts.said or not parts.calls:
        message = {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "status": status}
        found.append(message | {"content": [_part(parts.said)]})
    for number, call in enumerate(parts.calls):
        found.append(_function_call(f"fc_{number}_{answer.id}", call, status))
    return found


def _function_call(id: str, call: dict[str, Any], status: str) -> dict[str, Any]:
    function = call.get("function") or {}
    return {
        "id": id,
        "type": "function_call",
        "status": status,
        "call_id": call.get("id") or id,
        "name": function.get("name") or "",
        "arguments": function.get("arguments") or "",
    }


def _response(
    answer: Answer, asked: Body, texts: Sequence[Text] = (), end: StateChange | None = None, error: Any = None
) -> dict[str, Any]:
    cut = end is not None and end.state == State.COMPLETE and end.reason != Reason.STOP
    status = "in_progress" if end is None else "failed" if error else "incomplete" if cut else "completed"
    usage = (end.usage if end is not None else None) or {}
    return {
        "id": answer.id,
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "error": error,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": asked.instructions,
        "model": asked.model,
        "output": _items(answer, texts, "incomplete" if cut else "completed") if end and not error else [],
        "parallel_tool_calls": asked.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": asked.reasoning.model_dump() if asked.reasoning else None,
        "store": False,
        "temperature": asked.temperature,
        "text": asked.text.model_dump(by_alias=True, exclude_none=True) if asked.text else {"format": {"type": "text"}},
        "top_p": asked.top_p,
        "max_output_tokens": asked.max_output_tokens,
        "tool_choice": asked.tool_choice,
        "tools": [{"parameters": None, "strict": None, **tool.model_dump()} for tool in asked.tools],
        "metadata": asked.metadata or {},
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": usage.get("cached_tokens", 0), "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": usage.get("reasoning_tokens", 0)},
            "total_tokens": usage["total_tokens"],
        }
        if usage
        else None,
    }


class _Stream:
    """The events of a response: each item is opened, grows, and is closed before the next."""

    def __init__(self, answer: Answer, asked: Body) -> None:
        self._answer, self._asked = answer, asked
        self._number = self._index = -1
        self._now = ""
        self._item: dict[str, Any] = {}
        self._texts: list[Text] = []  # all of it
        self._calls = 0

    def say(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        kind = f"response.{kind}"
        return event({"type": kind, "sequence_number": self._number, **fields}, kind)

    def begin(self) -> Iterator[bytes]:
        yield self.say("created", response=_response(self._answer, self._asked))
        yield self.say("in_progress", response=_response(self._answer, self._asked))

    def of(self, text: Text) -> Iterator[bytes]:
        """A piece of the reply."""
        self._texts.append(text)
        if text.text and text.channel == "reasoning":
            yield from self._open("reasoning")
            self._item["content"][0]["text"] += text.text
            yield self.say("reasoning_text.delta", **self._place(), delta=text.text)
        elif text.text and text.channel is None:
            yield from self._open("message")
            self._item["content"][0]["text"] += text.text
            yield self.say("output_text.delta", **self._place(), delta=text.text, logprobs=[])
        for number, piece in enumerate((text.extra or {}).get("tool_calls") or ()):
            yield from self._open(f"call {piece.get('index', number)}", piece)
            if more := (piece.get("function") or {}).get("arguments"):
                self._item["arguments"] += more
                where = {"item_id": self._item["id"], "output_index": self._index}
                yield self.say("function_call_arguments.delta", **where, delta=more)

    def end(self, end: StateChange) -> Iterator[bytes]:
        if end.state != State.COMPLETE:
            error = {"code": "server_error", "message": Failure(end).message}
            yield self.say("failed", response=_response(self._answer, self._asked, self._texts, end, error))
            return
        if not self._now:
            yield from self._open("message")
        whole = _response(self._answer, self._asked, self._texts, end)
        yield from self._close("completed" if whole["status"] == "completed" else "incomplete")
        yield self.say(whole["status"], response=whole)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item["id"], "output_index": self._index, "content_index": 0}

    def _open(self, what: str, call: dict[str, Any] | None = None) -> Iterator[bytes]:
        if what == self._now:
            return
        yield from self._close("completed")
        self._now, self._index = what, self._index + 1
        if call is not None:
            named = call | {"function": (call.get("function") or {}) | {"arguments": ""}}
            self._item = _function_call(f"fc_{self._calls}_{self._answer.id}", named, "in_progress")
            self._calls += 1
            yield self.say("output_item.added", output_index=self._index, item=self._item)
            return
        reasoning = what == "reasoning"
        head = {"type": what, "summary": []} if reasoning else {"type": what, "role": "assistant"}
        prefix = "rs" if reasoning else "msg"
        self._item = {"id": f"{prefix}_{self._answer.id}", "status": "in_progress", **head, "content": []}
        yield self.say("output_item.added", output_index=self._index, item=self._item)
        self._item["content"] = [{"type": "reasoning_text", "text": ""} if reasoning else _part("")]
        yield self.say("content_part.added", **self._place(), part=self._item["content"][0])

    def _close(self, status: str) -> Iterator[bytes]:
        if not self._now:
            return
        self._item["status"] = status
        if self._item["type"] == "function_call":
            where = {"item_id": self._item["id"], "output_index": self._index}
            said = {"name": self._item["name"], "arguments": self._item["arguments"]}
            yield self.say("function_call_arguments.done", **where, **said)
        else:
            part = self._item["content"][0]
            if part["type"] == "output_text":
                yield self.say("output_text.done", **self._place(), text=part["text"], logprobs=[])
            else:
                yield self.say("reasoning_text.done", **self._place(), text=part["text"])
            yield self.say("content_part.done", **self._place(), part=part)
        yield self.say("output_item.done", output_index=self._index, item=self._item)


async def _events(answer: Answer, asked: Body) -> AsyncGenerator[bytes, None]:
    stream = _Stream(answer, asked)
    for block in stream.begin():
        yield block
    async with aclosing(answer.told()) as told:
        async for payload in told:
            for block in stream.of(payload) if isinstance(payload, Text) else stream.end(payload):
                yield block
