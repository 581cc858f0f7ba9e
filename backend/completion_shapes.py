"""The shapes of the OpenAI API: chat completions and text completions, whole and in pieces."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from backend.answer import Answer, Failure
from backend.chunks import Payload, Progress, StateChange, Text
from backend.event_stream import event
from backend.refusals import error_body
from backend.states import Reason, State


class ChatShape:
    """What a chat completion looks like on the wire. `include_usage` and `progress` are what the client asked for."""

    prefix, path, kind = "chatcmpl-", "/v1/chat/completions", "chat.completion"

    def __init__(self, answer: Answer, model: str, include_usage: bool = False, progress: bool = False) -> None:
        self._answer, self._model = answer, model
        self._include_usage, self._progress = include_usage, progress
        self._tools = False
        self._written = 0

    def first(self) -> bytes:
        """The chunk that opens the assistant's message."""
        return self._delta({"role": "assistant", "content": "", "refusal": None})

    def blocks(self, payload: Payload) -> Iterator[bytes]:
        """The events for what the source said."""
        match payload:
            case Text():
                delta, logprobs = self._said(payload)
                self._tools = self._tools or "tool_calls" in delta
                if delta or logprobs:
                    yield self._delta(delta, logprobs=logprobs)
            case Progress() if self._progress:
                progress = {key: value for key, value in asdict(payload).items() if value is not None}
                yield event({**self._chunk([]), "pagoda": {"progress": progress}})
            case StateChange(state=State.COMPLETE):
                yield self._delta({}, self._finish_reason(payload))
                if self._include_usage:
                    yield event({**self._chunk([]), "usage": usage_of(payload), "pagoda": {"timings": payload.timings}})
                yield b"data: [DONE]\n\n"
            case StateChange(state=state) if state.terminal:
                failure = Failure(payload)
                yield event(error_body(self.path, failure.kind, failure.message, failure.param, failure.status))

    def whole(self, texts: Sequence[Text], end: StateChange) -> dict[str, Any]:
        """The reply in one piece."""
        parts = parts_of(texts)
        message: dict[str, Any] = {"role": "assistant", "content": parts.said, "refusal": None}
        if parts.thought:
            message["reasoning_content"] = parts.thought
        if parts.calls:
            self._tools = True
            message |= {"content": parts.said or None, "tool_calls": parts.calls}
        logprobs = [entry for text in texts for entry in ((_said(text)[1] or {}).get("content") or ())]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": {"content": logprobs, "refusal": None} if logprobs else None,
            "finish_reason": self._finish_reason(end),
        }
        return {**self._shape(self.kind, [choice]), "usage": usage_of(end), "pagoda": {"timings": end.timings}}

    def _said(self, text: Text) -> tuple[dict[str, Any], dict[str, Any] | None]:
        return _said(text)

    def _finish_reason(self, end: StateChange) -> str:
        return "tool_calls" if self._tools and end.reason == Reason.STOP else finish_reason(end)

    def _delta(self, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> bytes:
        return event(self._chunk([{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}]))

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._shape(f"{self.kind}.chunk", choices) | ({"usage": None} if self._include_usage else {})

    def _shape(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self._answer.id, "object": kind, "created": self._answer.created, "model": self._model}
        return {**head, "choices": choices, "system_fingerprint": None}


class TextShape(ChatShape):
    """The older kind: a text that goes on."""

    prefix, path, kind = "cmpl-", "/v1/completions", "text_completion"

    def first(self) -> bytes:
        return b""

    def whole(self, texts: Sequence[Text], end: StateChange) -> dict[str, Any]:
        told = _text_logprobs(texts)
        choice = {"index": 0, "text": parts_of(texts).said, "logprobs": told, "finish_reason": finish_reason(end)}
        return {**self._shape(self.kind, [choice]), "usage": usage_of(end), "pagoda": {"timings": end.timings}}

    def _delta(self, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> bytes:
        text = delta.get("content", "")
        return event(self._chunk([{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}]))

    def _said(self, text: Text) -> tuple[dict[str, Any], dict[str, Any] | None]:
        return _said(text)[0], _text_logprobs([text], self._length(text))

    def _length(self, text: Text) -> int:
        """Characters before this piece."""
        before, self._written = self._written, self._written + len(text.text)
        return before

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._shape(self.kind, choices) | ({"usage": None} if self._include_usage else {})


@dataclass(frozen=True)
class Parts:
    """A whole reply: what was thought, what was said, and the calls."""

    thought: str
    said: str
    calls: list[dict[str, Any]]


def parts_of(texts: Sequence[Text]) -> Parts:
    """The pieces of a reply put together."""
    thought = "".join(text.text for text in texts if text.channel == "reasoning")
    return Parts(thought, "".join(text.text for text in texts if text.channel is None), _tool_calls(texts))


def _tool_calls(texts: Sequence[Text]) -> list[dict[str, Any]]:
    """An upstream's tool calls, put together from their pieces."""
    calls: dict[int, dict[str, Any]] = {}
    for text in texts:
        for number, piece in enumerate((text.extra or {}).get("tool_calls") or ()):
            call = calls.setdefault(piece.get("index", number), {"type": "function", "function": {"arguments": ""}})
            call |= {key: piece[key] for key in ("id", "type") if piece.get(key)}
            said = piece.get("function") or {}
            call["function"]["arguments"] += said.get("arguments") or ""
            if said.get("name"):
                call["function"]["name"] = said["name"]
    return [calls[index] for index in sorted(calls)]


def usage_of(end: StateChange) -> dict[str, Any] | None:
    """The counts, with those of the prompt that needed no reading again, and of thoughts where they are known."""
    if end.usage is None:
        return None
    usage = dict(end.usage)
    found = {"prompt_tokens_details": {"cached_tokens": usage.pop("cached_tokens", 0)}}
    if (thought := usage.pop("reasoning_tokens", None)) is not None:
        found["completion_tokens_details"] = {"reasoning_tokens": thought}
    return usage | found


def finish_reason(end: StateChange) -> str:
    """Why the reply ended, in OpenAI's words."""
    return "stop" if end.reason == Reason.STOP else "length"


def _said(text: Text) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The delta and the log probabilities of a piece of text."""
    if text.channel == "mark":
        return {}, None
    extra = dict(text.extra or {})
    logprobs = extra.pop("logprobs", None)
    if text.logprobs:
        (chosen, *likeliest) = [_logprob(*one) for one in text.logprobs]
        logprobs = {"content": [{**chosen, "top_logprobs": likeliest}], "refusal": None}
    name = "reasoning_content" if text.channel == "reasoning" else "content"
    return ({name: text.text} if text.text else {}) | extra, logprobs


def _text_logprobs(texts: Sequence[Text], offset: int = 0) -> dict[str, Any] | None:
    """In the older shape: a list for each thing that is told."""
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for text in texts:
        if text.logprobs:
            (_, token, value), *likeliest = text.logprobs
            found["tokens"].append(token)
            found["token_logprobs"].append(value)
            found["top_logprobs"].append({each: logprob for _, each, logprob in likeliest})
            found["text_offset"].append(offset)
        offset += len(text.text)
    return found if found["tokens"] else None


def _logprob(_: int, text: str, value: float) -> dict[str, Any]:
    # Half a character has no text of its own, and its bytes are not known from it.
    return {"token": text, "logprob": value, "bytes": None if "\ufffd" in text else list(text.encode())}
