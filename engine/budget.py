"""One byte budget over all that the engine holds, kept as measured memory: what grows takes its bytes from the slots.

Sizes are planned when a model is loaded, but what a process really takes is only known while it runs. So before each
layer the resident set is looked at, and when the rest has grown, experts leave until the sum fits again. Whoever is
about to need a lot, a KV cache above all, says so beforehand with `reserve`, and may be refused.
"""

from collections.abc import Sequence
from time import perf_counter

from engine import memory, slot_memory
from engine.errors import BudgetError
from engine.slots import SlotStore

# Experts that left have to be read again, so they come back only when this much more than their bytes is free.
_MARGIN = 32 << 20
# A chunk of a prompt may take so much however little there is; fewer tokens would read the experts too often.
_LEAST_CHUNK_BYTES = 16 << 20
_LEAST_CHUNK_TOKENS = 32
# Looking takes some 25 microseconds: while so little is about to come it is done so often at most.
_LITTLE = 1 << 20
_LOOK_AGAIN_S = 0.01


class Budget:
    """Of one model. Everything is called on the engine's thread, while no kernel reads a slot."""

    def __init__(self, limit: int | None, stores: Sequence[SlotStore]):
        """`limit` is for the whole process; None holds the slots alone as they are."""
        self.limit = limit
        self._stores = list(stores)
        self._planned = self._slot_bytes()
        self._least = sum(store.least * store.one_bytes for store in stores)
        self._reserved = 0
        self._looked_at = 0.0

    @property
    def available_bytes(self) -> int:
        """What `reserve` can still give."""
        if self.limit is None:
            return 1 << 62
        return max(self._planned - self._reserved - self._least, 0)

    def reserve(self, nbytes: int) -> None:
        """Make room for something that is about to take `nbytes`. Raises BudgetError when slots can't give so much."""
        if self.limit is None:
            return
        if nbytes > self.available_bytes:
            raise BudgetError(
                f"This needs {nbytes / 1e6:,.0f} MB more, but under a memory budget of {self.limit / 1e6:,.0f} MB only "
                f"{self.available_bytes / 1e6:,.0f} MB can be given to it: the model's experts need the rest. "
                "Give a larger --memory, or make the conversation shorter."
            )
        self._reserved += nbytes
        self._resize(min(self._slot_bytes(), self._planned - self._reserved))

    def release(self, nbytes: int) -> None:
        """What was reserved is not needed any more; slots get it back as memory really becomes free."""
        self._reserved = max(self._reserved - nbytes, 0)

    def tokens_at_once(self, most: int, bytes_each: int) -> int:
        """How many tokens of a prompt may pass a layer together when each takes `bytes_each` there for a moment."""
        if self.limit is None:
            return most
        room = max(self._fits() - self._slot_bytes(), self._slot_bytes() // 8, _LEAST_CHUNK_BYTES)
        return max(min(most, room // bytes_each), _LEAST_CHUNK_TOKENS)

    def hold(self, coming: int = 0) -> None:
        """Keep measured memory within the limit, with slots filled and `coming` bytes taken for a moment."""
        if self.limit is None or not self._stores:
            return
        if 0 < coming < _LITTLE and perf_counter() - self._looked_at < _LOOK_AGAIN_S:
            return
        self._looked_at = perf_counter()
        now, most = self._slot_bytes(), self._planned - self._reserved
        fits = self._fits() - coming
        if fits < now:
            slot_memory.give_back_freed()
            self._resize(min(now, most, self._fits() - coming))
        elif now < most and fits > now + _MARGIN:
            self._resize(min(most, fits - _MARGIN))

    def _fits(self) -> int:
        """Bytes of slots that fit beside everything else there is in memory now."""
        filled = sum(store.filled_bytes for store in self._stores)
        return (self.limit or 0) - (memory.rss_bytes() - filled)

    def _slot_bytes(self) -> int:
        return sum(store.held * store.one_bytes for store in self._stores)

    def _resize(self, nbytes: int) -> None:
        """Let the stores have `nbytes` together, each what a token needs and its part of the rest."""
        spare = max(nbytes - self._least, 0)
        beyond = max(self._planned - self._least, 1)
        for store in self._stores:
            share = spare * (store.planned - store.least) // beyond
            store.resize(store.least + share)
