"""Reads what the next layer will probably want while this one waits or computes, for as long as that pays.

The next layer's router is run on what this layer's experts were given: the stream between two layers changes little, so
most of its choice is right. What is guessed is read with the disk's lowest priority into slots set aside for it
(SlotStore.guess). Whether that saves more than it costs depends on the disk, the processor and the model, and no
estimate of it is worth as much as trying: tokens are timed in turns with and without, and what is faster goes on.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from engine.paged import PagedExperts
from engine.slots import SlotStore

# Tokens of one turn. The first one after a change is not counted: it finds what the other way left behind.
TURN = 8
# It has to be clearly better to be worth the slots it takes.
WORTH = 0.97
# After a decision so many tokens pass before the next trial; twice as many each time that it doesn't pay.
REST, LONGEST_REST = 128, 4096


class Payoff:
    """Decides between two ways by timing them in turns: without, with, without, with, then the better one for long."""

    def __init__(self) -> None:
        self.on = False
        self._rest = REST
        self._turns: list[list[float]] = [[]]
        self._left = 0

    def took(self, seconds: float) -> bool:
        """A token took so long, the way that `on` says; whether `on` changed."""
        before = self.on
        if self._left:
            self._left -= 1
            if not self._left:
                self._turns, self.on = [[]], False
            return self.on != before
        self._turns[-1].append(seconds)
        if len(self._turns[-1]) <= TURN:
            return False
        if len(self._turns) < 4:
            self._turns.append([])
            self.on = len(self._turns) % 2 == 0
            return True
        without, with_it = (median(self._turns[i][1:] + self._turns[i + 2][1:]) for i in (0, 1))
        self.on = with_it < WORTH * without
        self._rest = REST if self.on else min(2 * self._rest, LONGEST_REST)
        self._left = self._rest
        return self.on != before


class Lookahead:
    """Of one model: runs the routers ahead while `payoff` says so."""

    def __init__(self, payoff: Payoff | None = None):
        """`payoff` None: always on."""
        self._payoff = payoff
        self._stores: dict[SlotStore, int] = {}
        self._began = 0.0
        self.on = payoff is None

    def install(self, model: nn.Module, modules: Sequence[tuple[str, PagedExperts]], top_k: int) -> None:
        """Let each of `modules`, (path, module) in layer order, look ahead to the next one."""
        self._stores = {module.store: 2 * top_k for _, module in modules}
        for number, ((_, here), (path, ahead)) in enumerate(pairwise(modules)):
            here.ahead = _Step(self, ahead, _block_of(model, path), begins=number == 0)
        if self.on:
            self._set_aside(True)

    def begins(self) -> None:
        """A token arrives at the first layer with experts."""
        now = perf_counter()
        if self._payoff is not None and self._began and self._payoff.took(now - self._began):
            self.on = self._payoff.on
            self._set_aside(self.on)
        self._began = now

    def interrupted(self) -> None:
        """Something else than the next token came: the time since the last one says nothing."""
        self._began = 0.0

    def gave_up(self) -> None:
        """This model's routers can't be run apart from their layers."""
        self._payoff, self.on = None, False
        self._set_aside(False)

    def _set_aside(self, on: bool) -> None:
        for store, slots in self._stores.items():
            store.stage(0)
            # A few slots of many, or guesses would cost more hits than they are worth.
            if on and store.slots >= 4 * slots:
                store.stage(slots)


class _Guessed(BaseException):
    """Carries a router's choice out of its layer before anything is done about it."""

    def __init__(self, chosen: np.ndarray):
        self.chosen = chosen


class _Step:
    """From one module of experts to the next."""

    def __init__(self, lookahead: Lookahead, ahead: PagedExperts, block: Callable[[Any], Any], begins: bool):
        self._lookahead, self._ahead, self._block, self._begins = lookahead, ahead, block, begins

    def passes(self, single: bool) -> None:
        """Tokens arrive at this module: one of one reply, or several."""
        if not single:
            self._lookahead.interrupted()
        elif self._begins:
            self._lookahead.begins()

    def guess(self, x: mx.array) -> None:
        """Start to read what the next module will probably choose after x [..., D]."""
        if not self._lookahead.on:
            return
        self._ahead.only_guessing = _Guessed
        try:
            self._block(x)
        except _Guessed as guessed:
            self._ahead.store.guess(self._ahead.place, np.unique(guessed.chosen))
        except Exception:
            self._lookahead.gave_up()
        finally:
            self._ahead.only_guessing = None


def _block_of(model: Any, path: str) -> Callable[[Any], Any]:
    """The module that routes to the experts at `path`: the one they are in."""
    for part in path.split(".")[:-1]:
        model = model[int(part)] if isinstance(model, list) else getattr(model, part)
    return model
