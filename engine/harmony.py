"""The form in which gpt-oss speaks: messages with a header, whose channel says what is thought and what is the answer,
and whose recipient says what is called.

A reply is `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`; a call has
`to=functions.NAME` in its header and JSON for its text. mlx-lm knows nothing of it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

_MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_IN_HEADER = ("<|channel|>", "<|constrain|>", "<|message|>")
_OPENINGS = ("<|channel|>", "<|constrain|>", " to=", "to=")  # what a header can begin with, behind its role
_TO = re.compile(r"to=functions\.([\w.:-]+)")
# A reply on a page is one text; there its thoughts stand between these, as other models write them.
THINK, END_THINK = "<think>\n", "\n</think>\n\n"
_SHOWN = re.compile(r"\A<think>\n(.*?)(?:\n</think>\n\n(.*))?\Z", re.DOTALL)


def speaks(tokenizer: TokenizerWrapper) -> bool:
    """Whether the model has been taught this form."""
    return set(_MARKS) <= set(getattr(tokenizer, "added_tokens_encoder", None) or ())


def called(header: str) -> str | None:
    """The function that a message with this header calls."""
    found = _TO.search(header)
    return found[1] if found else None


@dataclass(frozen=True)
class Piece:
    """More text of a message, which `begins` with it or is `over` with it. `kind`: thought | answer | call."""

    kind: str
    header: str
    text: str = ""
    begins: bool = False
    over: bool = False


class Reader:
    """`feed` it the text of a reply as it comes, `finish` with what was held back. A text without any header is an
    answer."""

    def __init__(self) -> None:
        self._held = ""  # at the end of the text: may be the beginning of a mark
        self._header: str | None = "assistant"  # of the message that begins; None: this is between two messages
        self._kind = ""  # of the message whose text it is; empty: this is its header
        self._begins = False

    @property
    def thinking(self) -> bool:
        return self._kind == "thought"

    def feed(self, text: str) -> Iterator[Piece]:
        """What is certain once this has come."""
        self._held += text
        while mark := _MARK.search(self._held):
            before, self._held = self._held[: mark.start()], self._held[mark.end() :]
            yield from self._words(before)
            yield from self._mark(mark[0])
        certain = len(self._held) - _begun(self._held)
        text, self._held = self._held[:certain], self._held[certain:]
        yield from self._words(text)

    def finish(self) -> Iterator[Piece]:
        """The end: a mark that was only begun is text, and the message is over."""
        held, self._held = self._held, ""
        yield from self._words(held)
        yield from self._over()

    def _words(self, text: str) -> Iterator[Piece]:
        if not text:
            return
        if not self._kind:
            if self._header is None:
                return
            self._header += text
            if _can_open(self._header):
                return
            text = self._header.removeprefix("assistant")  # it does not keep to the form: all of it is the answer
            self._kind, self._header, self._begins = "answer", "", True
        begins, self._begins = self._begins, False
        yield Piece(self._kind, self._header or "", text, begins)

    def _mark(self, mark: str) -> Iterator[Piece]:
        if self._kind and mark in _IN_HEADER:
            yield from self._words(mark)
            return
        if self._kind:
            yield from self._over()
        if mark == "<|start|>":
            self._header = ""
        elif self._header is not None and mark == "<|message|>":
            self._header = self._header.removeprefix("assistant")
            thought = "<|channel|>analysis" in self._header
            self._kind = "call" if called(self._header) else "thought" if thought else "answer"
            self._begins = True
        elif self._header is not None and mark in _IN_HEADER:
            self._header += mark
        else:
            self._header = None

    def _over(self) -> Iterator[Piece]:
        if self._kind:
            yield Piece(self._kind, self._header or "", "", self._begins, over=True)
        self._kind, self._header = "", None


def _begun(text: str) -> int:
    """Characters at the end that may begin a mark."""
    at = text.rfind("<")
    return len(text) - at if at >= 0 and any(mark.startswith(text[at:]) for mark in _MARKS) else 0


def _can_open(header: str) -> bool:
    if "assistant".startswith(header):
        return True
    header = header.removeprefix("assistant")
    return any(header.startswith(way) or way.startswith(header) for way in _OPENINGS)


def written(shown: str) -> str:
    """A reply on screen as the model would have written it."""
    found = _SHOWN.match(shown)
    if found is None:
        return f"<|channel|>final<|message|>{shown}" if shown else ""
    thought = f"<|channel|>analysis<|message|>{found[1]}"
    if found[2] is None:
        return thought
    return f"{thought}<|end|><|start|>assistant<|channel|>final<|message|>{found[2]}"


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as templates of this form take them: thoughts by the name of `thinking`, none within the content,
    and one call in each message, followed by what came of it."""
    found: list[dict[str, Any]] = []
    rest = [dict(message) for message in messages]
    while rest:
        message = rest.pop(0)
        if message["role"] != "assistant":
            found.append(message)
            continue
        calls = message.pop("tool_calls", None) or []
        results = list(takewhile(lambda one: one["role"] == "tool", rest)) if len(calls) > 1 else []
        del rest[: len(results)]
        message = _thoughts_apart(message, bool(calls))
        for call in calls:
            of_it = [one for one in results if one.get("tool_call_id") == call.get("id")]
            found += [{**message, "tool_calls": [call]}, *of_it]
            message = {"role": "assistant", "content": ""}
        if not calls:
            found.append(message)
    return found


def _thoughts_apart(message: dict[str, Any], calls: bool) -> dict[str, Any]:
    thought, content = message.pop("reasoning_content", None) or "", message.get("content") or ""
    if shown := _SHOWN.match(content):
        thought, content = thought or shown[1], shown[2] or ""
    if calls and thought and content:  # such a message has room for one of them
        thought, content = f"{thought}\n\n{content}", ""
    # Templates refuse a conversation with their marks in it.
    return {**message, "content": _MARK.sub("", content)} | ({"thinking": _MARK.sub("", thought)} if thought else {})
