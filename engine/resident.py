"""Experts that are all in memory: mlx-lm's own module behind a table of slots, with nothing to wait for between layers.

A paged layer has to know which experts its router chose before it can go on; on a GPU that read-back is the dearest
thing about a small layer (PEERS.md: 63 % of a token). With everything in memory the choice stays on the device.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from engine.paged import PagedExperts
from engine.stand_in import StandIn
from engine.watch import Watch

# Beside all experts, so much of the budget has to be left for what grows: then nothing ever has to give way to it.
ROOM_SHARE = 1 / 8


def leaves_room(budget: int, taken: int, slot_bytes: int, expert_bytes: int) -> bool:
    """Whether all experts fit under the budget for good, beside `taken` and what conversations will take."""
    return 0 < expert_bytes <= slot_bytes and taken + expert_bytes <= budget * (1 - ROOM_SHARE)


class ResidentExperts(StandIn):
    """Experts of one layer, called like SwitchGLU: x [..., D], indices [..., k]. Lazy, like any of MLX's modules."""

    def __init__(self, paged: PagedExperts, slots: np.ndarray, watch: Watch):
        """`slots` [experts]: where each expert lies, for good."""
        super().__init__(paged.experts)
        self._layer, self._watch, self._store = paged.layer, watch, paged.store
        self._slots = mx.array(slots.astype(np.uint32))

    def __call__(self, x: mx.array, indices: mx.array) -> mx.array:
        self._watch.at_layer(self._layer)
        if indices.size == indices.shape[-1]:  # of many it isn't known here how many they share
            self._store.hit(indices.size)
        return self.original(x, self._slots[indices])


def read_all(
    modules: list[tuple[str, PagedExperts]], watch: Watch, report: Callable[[int, int], None]
) -> list[tuple[str, ResidentExperts]]:
    """Read every expert into its slot; what stands for the modules from then on. Raises DiskError.

    `report(done, total)` is told the bytes.
    """
    total = sum(paged.count * paged.store.one_bytes for _, paged in modules)
    done, resident = 0, []
    report(done, total)
    for path, paged in modules:
        every = np.arange(paged.count)
        fetch = paged.store.fetch(paged.place, every, keep=every)
        try:
            fetch.wait(watch.check)
        except BaseException:
            paged.store.abandon(paged.place, fetch)
            raise
        resident.append((path, ResidentExperts(paged, paged.store.slots_of(paged.place, every), watch)))
        done += paged.count * paged.store.one_bytes
        report(done, total)
    return resident
