"""Anthropic's messages API in its minimum: text in, text out, whole or streamed; tools are refused by name."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.answer import Answer, Desk, Failure
from backend.chat_request import refusal
from backend.chunks import StateChange, Text
from backend.completion_shapes import content_of
from backend.delivery import deliver
from backend.event_stream import event
from backend.gateway import Gateway
from backend.refusals import error_body
from backend.sampling import MOST_TOKENS, to_engine
from backend.states import Reason, State
from backend.wording import sound
from engine.events import Generate

PATH = "/v1/messages"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class Block(_Strict):
    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None  # says what to keep for later; it changes nothing in a reply
    citations: None = None


class Said(_Strict):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], Field(min_length=1)]


class Off(_Strict):
    type: Literal["disabled"]


class Body(_Strict):
    model: str
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    messages: Annotated[list[Said], Field(min_length=1)]
    system: str | list[Block] | None = None
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field(default=[], max_length=16)
    tools: Annotated[list[Any], Field(max_length=0)] = []
    thinking: Off | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/messages."""
    api = APIRouter()
    desk = Desk(gateway)

    @api.post(PATH)
    async def messages(body: dict[str, Any], client: Request) -> Response:
        try:
            asked = Body.model_validate(body)
        except ValidationError as error:
            raise refusal(error) from error
        desk.known(asked.model)
        answer = desk.answer(client, body, "msg_", asked.model, lambda id: _generate(id, asked), wait=False)
        model = asked.model
        whole = None if asked.stream else lambda texts, end: _message(answer, model, texts, end)
        return await deliver(client, answer, whole, lambda: _events(answer, model))

    return api


def _generate(run_id: str, asked: Body) -> Generate:
    messages: list[dict[str, str]] = []
    if system := _plain(asked.system or ""):
        messages.append({"role": "system", "content": system})
    for said in asked.messages:
        if messages and messages[-1]["role"] == said.role:
            messages[-1]["content"] += f"\n\n{_plain(said.content)}"
        else:
            messages.append({"role": said.role, "content": _plain(said.content)})
    # Where the assistant spoke last, its reply goes on from there.
    begun = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
    wishes = asked.model_dump(include={"max_tokens", "temperature", "top_p", "top_k"}, exclude_none=True)
    sampling = to_engine(wishes | {"stop": asked.stop_sequences})
    return Generate(run_id, tuple(messages), sampling, prefix_text=begun)


def _plain(content: str | Sequence[Block]) -> str:
    return sound(content if isinstance(content, str) else "\n".join(block.text for block in content))


def _message(answer: Answer, model: str, texts: Sequence[Text], end: StateChange | None) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if thought := "".join(text.text for text in texts if text.channel == "reasoning"):
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    if end is not None:
        content.append({"type": "text", "text": content_of(texts)})
    return {
        "id": answer.id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": _stop_reason(end) if end is not None else None,
        "stop_sequence": None,
        "usage": _usage(end),
    }


async def _events(answer: Answer, model: str) -> AsyncGenerator[bytes, None]:
    yield _event("message_start", message=_message(answer, model, (), None))
    index, now = -1, ""
    async with aclosing(answer.payloads()) as payloads:
        async for payload in payloads:
            if isinstance(payload, Text) and payload.text and payload.channel != "mark":
                kind, field = ("thinking", "thinking") if payload.channel == "reasoning" else ("text", "text")
                if kind != now:
                    if now:
                        yield _event("content_block_stop", index=index)
                    index, now = index + 1, kind
                    block = {"type": kind, field: ""} | ({"signature": ""} if kind == "thinking" else {})
                    yield _event("content_block_start", index=index, content_block=block)
                delta = {"type": f"{kind}_delta", field: payload.text}
                yield _event("content_block_delta", index=index, delta=delta)
            elif isinstance(payload, StateChange) and payload.state.terminal:
                if payload.state != State.COMPLETE:
                    failure = Failure(payload)
                    yield event(error_body(PATH, failure.kind, failure.message, None, failure.status), "error")
                    return
                if now:
                    yield _event("content_block_stop", index=index)
                delta = {"stop_reason": _stop_reason(payload), "stop_sequence": None}
                yield _event("message_delta", delta=delta, usage=_usage(payload))
                yield _event("message_stop")


def _event(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def _stop_reason(end: StateChange) -> str:
    return {Reason.LENGTH: "max_tokens", Reason.CONTEXT_FULL: "model_context_window_exceeded"}.get(
        end.reason or Reason.STOP,  # type: ignore[arg-type]
        "end_turn",
    )


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
