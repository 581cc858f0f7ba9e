"""Which experts are in memory: a fixed number of slots shared by all layers, the least valuable evicted.

LFUDA (least frequently used with dynamic ageing; Arlitt et al., "Evaluating content management techniques for web
proxy caches", 2000): a slot is worth its number of uses plus the worth of what was evicted last before it was used,
so that what was popular once grows old.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

Key = tuple[int, int]
"""(number of the module of experts, expert)"""


@dataclass
class _Slot:
    key: Key
    uses: int
    ticket: int  # of its newest heap entry; older entries are stale


class Residency:
    """Book-keeping only: which key lies in which of `slots` slots, and which slot the next one takes."""

    def __init__(self, slots: int):
        self.slots = slots
        self._where: dict[Key, int] = {}
        self._slots: dict[int, _Slot] = {}
        self._free = list(range(slots - 1, -1, -1))
        self._heap: list[tuple[int, int, int]] = []  # (worth, ticket, slot): ties go to the least recently used
        self._age = 0
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._where)

    def use(self, key: Key) -> int | None:
        """The slot that holds `key`, which is worth more for it; None when it has to be read."""
        slot = self._where.get(key)
        if slot is not None:
            self._slots[slot].uses += 1
            self._rank(slot)
        return slot

    def admit(self, key: Key, keep: Iterable[Key] = ()) -> int:
        """Give `key` a slot, evicting the least valuable key that is not in `keep`.

        Raises LookupError when every slot is kept.
        """
        slot = self._free.pop() if self._free else self._evict(keep)
        self._where[key] = slot
        self._slots[slot] = _Slot(key, 1, 0)
        self._rank(slot)
        return slot

    def forget(self, key: Key) -> None:
        """Free the slot of a key whose bytes never arrived whole."""
        slot = self._where.pop(key, None)
        if slot is not None:
            del self._slots[slot]
            self._free.append(slot)

    def _rank(self, slot: int) -> None:
        self._tickets += 1
        entry = self._slots[slot]
        entry.ticket = self._tickets
        heapq.heappush(self._heap, (entry.uses + self._age, entry.ticket, slot))
        if len(self._heap) > 16 * self.slots + 1024:
            self._heap = [e for e in self._heap if self._fresh(e)]
            heapq.heapify(self._heap)

    def _fresh(self, heap_entry: tuple[int, int, int]) -> bool:
        _, ticket, slot = heap_entry
        return slot in self._slots and self._slots[slot].ticket == ticket

    def _evict(self, keep: Iterable[Key]) -> int:
        kept, passed_over = set(keep), []
        try:
            while self._heap:
                top = heapq.heappop(self._heap)
                if not self._fresh(top):
                    continue
                if self._slots[top[2]].key in kept:
                    passed_over.append(top)
                    continue
                self._age, _, slot = top
                del self._where[self._slots.pop(slot).key]
                return slot
        finally:
            for entry in passed_over:
                heapq.heappush(self._heap, entry)
        raise LookupError("every slot is in use")
