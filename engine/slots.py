"""The memory experts live in: one MLX array per piece (weight, scales, ...) with a row per slot.

Rows are written in place through NumPy views of the arrays' own memory and read by kernels under slot numbers.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter

import mlx.core as mx
import numpy as np

from engine.disk import Disk, Read
from engine.provenance import MLX_DTYPE, Origin
from engine.residency import Residency


@dataclass(frozen=True)
class Piece:
    """One tensor of a module of experts: its name in the module, its rows' shape and dtype on disk and in memory."""

    name: str
    shape: tuple[int, ...]
    file_dtype: str
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.size


@dataclass
class Counters:
    """What the store did since the model was loaded; seconds are time the engine waited for reads."""

    expert_hits: int = 0
    expert_reads: int = 0
    bytes_read: int = 0
    disk_s: float = 0.0


class SlotStore:
    """Experts of all layers with equal pieces share these slots.

    `origins[place]` gives, piece by piece, the array on disk whose rows are the (at most `experts`) of one module.
    """

    def __init__(self, pieces: Sequence[Piece], slots: int, origins: dict[int, list[Origin]], experts: int, disk: Disk,
                 counters: Counters):  # fmt: skip
        self.pieces = tuple(pieces)
        self.slots = slots
        self.arrays = [mx.zeros((slots, *piece.shape), dtype=piece.dtype) for piece in pieces]
        mx.eval(self.arrays)
        self._views = [_writable(array) for array in self.arrays]
        self._origins = origins
        self._disk = disk
        self._counters = counters
        self._residency = Residency(slots, len(origins), experts)

    def note(self, place: int, chosen: np.ndarray) -> None:
        """The router of a module has chosen [tokens, k] experts: so residency knows what is popular."""
        self._residency.note(place, chosen)

    def fetch(self, place: int, experts: np.ndarray) -> "Fetch":
        """Start to read those of `experts` (at most `slots` of them) that are not in memory.

        The caller has made sure that no kernel in flight reads a slot, and waits for one fetch before the next.
        """
        missing = experts[self._residency.slots_of(place, experts) < 0]
        self._counters.expert_hits += len(experts) - len(missing)
        self._counters.expert_reads += len(missing)
        admitted = self._residency.admit(place, missing, experts) if len(missing) else missing
        fetch = Fetch(missing, lambda: self._residency.forget(place, missing), self._counters)
        for expert, slot in zip(missing.tolist(), admitted.tolist(), strict=True):
            for piece, view, tensor in zip(self.pieces, self._views, self._origins[place], strict=True):
                row = view[slot : slot + 1]  # of one slot, but an array even where an expert has a single number
                target = row
                if piece.dtype != MLX_DTYPE[piece.file_dtype]:
                    target = np.empty(row.shape, _STAGING[piece.file_dtype])
                    fetch.conversions.append((row, target, piece.file_dtype))
                fetch.reads.append(Read(tensor.rows(expert), _bytes(target), f"expert {expert}"))
        fetch.pending = self._disk.read(fetch.reads)
        return fetch

    def slots_of(self, place: int, experts: np.ndarray) -> np.ndarray:
        """Where experts lie that were fetched."""
        return self._residency.slots_of(place, experts)


class Fetch:
    """Reads in flight: `missing` are the experts that may be used only after `wait`."""

    def __init__(self, missing: np.ndarray, undo: Callable[[], None], counters: Counters):
        self.missing = missing
        self.reads: list[Read] = []
        self.pending: list[Future[int]] = []
        self.conversions: list[tuple[np.ndarray, np.ndarray, str]] = []
        self._undo = undo
        self._counters = counters

    def wait(self, check: Callable[[], None]) -> None:
        """Return when all has arrived. `check` is called meanwhile and may raise. Raises DiskError; then `abandon`."""
        started = perf_counter()
        for future in self.pending:
            self._counters.bytes_read += future.result()
            check()
        for row, staged, dtype in self.conversions:
            row[...] = _widen(staged, dtype)
        self._counters.disk_s += perf_counter() - started

    def abandon(self) -> None:
        """Give up what has not been waited for, but not before the last read has ended: it must not land later."""
        for future in self.pending:
            if not future.cancel():
                future.exception()
        self._undo()


# bfloat16 has no NumPy dtype: its bits are read as uint16.
_STAGING = {"BF16": np.uint16, "F16": np.float16}


def _widen(staged: np.ndarray, dtype: str) -> np.ndarray:
    """float32 of the same values: exact for both 16-bit formats (bfloat16 is the upper half of a float32)."""
    if dtype == "BF16":
        return (staged.astype(np.uint32) << 16).view(np.float32)
    return staged.astype(np.float32)


def _writable(array: mx.array) -> np.ndarray:
    """A NumPy view of an evaluated array's own memory."""
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.array(bits, copy=False)


def _bytes(row: np.ndarray) -> memoryview:
    return memoryview(row.reshape(-1).view(np.uint8).data)
