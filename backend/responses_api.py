"""OpenAI's responses API in its minimum: text in, text out, whole or streamed; nothing is stored."""

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
from backend.sampling import MOST_TOKENS, to_engine
from backend.states import Reason, State
from backend.wording import sound
from engine.events import Generate

PATH = "/v1/responses"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class Part(_Strict):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] | None = None


class Said(_Strict):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[Part], Field(min_length=1)]
    id: str | None = None
    status: str | None = None


class Format(_Strict):
    type: Literal["text"]


class TextOptions(_Strict):
    format: Format | None = None


class Reasoning(_Strict):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class Body(_Strict):
    model: str
    input: Annotated[str, Field(min_length=1)] | Annotated[list[Said], Field(min_length=1)]
    instructions: str | None = None
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: Annotated[list[Any], Field(max_length=0)] = []
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: bool = True
    include: Annotated[list[Any], Field(max_length=0)] = []
    truncation: Literal["disabled"] | None = None
    store: Any = None  # nothing is kept of it, whatever is asked; `previous_response_id` is refused
    metadata: dict[str, Any] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None


def routes(gateway: Gateway) -> APIRouter:
    """POST /v1/responses."""
    api = APIRouter()
    desk = Desk(gateway)

    @api.post(PATH)
    async def responses(body: dict[str, Any], client: Request) -> Response:
        try:
            asked = Body.model_validate({key: value for key, value in body.items() if value is not None})
        except ValidationError as error:
            raise refusal(error) from error
        desk.known(asked.model)
        answer = desk.answer(client, body, "resp_", asked.model, lambda id: _generate(id, asked), wait=False)
        whole = None if asked.stream else lambda texts, end: _response(answer, asked, texts, end)
        return await deliver(client, answer, whole, lambda: _events(answer, asked))

    return api


def _generate(run_id: str, asked: Body) -> Generate:
    messages = [{"role": "system", "content": sound(asked.instructions)}] if asked.instructions else []
    if isinstance(asked.input, str):
        messages.append({"role": "user", "content": sound(asked.input)})
    else:
        for said in asked.input:
            role = "system" if said.role == "developer" else said.role
            text = said.content if isinstance(said.content, str) else "\n".join(part.text for part in said.content)
            messages.append({"role": role, "content": sound(text)})
    wishes: dict[str, Any] = asked.model_dump(include={"temperature", "top_p"}, exclude_none=True)
    if asked.max_output_tokens is not None:
        wishes["max_tokens"] = asked.max_output_tokens
    effort = asked.reasoning.effort if asked.reasoning is not None else None
    template = {"reasoning_effort": effort} if effort else {}
    return Generate(run_id, tuple(messages), to_engine(wishes), template=template)


def _item(answer: Answer, text: str | None, status: str) -> dict[str, Any]:
    content = [] if text is None else [_part(text)]
    return {"id": f"msg_{answer.id}", "type": "message", "role": "assistant", "status": status, "content": content}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


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
        "output": [_item(answer, content_of(texts), "incomplete" if cut else "completed")] if end and not error else [],
        "parallel_tool_calls": asked.parallel_tool_calls,
        "previous_response_id": None,
        "store": False,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "max_output_tokens": asked.max_output_tokens,
        "tool_choice": asked.tool_choice,
        "tools": [],
        "metadata": asked.metadata or {},
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": usage.get("cached_tokens", 0), "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        if usage
        else None,
    }


async def _events(answer: Answer, asked: Body) -> AsyncGenerator[bytes, None]:
    number = -1

    def say(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return event({"type": f"response.{kind}", "sequence_number": number, **fields}, f"response.{kind}")

    place = {"item_id": f"msg_{answer.id}", "output_index": 0, "content_index": 0}
    yield say("created", response=_response(answer, asked))
    yield say("in_progress", response=_response(answer, asked))
    yield say("output_item.added", output_index=0, item=_item(answer, None, "in_progress"))
    yield say("content_part.added", **place, part=_part(""))
    texts: list[Text] = []
    async with aclosing(answer.payloads()) as payloads:
        async for payload in payloads:
            if isinstance(payload, Text):
                texts.append(payload)
                if payload.text and payload.channel is None:
                    yield say("output_text.delta", **place, delta=payload.text, logprobs=[])
            elif isinstance(payload, StateChange) and payload.state.terminal:
                if payload.state != State.COMPLETE:
                    failure = Failure(payload)
                    error = {"code": "server_error", "message": failure.message}
                    yield say("failed", response=_response(answer, asked, texts, payload, error))
                    return
                whole = _response(answer, asked, texts, payload)
                yield say("output_text.done", **place, text=content_of(texts), logprobs=[])
                yield say("content_part.done", **place, part=_part(content_of(texts)))
                yield say("output_item.done", output_index=0, item=whole["output"][0])
                yield say("completed" if whole["status"] == "completed" else "incomplete", response=whole)
