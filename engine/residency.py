"""Which experts are in memory: a fixed number of slots shared by all layers, the least valuable evicted.

An expert is worth its uses, each use half as much after another 64 passes of the model, and this is remembered while
it is not in memory too. On traces with eight of 64 experts a layer, popularity as in Zipf's law (exponent 1) and a
quarter of the slots, 61 % of uses hit; LFUDA has 54 %, LRU 45 %, Belady's bound is 73 %. Where a layer uses nearly all
of its experts, as in the default model, LRU and LFUDA hit nothing at all, this 16 %, Belady 28 %.
"""

import heapq
from collections.abc import Iterable

Key = tuple[int, int]
"""(number of the module of experts, expert)"""

HALF_LIFE_PASSES = 64
_GROWTH = 2 ** (1 / HALF_LIFE_PASSES)
_RESCALE_AT = 1e100


class Residency:
    """Book-keeping only: which key lies in which of `slots` slots, and which slot the next one takes."""

    def __init__(self, slots: int):
        self.slots = slots
        self._where: dict[Key, int] = {}
        self._free = list(range(slots - 1, -1, -1))
        self._worth: dict[Key, float] = {}  # of every key ever used
        self._ticket: dict[Key, int] = {}  # of a key's newest heap entry; older entries are stale
        self._heap: list[tuple[float, int, Key]] = []  # worth, minus ticket, key: among equals the newest goes
        self._tickets = 0
        # Instead of halving every worth again and again, a new use counts for more than an old one.
        self._use_counts = 1.0

    def __len__(self) -> int:
        return len(self._where)

    def items(self) -> Iterable[tuple[Key, int]]:
        """What is in memory, and in which slot."""
        return self._where.items()

    def next_pass(self) -> None:
        """The model starts another forward pass: what was used before counts for a little less."""
        self._use_counts *= _GROWTH
        if self._use_counts > _RESCALE_AT:
            self._worth = {key: worth / self._use_counts for key, worth in self._worth.items()}
            self._use_counts = 1.0
            self._rebuild()

    def use(self, key: Key) -> int | None:
        """The slot that holds `key`, which is worth more for it; None when it has to be read."""
        slot = self._where.get(key)
        if slot is not None:
            self._count(key)
        return slot

    def admit(self, key: Key, keep: Iterable[Key] = ()) -> int:
        """Give `key` a slot, evicting the least valuable key that is not in `keep`.

        Raises LookupError when every slot is kept.
        """
        slot = self._free.pop() if self._free else self._evict(keep)
        self._where[key] = slot
        self._count(key)
        return slot

    def forget(self, key: Key) -> None:
        """Free the slot of a key whose bytes never arrived whole."""
        slot = self._where.pop(key, None)
        if slot is not None:
            self._free.append(slot)

    def withhold(self, key: Key) -> int:
        """Forget `key` but keep its slot out of use, until `release`: something may still write into it."""
        return self._where.pop(key)

    def release(self, slot: int) -> None:
        """A slot that was withheld can be used again."""
        self._free.append(slot)

    def _count(self, key: Key) -> None:
        self._tickets += 1
        self._worth[key] = self._worth.get(key, 0.0) + self._use_counts
        self._ticket[key] = self._tickets
        heapq.heappush(self._heap, (self._worth[key], -self._tickets, key))
        if len(self._heap) > 16 * self.slots + 1024:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(self._worth[key], -self._ticket[key], key) for key in self._where]
        heapq.heapify(self._heap)

    def _evict(self, keep: Iterable[Key]) -> int:
        # Among equals the newest goes: layers come round in turn, so what was just used is needed again last.
        kept, passed_over = set(keep), []
        try:
            while self._heap:
                entry = heapq.heappop(self._heap)
                _, ticket, key = entry
                if key not in self._where or self._ticket[key] != -ticket:
                    continue
                if key in kept:
                    passed_over.append(entry)
                    continue
                return self._where.pop(key)
        finally:
            for entry in passed_over:
                heapq.heappush(self._heap, entry)
        raise LookupError("every slot is in use")
