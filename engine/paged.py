"""The module that stands where a model's experts were: it makes sure they are in slots, then lets them compute.

The original mlx-lm module is kept and does the mathematics; only its weights are the slot arrays now, and its expert
numbers become slot numbers. So every architecture computes what mlx-lm computes.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from engine.budget import Budget
from engine.fetch import Fetch
from engine.slots import SlotStore
from engine.watch import Watch

Kernel = Callable[[mx.array, np.ndarray], mx.array]
"""x [..., D] and slot numbers [..., k] to [..., k, D]."""

# A layer's results are there as often at once while they are weighed and summed: [..., k, D] in float32.
_COPIES = 3


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
        self._store = store
        self._watch = watch
        self._budget = budget
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
        if isinstance(indices, mx.array):
            mx.eval(x, indices)
        self._watch.at_layer(self.layer)
        wanted = np.asarray(indices)
        self._budget.hold(_COPIES * wanted.size * x.shape[-1] * 4)
        self._store.note(self.place, wanted.reshape(-1, wanted.shape[-1]))
        slots = self._store.slots_of(self.place, wanted)
        if wanted.size == wanted.shape[-1] and slots.min() >= 0:
            return self._here(x, slots)
        experts = np.unique(wanted)
        if len(experts) <= self._store.slots:
            return self._compute(x, wanted, experts)
        return self._in_waves(x, wanted, experts)

    def _here(self, x: mx.array, slots: np.ndarray) -> mx.array:
        """One token whose experts are all in memory: nothing is read, nothing need be kept from eviction."""
        self._store.hit(slots.size)
        out = self._kernel(x, slots.astype(np.uint32))
        if isinstance(out, mx.array):
            mx.eval(out)
        return out

    def _compute(self, x: mx.array, wanted: np.ndarray, experts: np.ndarray) -> mx.array:
        fetch = self._store.fetch(self.place, experts)
        try:
            late = np.isin(wanted, fetch.missing)
            if wanted.size == wanted.shape[-1] and late.any() and not late.all():
                out = self._in_two(x, wanted, late.reshape(-1), fetch)
            else:
                fetch.wait(self._watch.check)
                out = self._kernel(x, self._slots(wanted))
        except BaseException:
            self._store.abandon(self.place, fetch)
            raise
        # A slot may be overwritten by the next layer's misses, so nothing may still have to read it.
        if isinstance(out, mx.array):
            mx.eval(out)
        return out

    def _in_two(self, x: mx.array, wanted: np.ndarray, late: np.ndarray, fetch: Fetch) -> mx.array:
        """One token: the experts that are in memory compute while the others are read."""
        order = np.argsort(late, kind="stable")
        here = len(late) - late.sum()
        slots = self._slots(wanted)[..., order]
        first = self._kernel(x, slots[..., :here])
        if isinstance(first, mx.array):
            mx.async_eval(first)
        fetch.wait(self._watch.check)
        return joined([first, self._kernel(x, slots[..., here:])], -2, inverse(order))

    def _slots(self, wanted: np.ndarray) -> np.ndarray:
        return self._store.slots_of(self.place, wanted).astype(np.uint32)

    def _in_waves(self, x: mx.array, wanted: np.ndarray, experts: np.ndarray) -> mx.array:
        """More experts are wanted than there are slots: as many as fit at a time, each read once."""
        k = wanted.shape[-1]
        rows = x.reshape(-1, x.shape[-1])
        flat = wanted.reshape(-1)
        order = np.argsort(flat, kind="stable")
        parts = []
        for start in range(0, len(experts), self._store.slots):
            wave = experts[start : start + self._store.slots]
            lo, hi = np.searchsorted(flat[order], [wave[0], wave[-1] + 1])
            pairs = order[lo:hi]
            self._watch.check()
            some = rows[mx.array(pairs // k)] if isinstance(rows, mx.array) else rows[pairs // k]
            parts.append(self._compute(some, flat[pairs][:, None], wave).squeeze(-2))
        out = joined(parts, 0, inverse(order))
        return out.reshape(*wanted.shape, out.shape[-1])


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
