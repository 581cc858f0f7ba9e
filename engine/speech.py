"""Tells the parts of a reply apart as it is written: the answer, what was thought before it, and tool calls.

mlx-lm knows the marks that a model puts around its thoughts and calls, and reads the calls. A call that cannot be
read stays in the answer as it was written: nothing that a model said is lost.
"""

import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from mlx_lm.generate import TextStateMachine, make_text_state_machine
from mlx_lm.tokenizer_utils import TokenizerWrapper

from engine.events import Generate

log = logging.getLogger("pagoda.engine")


@dataclass(frozen=True)
class Said:
    """More of a reply. `calls` are whole: {id, type, function: {name, arguments}}, the arguments JSON in a text."""

    text: str = ""
    thought: str = ""
    calls: tuple[dict[str, Any], ...] = ()


class Speech:
    """`add` the text as it comes, `finish` with what was held back. Unless the request asks for the parts, all of it
    is the answer, as it was written."""

    def __init__(self, tokenizer: TokenizerWrapper, request: Generate, thinking: bool) -> None:
        self._tokenizer, self._tools = tokenizer, [dict(tool) for tool in request.tools]
        self._one_call = not request.parallel_calls
        self._state = None
        if request.apart:
            machine = make_text_state_machine(tokenizer if request.tools else _without_calls(tokenizer))
            start = "reasoning" if thinking else tokenizer.response_initial_state or "normal"
            self._state = machine.make_state(start)
        self._now = self._state[0] if self._state else "normal"
        self._call = ""
        self._fresh = False  # nothing but space has come since a thought or a call
        self.over = False  # the one call that was allowed is made
        self.stopped: str | None = None  # stop strings are looked for before this

    @property
    def thinking(self) -> bool:
        """Whether the newest text is a thought."""
        return self._now == "reasoning"

    def add(self, text: str) -> Said:
        """What is certain once this has come."""
        if self._state is None:
            return Said(text)
        self._state, segments = TextStateMachine.split(self._state, text)
        return self._said(segments)

    def finish(self, text: str) -> Said:
        """The end: a mark that was only begun is text."""
        if self._state is None:
            return Said(text)
        self._state, segments = TextStateMachine.split(self._state, text)
        self._state, held, state = TextStateMachine.flush(self._state)
        said = self._said([*segments, (state, held)])
        if self._now != "tool" or self.over:
            return said
        last = self._read(self._call, closed=not self._tokenizer.tool_call_end)
        return Said(said.text + last.text, said.thought, said.calls + last.calls)

    def _said(self, segments: Sequence[tuple[str | None, str]]) -> Said:
        said = Said()
        for state, text in segments:
            if self._now == "tool" and state != "tool" and not self.over:
                called = self._read(self._call, closed=True)
                said = Said(said.text + called.text, said.thought, said.calls + called.calls)
                self.over = self.over or (self._one_call and bool(called.calls))
                self._call = ""
            if state != self._now:
                self._now, self._fresh = state, True
            if self.over:
                continue
            if state == "tool":
                self._call += text
                continue
            if self._fresh:
                text = text.lstrip()
                self._fresh = not text
            if state == "reasoning":
                said = Said(said.text, said.thought + text, said.calls)
            elif state == "normal":  # else it is between two marks and nobody's word
                said = Said(said.text + text, said.thought, said.calls)
        return said

    def _read(self, text: str, closed: bool) -> Said:
        try:
            found = cast(Any, self._tokenizer.tool_parser)(text, self._tools)
            calls = [_call(one) for one in (found if isinstance(found, list) else [found])]
        except Exception as error:  # whatever a parser stumbles over, the words are kept
            log.info("a tool call could not be read: %r", error)
            end = self._tokenizer.tool_call_end if closed else ""
            return Said(f"{self._tokenizer.tool_call_start}{text}{end}")
        return Said(calls=tuple(calls[:1] if self._one_call else calls))


def _without_calls(tokenizer: TokenizerWrapper) -> Any:
    """The marks of a tokenizer as long as nobody offers tools: what looks like a call is text."""
    edges = {
        state: [edge for edge in found if edge[1] != "tool"] for state, found in tokenizer.response_transitions.items()
    }
    return SimpleNamespace(
        has_thinking=tokenizer.has_thinking,
        think_start=tokenizer.think_start,
        think_end=tokenizer.think_end,
        has_tool_calling=False,
        structural_markers=tokenizer.structural_markers,
        response_transitions=edges,
    )


def _call(found: dict[str, Any]) -> dict[str, Any]:
    arguments = found.get("arguments", {})
    if not isinstance(found["name"], str) or not isinstance(arguments, dict):
        raise ValueError(f"no name, or no object of arguments: {found!r}")
    function = {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": found.get("id") or f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
