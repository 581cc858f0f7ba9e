"""The module that stands where a model's experts were: it makes sure they are in slots, then lets them compute.

The original mlx-lm module is kept and does the mathematics; only its weights are the slot arrays now, and its expert
numbers become slot numbers. So every architecture computes what mlx-lm computes.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from engine.slots import SlotStore
from engine.watch import Watch

Kernel = Callable[[mx.array, np.ndarray], mx.array]
"""x [..., D] and slot numbers [..., k] to [..., k, D]."""


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
        self._store.arrive(self.place)
        wanted = np.asarray(indices)
        experts = np.unique(wanted)
        if len(experts) <= self._store.slots:
            return self._compute(x, wanted, experts)
        return self._in_waves(x, wanted, experts)

    def _compute(self, x: mx.array, wanted: np.ndarray, experts: np.ndarray) -> mx.array:
        table = np.zeros(self.count, np.uint32)
        table[experts] = self._store.bring(self.place, experts.tolist(), self._watch.check)
        out = self._kernel(x, table[wanted])
        if isinstance(out, mx.array):
            # A slot may be overwritten by the next layer's misses, so nothing may still have to read it.
            mx.eval(out)
        return out

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
            some = rows[mx.array(pairs // k)] if isinstance(x, mx.array) else rows[pairs // k]
            parts.append(self._compute(some, flat[pairs][:, None], wave).squeeze(-2))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        out: Any
        if isinstance(x, mx.array):
            out = mx.concatenate(parts)[mx.array(back)]
        else:
            out = np.concatenate(parts)[back].view(type(x))
        return out.reshape(*wanted.shape, out.shape[-1])
