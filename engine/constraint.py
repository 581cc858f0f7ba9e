"""The shape that a reply has to have: JSON that matches a schema, or tool calls that match the tools' own.

It stands between the logits and the choice of each token. What a model thinks before is left alone, and so is an
answer in words where the request leaves the choice.
"""

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from engine import harmony
from engine.courses import Allowed, Course, exactly, only, within
from engine.events import Generate
from engine.grammar import Grammar, grammar
from engine.harmony_course import harmony_course
from engine.tools import call_grammar, calls_are_json


def constraint_of(tokenizer: TokenizerWrapper, request: Generate, thinking: bool) -> "Constraint | None":
    """What the request asks of its reply, if anything; `thinking`: the prompt ends within a thought.

    Raises Unsupported naming the field that this model cannot be held to.
    """
    if harmony.speaks(tokenizer) and request.raw is None:
        course = harmony_course(tokenizer, request)
        return Constraint(course) if course is not None else None
    if request.schema is None and not (request.tools and calls_are_json(tokenizer)):
        return None
    return Constraint(_Reply(tokenizer, request, thinking).course())


class Constraint:
    """`mask` the logits of each token, then `take` the one that was chosen, until it is `over`."""

    def __init__(self, course: Course) -> None:
        self.over = False
        self._course = course
        self._allowed = next(course)

    def mask(self, row: mx.array) -> mx.array:
        """`row` [1, V] with minus infinity for every token that may not come."""
        if self._allowed is None:
            return row
        return mx.where(mx.array(self._allowed(row.shape[-1]))[None], row, -mx.inf)

    def take(self, token: int) -> None:
        """That token came."""
        try:
            self._allowed = self._course.send(token)
        except StopIteration:
            self.over = True


class _Reply:
    """The courses that a reply can take, of a model that writes calls as JSON between marks."""

    def __init__(self, tokenizer: TokenizerWrapper, request: Generate, thinking: bool) -> None:
        self._tokenizer, self._thinking = tokenizer, thinking
        self._think_start = tuple(tokenizer.think_start_tokens or ())
        self._call_start = tuple(tokenizer.tool_call_start_tokens or ()) if request.tools else ()
        self._call_end = tuple(tokenizer.tool_call_end_tokens or ())
        self._newline = tuple(tokenizer.encode("\n", add_special_tokens=False))
        self._answer: Grammar | None = None
        if request.schema is not None:
            self._answer = Grammar(tokenizer, grammar(request.schema, "response_format"), "response_format")
        self._call = call_grammar(request.tools, request.tool_choice) if request.tools else ""
        if self._call:
            Grammar(tokenizer, self._call, "tools")  # what cannot be done is told before the prompt is read
        self._must_call = bool(request.tools) and request.tool_choice != "auto"
        self._one_call = self._must_call or not request.parallel_calls

    def course(self) -> Course:
        """All of it."""
        if self._answer is None and not self._must_call:
            yield from self._words_and_calls()
            return
        may_think = not self._thinking
        if self._thinking:
            yield from self._thought()
        token = yield self._opening(may_think)
        if may_think and self._think_start[:1] == (token,):
            yield from exactly(self._think_start[1:])
            yield from self._thought()
            token = yield self._opening(False)
        if self._call_start[:1] == (token,):
            yield from exactly(self._call_start[1:])
            yield from self._one()
            if not self._one_call and self._answer is None:
                yield from self._words_and_calls()
        elif self._answer is not None:
            self._answer.take(token)
            yield from within(self._answer)

    def _words_and_calls(self) -> Course:
        """Anything, but a call that was begun is made right."""
        recent: tuple[int, ...] = ()
        while True:
            recent = (*recent, (yield None))[-len(self._call_start) :]
            if recent == self._call_start:
                yield from self._one()
                if self._one_call:
                    return

    def _thought(self) -> Course:
        """Until its end. The reply cannot end before, and no call begins within."""
        end = tuple(self._tokenizer.think_end_tokens or ())
        recent: tuple[int, ...] = ()
        while recent != end:
            recent = (*recent, (yield self._thoughts))[-len(end) :]

    def _one(self) -> Course:
        """The rest of a call whose opening tag has come."""
        yield from exactly(self._newline)
        yield from within(Grammar(self._tokenizer, self._call, "tools"))
        yield from exactly((*self._newline, *self._call_end))

    def _opening(self, may_think: bool) -> Allowed:
        """The first token of a thought, of a call, or of the answer."""
        tokens = (*self._call_start[:1], *(self._think_start[:1] if may_think else ()))
        answer = None if self._must_call else self._answer
        return lambda size: only(tokens, size) | (answer.allowed(size) if answer is not None else False)

    def _thoughts(self, size: int) -> np.ndarray:
        call = self._call_start if len(self._call_start) == 1 else ()
        return ~only((*self._tokenizer.eos_token_ids, *call), size)
