"""Tells the parts of a reply of gpt-oss apart as it is written; does for its form what engine/speech.py does for marks.

Where nobody asks for the parts, they are one text, with its thoughts between the tags that other models write.
"""

import json
import secrets
from collections.abc import Iterable, Sequence

from mlx_lm.tokenizer_utils import TokenizerWrapper

from engine.events import Generate
from engine.harmony import END_THINK, THINK, Piece, Reader, called, written
from engine.speech import Said
from engine.text import StopFilter, TextStream, spelled


class HarmonySpeech:
    """`add` the text as it comes, `finish` with what was held back.

    Stop strings are looked for here, in the answer alone: a header is nobody's word. `before` is the text, headers and
    all, of a reply that goes on, and `shown` what has been told of it.
    """

    def __init__(self, request: Generate, stop: Sequence[str], before: str = "", shown: str = "") -> None:
        self._apart, self._tools = request.apart, bool(request.tools)
        self._reader, self._stops = Reader(), StopFilter(stop)
        self._call = ""
        self._told: set[str] = set()
        self._open = False  # a thought, in the one text
        self.over = False  # a call is made, and ends the reply
        told = self._said(self._reader.feed(before)).text
        self._owed, self._twice = told[len(shown) :], max(len(shown) - len(told), 0)

    @property
    def stopped(self) -> str | None:
        """The stop string that came."""
        return self._stops.stopped

    @property
    def thinking(self) -> bool:
        """Whether the newest text is a thought."""
        return self._reader.thinking

    def add(self, text: str) -> Said:
        """What is certain once this has come."""
        return self._fresh(self._said(self._reader.feed(text)))

    def finish(self, text: str) -> Said:
        """The end: a mark that was only begun is text, and a call that cannot be read is told as it was written."""
        said = self._said([*self._reader.feed(text), *self._reader.finish()])
        return self._fresh(Said(said.text + self._stops.finish(), said.thought, said.calls))

    def _fresh(self, said: Said) -> Said:
        """Without what is on screen already, with what should have been."""
        text, self._owed = self._owed + said.text, ""
        cut = min(self._twice, len(text))
        self._twice -= cut
        return Said(text[cut:], said.thought, said.calls)

    def _said(self, pieces: Iterable[Piece]) -> Said:
        said = Said()
        for piece in pieces:
            if self.over:
                break
            if piece.kind == "call" and self._tools:
                more = self._called(piece)
            elif piece.kind == "thought":
                more = self._thought(piece)
            else:
                more = self._answer(piece)
            said = Said(said.text + more.text, said.thought + more.thought, said.calls + more.calls)
        return said

    def _called(self, piece: Piece) -> Said:
        self._call += piece.text
        if not piece.over:
            return Said()
        arguments, self._call = self._call, ""
        try:
            if not isinstance(json.loads(arguments), dict):
                raise ValueError("arguments are an object")
        except ValueError:  # nothing that a model said is lost
            return self._answer(Piece("answer", "", f"{piece.header}<|message|>{arguments}"))
        self.over = True
        function = {"name": called(piece.header), "arguments": arguments.strip()}
        return Said(calls=({"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function},))

    def _thought(self, piece: Piece) -> Said:
        if not piece.text:
            return Said()
        if self._apart:
            return Said(thought=self._between(piece) + piece.text)
        mark = "" if self._open else f"\n\n{THINK}" if "answer" in self._told else THINK
        between = self._between(piece) if self._open else ""
        self._open = True
        self._told.add("thought")
        return Said(mark + between + piece.text)

    def _answer(self, piece: Piece) -> Said:
        text = piece.text
        if piece.begins and piece.kind == "call":  # of a tool that nobody offered: told as it was written
            text = f"{piece.header}<|message|>{text}"
        if not text:
            return Said()
        mark, self._open = (END_THINK, False) if self._open else (self._between(piece), False)
        self._told.add("answer")
        return Said(self._stops.add(mark + text))

    def _between(self, piece: Piece) -> str:
        """What parts this message from an earlier one of its kind."""
        kind = "thought" if piece.kind == "thought" else "answer"
        between = "\n\n" if piece.begins and kind in self._told else ""
        self._told.add(kind)
        return between


def reply_tokens(tokenizer: TokenizerWrapper, request: Generate, stop: Sequence[str]) -> tuple[int, ...]:
    """The ids that a reply goes on from when `prefix_text` is on screen: those that were sampled, as long as they say
    that, else what is shown in the form that the model writes."""
    tokens, shown = request.prefix_tokens, request.prefix_text
    if tokens:
        speech = HarmonySpeech(request, stop, spelled(tokenizer, tokens))
        told = speech.add("").text
        if speech.stopped is None and (told.startswith(shown) or shown.startswith(told)):
            return tokens
    return tuple(tokenizer.encode(written(shown), add_special_tokens=False))


def take_up(
    tokenizer: TokenizerWrapper, request: Generate, stop: Sequence[str]
) -> tuple[tuple[int, ...], TextStream, HarmonySpeech]:
    """The ids that a reply begins with or goes on from, and what reads its text from there."""
    tokens = reply_tokens(tokenizer, request, stop)
    before = spelled(tokenizer, tokens)
    text = TextStream(tokenizer, (), tokens, before)
    return tokens, text, HarmonySpeech(request, stop, before, request.prefix_text)
