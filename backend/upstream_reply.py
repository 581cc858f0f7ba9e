"""What an OpenAI-compatible server says in answer to one request, from bytes to events. No network in here.

It takes a stream, a whole JSON answer to a request for a stream, or a web page that somebody's proxy put there, and
tells the endings apart: a proper one, an error, and a stream that just stops.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from backend.sources import Delta, Ended, Reading, SourceEvent, SourceInterrupted
from backend.sse import LIMIT_BYTES, Comment, Decoder, Event, TooLong
from backend.states import Reason
from engine.events import RunFailed

# mlx_lm.server tells of prefill in its heartbeats.
_KEEPALIVE = re.compile(r"keepalive (\d+)/(\d+)")
_LENGTH = ("length", "max_tokens", "model_length")
_THINK, _END_THINK = "<think>\n", "\n</think>\n\n"
# Fields of a delta that are text for a person; whatever else one has is for API clients.
_SPOKEN = ("content", "reasoning_content", "reasoning", "role", "refusal")


class Reply:
    """`feed` it the body as it comes, then `close` it. After a RunFailed, or once `done`, nothing more is worth
    reading; `finished` says that the reply itself is there and only counts may follow."""

    def __init__(self, run_id: str, name: str, limit: int = LIMIT_BYTES) -> None:
        self._run_id, self._name, self._limit = run_id, name, limit
        self._decoder = Decoder(limit)
        self._head: bytes | None = b""  # until it is known what this is
        self._whole: list[bytes] | None = None  # of an answer that is no stream
        self._whole_size = 0
        self._thinking = False
        self._finish: str | None = None
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self.done = False
        self.failed = False

    @property
    def finished(self) -> bool:
        return self._finish is not None

    def feed(self, data: bytes) -> Iterator[SourceEvent]:
        """What these bytes say."""
        if self._head is not None:
            data = self._head + data
            start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
            if not start and len(data) < 4096:
                self._head = data
                return
            self._head = None
            if start[:1] in (b"{", b"[", b"<"):
                self._whole = []
        try:
            if self._whole is not None:
                self._whole_size += len(data)
                if self._whole_size > self._limit:
                    raise TooLong
                self._whole.append(data)
                return
            items = self._decoder.feed(data)
        except TooLong:
            yield self._fail(f"{self._name} sent a line that does not end. It is no server that can be talked to.")
            return
        yield from self._items(items)

    def close(self) -> Iterator[SourceEvent]:
        """The body is over: the end of the reply. Raises SourceInterrupted when it was not a proper one."""
        if self._whole is not None:
            yield from self._answer(b"".join(self._whole))
        elif not (self.done or self.failed):
            try:
                left = self._decoder.end()
            except TooLong:
                left = []
            yield from self._items(left, over=True)
        if self.failed:
            return
        if not (self.done or self.finished):
            raise SourceInterrupted(
                Reason.UPSTREAM_ENDED,
                f"{self._name} ended the reply in its middle. What came is kept: Continue goes on from there.",
            )
        yield from self._ending()

    def _items(self, items: list[Event | Comment], over: bool = False) -> Iterator[SourceEvent]:
        for item in items:
            if self.done or self.failed:
                return
            if isinstance(item, Comment):
                if match := _KEEPALIVE.search(item.text):
                    yield Reading(int(match[1]), int(match[2]))
            elif item.data.strip() == "[DONE]":
                self.done = True
            elif item.data.strip():
                for line in _documents(item.data):
                    if line.strip() == "[DONE]":
                        self.done = True
                        return
                    try:
                        found = json.loads(line)
                    except ValueError:
                        if not over:  # else it is the last line, cut in its middle
                            yield self._fail(f"{self._name} sent something that is no JSON: {line[:100]!r}.")
                        return
                    yield from self._object(found, item.name == "error")

    def _object(self, found: Any, error: bool = False) -> Iterator[SourceEvent]:
        if not isinstance(found, dict):
            yield self._fail(f"{self._name} sent {str(found)[:100]!r} where a piece of a reply belongs.")
            return
        if error or found.get("error") or found.get("object") == "error":
            yield self._fail(f"{self._name} says: {error_words(found) or 'something went wrong.'}")
            return
        yield from self._reading(found)
        if isinstance(usage := found.get("usage"), dict):
            self._usage = usage
        if isinstance(timings := found.get("timings"), dict):
            self._timings = timings
        choices = found.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return
        said = choice.get("delta") or choice.get("message")
        if isinstance(said, dict):
            yield from self._said(said, choice.get("logprobs"))
        elif isinstance(text := choice.get("text"), str) and text:
            yield Delta(text)
        if isinstance(why := choice.get("finish_reason"), str) and why:
            self._finish = why
            if why in ("error", "content_filter"):
                yield self._fail(f"{self._name} ended the reply: {'its content filter' if why != 'error' else why}.")

    def _said(self, said: dict[str, Any], logprobs: Any) -> Iterator[SourceEvent]:
        thought = next((said[key] for key in ("reasoning_content", "reasoning") if isinstance(said.get(key), str)), "")
        if thought:
            if not self._thinking:
                self._thinking = True
                yield Delta(_THINK, "mark")
            yield Delta(thought, "reasoning")
        content = next(
            (said[key] for key in ("content", "refusal") if isinstance(said.get(key), str) and said[key]), ""
        )
        extra: dict[str, Any] = {key: value for key, value in said.items() if key not in _SPOKEN and value}
        if logprobs:
            extra["logprobs"] = logprobs
        if content or extra:
            yield from self._after_thought()
            yield Delta(content, extra=extra or None)

    def _after_thought(self) -> Iterator[SourceEvent]:
        if self._thinking:
            self._thinking = False
            yield Delta(_END_THINK, "mark")

    def _reading(self, found: dict[str, Any]) -> Iterator[SourceEvent]:
        """llama.cpp's `prompt_progress`, or another Pagoda's progress."""
        progress = found.get("prompt_progress")
        if isinstance(progress, dict):
            done, total = progress.get("processed"), progress.get("total")
        else:
            pagoda = found.get("pagoda")
            progress = pagoda.get("progress") if isinstance(pagoda, dict) else None
            if not isinstance(progress, dict) or progress.get("stage") != "prefill":
                return
            done, total = progress.get("tokens_done"), progress.get("tokens_total")
        if isinstance(done, int) and isinstance(total, int) and 0 <= done <= total:
            yield Reading(done, total)

    def _answer(self, body: bytes) -> Iterator[SourceEvent]:
        text = body.decode("utf-8-sig", "replace").strip()
        if text.startswith("<"):
            yield self._fail(
                f"{self._name} answered with a web page, not as an API. Check its base URL: it mostly ends in /v1."
            )
            return
        try:
            found = json.loads(text)
        except ValueError:
            return  # cut in its middle
        if isinstance(found, dict) and isinstance(found.get("choices"), list):
            self.done = True
        yield from self._object(found)

    def _ending(self) -> Iterator[SourceEvent]:
        yield from self._after_thought()
        yield Ended(
            "length" if self._finish in _LENGTH else "stop",
            _count(self._usage.get("prompt_tokens")),
            _count(self._usage.get("completion_tokens")),
            self._detail("prompt_tokens_details", "cached_tokens"),
            _seconds(self._timings.get("prompt_ms")),
            _seconds(self._timings.get("predicted_ms")),
            self._detail("completion_tokens_details", "reasoning_tokens"),
        )

    def _detail(self, name: str, what: str) -> int | None:
        details = self._usage.get(name)
        return _count(details.get(what)) if isinstance(details, dict) else None

    def _fail(self, message: str, kind: str = "upstream_error") -> RunFailed:
        self.failed = True
        return RunFailed(self._run_id, kind, message)


def error_words(found: Any) -> str:
    """What an error body says, in any of the shapes that servers use; empty when it says nothing."""
    if isinstance(found, str):
        return found.strip()[:500]
    if isinstance(found, list):
        return next((words for item in found if (words := error_words(item))), "")
    if not isinstance(found, dict):
        return ""
    return next((words for key in ("error", "message", "detail", "msg") if (words := error_words(found.get(key)))), "")


def _documents(data: str) -> list[str]:
    """One JSON document, or one in each line where a server forgot the blank lines between its events."""
    if "\n" not in data:
        return [data]
    try:
        json.loads(data)
    except ValueError:
        return [line for line in data.split("\n") if line.strip()]
    return [data]


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _seconds(ms: Any) -> float | None:
    return ms / 1000 if type(ms) in (int, float) and ms >= 0 else None
