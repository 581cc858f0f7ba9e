"""All replies that are being made with one model: their prompts read in slices, their tokens drawn together.

A pass for all that write reads each expert once. Between two such passes at most one slice of one prompt is read, so
that nobody who writes waits for long.
"""

import logging
import threading
from collections import deque
from contextlib import suppress
from time import perf_counter
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from engine import kv, memory
from engine.decode import PREFILL_CHUNK, Emit, Run
from engine.errors import Aborted, EngineError
from engine.events import REPLIES_AT_ONCE, Generate
from engine.loader import PagedModel
from engine.prefix import Prefixes
from engine.prefix_files import PrefixFiles
from engine.prompt import prompt_tokens
from engine.slot_plan import WORKING_BYTES
from engine.speculation import Drafter

log = logging.getLogger("pagoda.engine")

# How long those that write may wait for a slice of somebody's prompt, or so many of their own passes if those are
# slower. On a disk that is the limit a slice costs nearly as much as a whole chunk, so it must not be too small.
WAIT_S, WAIT_PASSES = 1.0, 4.0
FIRST_SLICE, LEAST_SLICE = 64, 8
# A reply that has just been taken in grows before anybody looks again.
GROWTH_TOKENS = 256


class Batch:
    """`room` is how many bytes states may take that no reply is working on. Call `step` as long as it is `busy`."""

    def __init__(
        self,
        model: PagedModel,
        room: int,
        files: PrefixFiles | None = None,
        guesses: bool = True,
        draft: Drafter | None = None,
    ):
        """`guesses`: try tokens that have come before, or that `draft` says, where that pays."""
        self._draft = draft
        self.model, self.room = model, room
        # Measured: with all experts in memory each guessed token costs what a token costs, so nothing can be gained.
        self._guesses = guesses and model.sizes.slot_bytes < model.sizes.expert_bytes
        self.prefixes = Prefixes(lambda: make_prompt_cache(model), lambda: self.room, files, model.liked)
        self.waiting: deque[Run] = deque()
        self.reading: deque[Run] = deque()
        self.writing: list[Run] = []
        self._slice = FIRST_SLICE
        self._pass_s = 0.0
        self._token_bytes = 0.0

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.waiting or self.reading or self.writing)

    def add(self, request: Generate, emit: Emit, abort: threading.Event | None = None) -> None:
        """Take in a reply; all about it goes to `emit`, from Progress to Finished or RunFailed."""
        run = Run(self.model, self.prefixes, request, emit, abort or threading.Event(), self._draft)
        try:
            run.begin()
        except Exception as error:
            self._fail(run, error)
        else:
            if not run.ended:
                self.waiting.append(run)

    def warm(self, messages: tuple[dict[str, Any], ...]) -> None:
        """A person looks at this conversation: have its state and its experts ready, if nobody asks for anything."""
        if not self.busy:
            with suppress(EngineError):  # a prompt that the model can't take is said when somebody sends it
                self.model.warm(self.prefixes.warm(prompt_tokens(self.model, Generate("", messages))))

    def step(self) -> None:
        """One slice of a prompt, then one token for everybody who writes."""
        self._end_stopped()
        self._admit()
        if self.reading:
            self._read()
        if self.writing:
            self._write()
            self._make_room()

    def finish(self) -> None:
        """Until there is nothing more to do."""
        while self.busy:
            self.step()

    def close(self) -> None:
        """End all replies; return when what they computed is written."""
        for run in self._all():
            run.abort.set()
        self._end_stopped()
        self.prefixes.close()

    @property
    def state_bytes(self) -> int:
        """The memory that the states of running replies take."""
        return sum(kv.nbytes(run.state) for run in (*self.reading, *self.writing))

    @property
    def _most_bytes(self) -> int:
        """What those states may take: experts give way to them, but only half of what they can."""
        return self.room + self.model.budget.available_bytes // 2

    def _all(self) -> list[Run]:
        return [*self.waiting, *self.reading, *self.writing]

    def _end_stopped(self) -> None:
        for run in self._all():
            if run.abort.is_set() or run.ended:
                run.end("aborted")
                self._let_go(run)

    def _admit(self) -> None:
        while self.waiting and len(self.reading) + len(self.writing) < REPLIES_AT_ONCE:
            run = self.waiting[0]
            if (self.reading or self.writing) and not self._fits(len(run.tokens) + GROWTH_TOKENS):
                return
            self.waiting.popleft()
            run.take_up()
            (self.reading if run.unread else self.writing).append(run)

    def _fits(self, tokens: int) -> bool:
        """Whether there is memory for a state of so many tokens more, going by what a token has taken so far."""
        rates = [kv.nbytes(run.state) / run.fed for run in (*self.reading, *self.writing) if run.fed]
        self._token_bytes = max(rates, default=self._token_bytes)
        if not self._token_bytes:
            return False  # the first slice will tell
        return self.state_bytes + tokens * self._token_bytes <= self._most_bytes

    def _read(self) -> None:
        run = self.reading.popleft()
        others = bool(self.writing)
        started = perf_counter()
        try:
            most = self.model.tokens_at_once(self._slice if others else PREFILL_CHUNK)
            run.read(most, lambda layer: self._at_layer([run], layer))
        except Aborted:
            run.end("aborted")
            self._let_go(run)
            return
        except Exception as error:
            self._fail(run, error)
            return
        if others:
            self._learn_slice(perf_counter() - started)
        if run.unread:
            self.reading.append(run)
        else:
            self.writing.append(run)

    def _learn_slice(self, took: float) -> None:
        bound = max(WAIT_S, WAIT_PASSES * self._pass_s)
        if took > bound:
            self._slice = max(self._slice // 2, LEAST_SLICE)
        elif took < bound / 3:
            self._slice = min(self._slice * 2, PREFILL_CHUNK)

    def _write(self) -> None:
        """One token for each. What goes wrong in common is tried again one by one, so that it ends only its own."""
        started = perf_counter()
        runs = self._still_writing()
        try:
            self._pass(runs)
        except Aborted:
            for run in runs:
                run.end("aborted")
        except Exception as error:
            if len(runs) == 1:
                self._fail(runs[0], error)
                return
            log.info("a pass of %d replies failed (%s); each goes on alone", len(runs), error)
            for run in runs:
                self._alone(run)
        self._pass_s = perf_counter() - started
        for run in runs:
            if run.ended:
                self._let_go(run)

    def _still_writing(self) -> list[Run]:
        """Those whose next token can be drawn: a limit of none ends a reply here, a lost state is read again."""
        for run in list(self.writing):
            if run.full:
                run.end("length")
                self._let_go(run)
            elif run.unread:
                self.writing.remove(run)
                self.waiting.appendleft(run)
        return list(self.writing)

    def _alone(self, run: Run) -> None:
        if run.unread:  # its state was lost with the pass; it is read again
            return
        try:
            self._pass([run])
        except Aborted:
            run.end("aborted")
        except Exception as error:
            self._fail(run, error)

    def _pass(self, runs: list[Run]) -> None:
        """Raises what the pass raises, with all states as they were before it, or lost."""
        if not runs:
            return
        undos = [kv.undo(run.state, before_prompt=False) for run in runs]
        started = perf_counter()
        # Guesses cost those who write beside them, so they are for whoever writes alone.
        guessed = runs[0].guess() if len(runs) == 1 and self._guesses else []
        tokens = [*(run.tokens[-1] for run in runs), *guessed]
        states = [run.state for run in runs] + [runs[0].state] * len(guessed)
        for run in runs:
            run.fed_last(len(runs))
        self.model.watch.begin(lambda layer: self._at_layer(runs, layer), _AllStopped(runs))
        try:
            rows = self.model.next_logits(tokens, states)
        except BaseException:
            for run, undo in zip(runs, undos, strict=True):
                if not undo():
                    run.lose()
            raise
        finally:
            self.model.watch.end()
            for run in runs:
                run.share.end()
        seconds = perf_counter() - started
        for index, run in enumerate(runs):
            try:
                run.take_all(guessed, rows[index : index + 1 + len(guessed)], seconds)
            except Exception as error:
                run.lose()  # numbers that are no numbers are not kept
                run.fail(error)

    def _at_layer(self, runs: list[Run], layer: int) -> None:
        """A pass of these replies has come to a layer. It goes on, but whoever else was stopped is told so now."""
        for run in (*self._all(), *runs):
            if run.abort.is_set():
                run.end("aborted")
        for run in runs:
            run.report(layer)

    def _make_room(self) -> None:
        """States grow. First those go that nobody works on, then the youngest reply waits."""
        if any(run.fed % GROWTH_TOKENS == 0 for run in self.writing):
            self.prefixes.shrink()
            while len(self.writing) > 1 and self.state_bytes > self._most_bytes:
                run = self.writing.pop()
                log.info("a reply waits: there is no memory for its conversation beside the others")
                run.keep()
                run.lose()
                self.waiting.appendleft(run)

    def _fail(self, run: Run, error: Exception) -> None:
        log.info("run %s failed", run.request.run_id, exc_info=error)
        run.fail(error)
        self._let_go(run)

    def _let_go(self, run: Run) -> None:
        for runs in (self.waiting, self.reading, self.writing):
            if run in runs:
                runs.remove(run)
        run.keep()
        run.lose()


class _AllStopped:
    """Set when nobody wants the pass any more."""

    def __init__(self, runs: list[Run]):
        self._runs = runs

    def is_set(self) -> bool:
        return all(run.ended or run.abort.is_set() for run in self._runs)


def room_for_states(model: PagedModel) -> int:
    """Bytes for states no reply is working on: half of what the budget leaves, at least a quarter of WORKING_BYTES.
    All memory is measured (`Budget`), so whatever they take beyond what is free the experts lose."""
    sizes = model.sizes
    spare = sizes.budget_bytes - max(memory.rss_bytes(), sizes.trunk_bytes + sizes.slot_bytes) - WORKING_BYTES
    return max(spare // 2, WORKING_BYTES // 4)
