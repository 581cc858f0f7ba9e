"""The module that stands where a model's experts were: it makes sure they are in slots, then lets them compute.

The original mlx-lm module is kept and does the mathematics; only its weights are the slot arrays now, and its expert
numbers become slot numbers. So every architecture computes what mlx-lm computes.
"""

from collections import deque
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from engine.budget import Budget
from engine.fetch import Fetch
from engine.kernels import tape
from engine.slots import SlotStore
from engine.watch import Watch

Kernel = Callable[[mx.array, np.ndarray], mx.array]
"""x [..., D] and slot numbers [..., k] to [..., k, D]."""

# Many tokens: so many experts at least are read, and computed, together, so that every core has one; and so many bytes.
_WAVE_EXPERTS = 4
_WAVE_BYTES = 8 << 20
# A layer's results are there as often at once while they are weighed and summed: [..., k, D] in float32.
COPIES = 3


class Ahead(Protocol):
    """What looks ahead from a module: told of each pass, then asked to guess after a single token's activation."""

    def passes(self, single: bool) -> None: ...

    def guess(self, x: mx.array) -> None: ...


@dataclass
class _Half:
    """A token's experts in the `order` in which they are computed; the first `here` of them are, in `out`."""

    order: np.ndarray
    here: int
    out: Any


class PagedExperts(nn.Module):
    """Experts of one layer behind a shared SlotStore. Called like SwitchGLU: x [..., D], indices [..., k]."""

    def __init__(
        self,
        experts: nn.Module,
        layer: int,
        place: int,
        count: int,
        store: SlotStore,
        watch: Watch,
        budget: Budget,
        kernel: Kernel | None = None,
    ):
        """`layer` is the model's layer, for people; `place` the store's number of this module.

        `kernel` computes instead of `experts`, where this machine has a faster one for their format.
        """
        super().__init__()
        self.experts = experts
        self.layer = layer
        self.place = place
        self.count = count
        self.store = store
        self._watch = watch
        self._budget = budget
        self.ahead: Ahead | None = None
        self.only_guessing: type[BaseException] | None = None  # raised with what the router chose, instead of a result
        self._kernel = kernel or (lambda x, slots: experts(x, mx.array(slots)))

    def __getattr__(self, name: str) -> Any:
        """What a model keeps among its experts besides their weights (the norm of muse_spark) is still found there."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "experts" not in self:  # still being made
                raise
            return getattr(self["experts"], name)

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        """What `experts(x, indices)` gives with all of them in memory: [..., k, D]."""
        if self._watch.meeting is not None:
            return self._watch.meeting.attend(self, x, indices)
        return tape.whole(self._of_all, x, indices)

    def _of_all(self, x: mx.array, indices: mx.array) -> mx.array:
        if isinstance(indices, mx.array):
            started = perf_counter()
            mx.eval(x, indices)
            self.store.waited_for_router(perf_counter() - started)
        wanted = np.asarray(indices)
        if self.only_guessing is not None:
            raise self.only_guessing(wanted)
        self._watch.at_layer(self.layer)
        if self.ahead is not None:
            self.ahead.passes(single=wanted.size == wanted.shape[-1])
        self._budget.hold(COPIES * wanted.size * x.shape[-1] * 4)
        self.store.settle()
        self.store.note(self.place, wanted.reshape(-1, wanted.shape[-1]))
        return self._whole(x, wanted)

    def for_each(self, parts: list[tuple[mx.array, mx.array]]) -> list[mx.array]:
        """Several activations with their chosen experts: each result as if alone, each expert read once for all."""
        started = perf_counter()
        mx.eval([part for part in parts if isinstance(part[1], mx.array)])
        self.store.waited_for_router(perf_counter() - started)
        self._watch.at_layer(self.layer)
        wanted = [np.asarray(indices) for _, indices in parts]
        chosen = np.concatenate([one.reshape(-1, one.shape[-1]) for one in wanted])
        if self.ahead is not None:
            self.ahead.passes(single=False)
        self._budget.hold(COPIES * chosen.size * parts[0][0].shape[-1] * 4)
        self.store.settle()
        self.store.note(self.place, chosen)
        experts = np.unique(chosen)
        if len(experts) > self.store.slots:
            return [self._whole(x, one) for (x, _), one in zip(parts, wanted, strict=True)]
        late = [self.store.slots_of(self.place, one).reshape(-1) < 0 for one in wanted]
        fetch = self.store.fetch(self.place, np.unique(chosen.reshape(-1)[np.concatenate(late)]), keep=experts)
        self.store.hit(len(experts) - len(fetch.missing))
        try:
            halves = [self._begun(x, one, when) for (x, _), one, when in zip(parts, wanted, late, strict=True)]
            fetch.wait(self._watch.check)
            outs = [self._ended(x, one, half) for (x, _), one, half in zip(parts, wanted, halves, strict=True)]
            mx.eval([out for out in outs if isinstance(out, mx.array)])
        except BaseException:
            self.store.abandon(self.place, fetch)
            raise
        return outs

    def _whole(self, x: mx.array, wanted: np.ndarray) -> mx.array:
        slots = self.store.slots_of(self.place, wanted)
        if slots.min() >= 0:
            self._look_ahead(x, wanted)
            return self._here(x, slots)
        experts = np.unique(wanted)
        if wanted.size == wanted.shape[-1] and len(experts) <= self.store.slots:
            return self._one(x, wanted, slots, experts)
        return self._in_waves(x, wanted, experts)

    def _here(self, x: mx.array, slots: np.ndarray) -> mx.array:
        """All experts are in memory: nothing is read, nothing need be kept from eviction."""
        self.store.hit(len(set(slots.reshape(-1).tolist())))
        return _done(self._kernel(x, slots.astype(np.uint32)))

    def _one(self, x: mx.array, wanted: np.ndarray, slots: np.ndarray, experts: np.ndarray) -> mx.array:
        """One token: the experts that are in memory compute while the others are read."""
        late = slots.reshape(-1) < 0
        fetch = self.store.fetch(self.place, np.unique(wanted.reshape(-1)[late]), keep=experts)
        self.store.hit(len(experts) - len(fetch.missing))
        try:
            half = self._begun(x, wanted, late)
            self._look_ahead(x, wanted)
            fetch.wait(self._watch.check)
            return _done(self._ended(x, wanted, half))
        except BaseException:
            self.store.abandon(self.place, fetch)
            raise

    def _begun(self, x: mx.array, wanted: np.ndarray, late: np.ndarray) -> "_Half":
        """The products of a token with those of its experts that are in memory, while the `late` ones are read."""
        order = np.argsort(late, kind="stable")
        here = len(late) - int(late.sum())
        if not here:
            return _Half(order, 0, None)
        out = self._kernel(x, self._slots(wanted)[..., order[:here]])
        if isinstance(out, mx.array):
            mx.async_eval(out)
        return _Half(order, here, out)

    def _ended(self, x: mx.array, wanted: np.ndarray, half: "_Half") -> mx.array:
        """The rest of them, and all in their order."""
        if half.here == len(half.order):
            return half.out  # all were there, in their order
        rest = self._kernel(x, self._slots(wanted)[..., half.order[half.here :]])
        return joined([rest] if half.out is None else [half.out, rest], -2, inverse(half.order))

    def _look_ahead(self, x: mx.array, wanted: np.ndarray) -> None:
        """What is fetched for this layer was asked for; other guesses about it were wrong, and the next one is due."""
        self.store.guessed_wrong(self.place)
        if self.ahead is not None and wanted.size == wanted.shape[-1]:
            self.ahead.guess(x)

    def _slots(self, wanted: np.ndarray) -> np.ndarray:
        return self.store.slots_of(self.place, wanted).astype(np.uint32)

    def _in_waves(self, x: mx.array, wanted: np.ndarray, experts: np.ndarray) -> mx.array:
        """Many tokens: each expert is read at most once, in file order, while the one before it computes."""
        k = wanted.shape[-1]
        rows = x.reshape(-1, x.shape[-1])
        flat = wanted.reshape(-1)
        order = np.argsort(flat, kind="stable")
        sorted_experts = flat[order]
        parts, computed = [], []
        with closing(self._waves(experts)) as waves:
            for wave in waves:
                self._watch.check()
                lo, hi = np.searchsorted(sorted_experts, wave, "left"), np.searchsorted(sorted_experts, wave, "right")
                pairs = np.concatenate([order[a:b] for a, b in zip(lo, hi, strict=True)])
                some = rows[mx.array(pairs // k)] if isinstance(rows, mx.array) else rows[pairs // k]
                parts.append(_done(self._kernel(some, self._slots(flat[pairs])[:, None])).squeeze(-2))
                computed.append(pairs)
        out = joined(parts, 0, inverse(np.concatenate(computed)))
        return out.reshape(*wanted.shape, out.shape[-1])

    def _waves(self, experts: np.ndarray) -> Generator[np.ndarray, None, None]:
        """Parts of `experts` that are in memory: those that are there first, then the others as they arrive.

        Whoever takes the next part has computed the one before.
        """
        there = self.store.slots_of(self.place, experts) >= 0
        here, missing = experts[there], experts[~there]
        self.store.hit(len(here))
        size = max(min(max(_WAVE_EXPERTS, _WAVE_BYTES // self.store.one_bytes), self.store.slots // 3), 1)
        waiting = deque(np.split(missing, range(size, len(missing), size)))
        reading: deque[Fetch] = deque()

        def read_on(needed: np.ndarray) -> None:
            while waiting and len(reading) < 2:
                keep = np.concatenate([needed, *(fetch.missing for fetch in reading)])
                if len(keep) + len(waiting[0]) > self.store.slots:
                    return
                reading.append(self.store.fetch(self.place, waiting.popleft(), keep))

        try:
            read_on(here)
            if len(here):
                yield here
            read_on(experts[:0])
            while reading:
                reading[0].wait(self._watch.check)
                arrived = reading.popleft().missing
                read_on(arrived)
                yield arrived
                read_on(experts[:0])
        except BaseException:
            for fetch in reading:
                self.store.abandon(self.place, fetch)
            raise


def _done(out: Any) -> Any:
    """A slot may be overwritten by the next misses, so nothing may still have to read it."""
    if isinstance(out, mx.array):
        mx.eval(out)
    return out


def joined(parts: list, axis: int, order: np.ndarray) -> Any:
    """MLX or NumPy arrays of one kind put together along an axis, then taken in `order`."""
    if isinstance(parts[0], mx.array):
        return mx.take(mx.concatenate(parts, axis), mx.array(order), axis)
    return np.concatenate(parts, axis).take(order, axis).view(type(parts[0]))


def inverse(order: np.ndarray) -> np.ndarray:
    """The permutation that undoes `order`."""
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return back
