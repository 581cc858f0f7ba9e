"""Eviction policies behind one method: `visit(module, experts)` says how many were in memory, and brings the others.

All but the last are baselines; the last one is the engine's own `engine.residency.Residency`.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import groupby

import numpy as np

from engine.residency import Residency

Key = tuple[int, int]
"""(module, expert)"""

Trace = list[list[Key]]
"""One list a forward pass: the experts it used, layer by layer."""


class OneByOne:
    """A policy that looks at one key after the other."""

    def access(self, key: Key) -> bool:
        """Each policy's own: whether the key was in memory; afterwards it is."""
        raise NotImplementedError

    def visit(self, module: int, experts: list[int]) -> int:
        return sum(self.access((module, expert)) for expert in experts)


class Lru(OneByOne):
    """The least recently used goes."""

    def __init__(self, slots: int):
        self.slots = slots
        self.order: OrderedDict[Key, None] = OrderedDict()

    def access(self, key: Key) -> bool:
        hit = key in self.order
        if not hit and len(self.order) >= self.slots:
            self.order.popitem(last=False)
        self.order[key] = None
        self.order.move_to_end(key)
        return hit


class Lfuda(OneByOne):
    """The least used goes; a newcomer starts with the count of what was evicted last (Arlitt et al., 2000)."""

    def __init__(self, slots: int):
        self.slots = slots
        self.uses: dict[Key, int] = {}
        self.ticket: dict[Key, int] = {}
        self.heap: list[tuple[int, int, Key]] = []
        self.age = self.tickets = 0

    def access(self, key: Key) -> bool:
        hit = key in self.uses
        if not hit and len(self.uses) >= self.slots:
            self._evict()
        self.uses[key] = self.uses.get(key, self.age) + 1
        self.tickets += 1
        self.ticket[key] = self.tickets
        heapq.heappush(self.heap, (self.uses[key], self.tickets, key))
        return hit

    def _evict(self) -> None:
        while True:
            worth, ticket, key = heapq.heappop(self.heap)
            if self.ticket.get(key) == ticket:
                del self.uses[key], self.ticket[key]
                self.age = worth
                return


class S3Fifo(OneByOne):
    """A small queue for newcomers, a main one for what was used again, a ghost list of keys (Yang et al., SOSP '23)."""

    def __init__(self, slots: int):
        self.small_size = max(slots // 10, 1)
        self.main_size = max(slots - self.small_size, 1)
        self.small: deque[Key] = deque()
        self.main: deque[Key] = deque()
        self.ghost: OrderedDict[Key, None] = OrderedDict()
        self.uses: dict[Key, int] = {}

    def access(self, key: Key) -> bool:
        if key in self.uses:
            self.uses[key] = min(self.uses[key] + 1, 3)
            return True
        if key in self.ghost:
            del self.ghost[key]
            self._make_room_in_main()
            self.main.append(key)
        else:
            while len(self.small) >= self.small_size:
                self._evict_from_small()
            self.small.append(key)
        self.uses[key] = 0
        return False

    def _evict_from_small(self) -> None:
        key = self.small.popleft()
        if self.uses[key] > 0:
            self._make_room_in_main()
            self.main.append(key)
            self.uses[key] = 0
            return
        del self.uses[key]
        self.ghost[key] = None
        if len(self.ghost) > self.main_size:
            self.ghost.popitem(last=False)

    def _make_room_in_main(self) -> None:
        while len(self.main) >= self.main_size:
            key = self.main.popleft()
            if self.uses[key] > 0:
                self.uses[key] -= 1
                self.main.append(key)
            else:
                del self.uses[key]


class Lirs(OneByOne):
    """Keys with short distances between their last two uses stay (Jiang and Zhang, SIGMETRICS '02)."""

    def __init__(self, slots: int):
        self.hot_size = max(slots - max(slots // 20, 1), 1)
        self.cold_size = max(slots - self.hot_size, 1)
        self.stack: OrderedDict[Key, str] = OrderedDict()  # newest last: "hot", "cold" or "gone"
        self.cold: OrderedDict[Key, None] = OrderedDict()
        self.hot: set[Key] = set()

    def access(self, key: Key) -> bool:
        if key in self.hot:
            self._touch(key, "hot")
            self._prune()
            return True
        hit = key in self.cold
        if not hit and len(self.hot) < self.hot_size and key not in self.stack:
            self.hot.add(key)
            self._touch(key, "hot")
            return False
        if not hit and len(self.cold) >= self.cold_size:
            gone, _ = self.cold.popitem(last=False)
            if gone in self.stack:
                self.stack[gone] = "gone"
        if key in self.stack:
            self.cold.pop(key, None)
            self.hot.add(key)
            self._touch(key, "hot")
            if len(self.hot) > self.hot_size:
                self._cool()
        else:
            self.cold[key] = None
            self.cold.move_to_end(key)
            self._touch(key, "cold")
        return hit

    def _touch(self, key: Key, kind: str) -> None:
        self.stack[key] = kind
        self.stack.move_to_end(key)

    def _cool(self) -> None:
        self._prune()
        oldest = next(iter(self.stack))
        del self.stack[oldest]
        self.hot.discard(oldest)
        self.cold[oldest] = None
        while len(self.cold) > self.cold_size:
            gone, _ = self.cold.popitem(last=False)
            if gone in self.stack:
                self.stack[gone] = "gone"
        self._prune()

    def _prune(self) -> None:
        while self.stack and next(iter(self.stack.values())) != "hot":
            self.stack.popitem(last=False)


class Pagoda:
    """The engine's own."""

    def __init__(self, slots: int, modules: int, experts: int):
        self.residency = Residency(slots, modules, experts)

    def visit(self, module: int, experts: list[int]) -> int:
        chosen = np.array(experts)
        self.residency.note(module, chosen[None])
        missing = chosen[self.residency.slots_of(module, chosen) < 0]
        if len(missing):
            self.residency.admit(module, missing, chosen)
        return len(experts) - len(missing)


POLICIES = {"LRU": Lru, "LFUDA": Lfuda, "S3-FIFO": S3Fifo, "LIRS": Lirs, "Pagoda": Pagoda}


def hit_rate(trace: Trace, slots: int, policy: type) -> float:
    """The share of uses that found their expert in memory."""
    keys = list(flat(trace))
    shape = [max(key[axis] for key in keys) + 1 for axis in (0, 1)]
    cache = Pagoda(slots, *shape) if policy is Pagoda else policy(slots)
    hits = 0
    for one_pass in trace:
        for module, group in groupby(one_pass, key=lambda key: key[0]):
            hits += cache.visit(module, [expert for _, expert in group])
    return hits / len(keys)


def belady(trace: Trace, slots: int) -> float:
    """The best hit rate there can be: what is needed furthest in the future goes."""
    keys = list(flat(trace))
    following: dict[Key, int] = {}
    next_use = [0] * len(keys)
    for at in range(len(keys) - 1, -1, -1):
        next_use[at] = following.get(keys[at], len(keys) + at)
        following[keys[at]] = at
    held: dict[Key, int] = {}
    heap: list[tuple[int, Key]] = []
    hits = 0
    for at, key in enumerate(keys):
        hits += key in held
        if key not in held and len(held) >= slots:
            while True:
                use, victim = heapq.heappop(heap)
                if held.get(victim) == -use:
                    del held[victim]
                    break
        held[key] = next_use[at]
        heapq.heappush(heap, (-next_use[at], key))
    return hits / len(keys)


def flat(trace: Trace) -> Iterator[Key]:
    for one_pass in trace:
        yield from one_pass
