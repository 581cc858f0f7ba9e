"""The memory experts live in: one MLX array per piece (weight, scales, ...) with a row per slot.

Rows are written in place through NumPy views of the arrays' own memory and read by kernels under slot numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import perf_counter

import mlx.core as mx
import numpy as np

from engine.disk import Disk, Read
from engine.errors import DiskError
from engine.provenance import MLX_DTYPE, Origin, Scaled
from engine.residency import Key, Residency

# A disk from which nothing at all came for so long is not slow but gone. The page says "stalled" long before.
STALLED_S = 120.0
_LOOK_EVERY_S = 0.2  # while waiting, for a stop
_LAST_WAIT_S = 1.0


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

    `origins[place]` gives, piece by piece, the array on disk whose rows are the experts of one module.
    """

    def __init__(self, pieces: Sequence[Piece], slots: int, origins: dict[int, list[Origin]], disk: Disk,
                 counters: Counters):  # fmt: skip
        self.pieces = tuple(pieces)
        self.slots = slots
        self.arrays = [mx.zeros((slots, *piece.shape), dtype=piece.dtype) for piece in pieces]
        mx.eval(self.arrays)
        self._views = [_writable(array) for array in self.arrays]
        self._origins = origins
        self._disk = disk
        self._counters = counters
        self._residency = Residency(slots)
        self._late: list[tuple[int, list[Future[int]]]] = []  # slots that reads nobody waits for may still write into
        self._last_place = -1

    def arrive(self, place: int) -> None:
        """The forward pass has come to this module; where it is not further than the last one, a new pass began."""
        if place <= self._last_place:
            self._residency.next_pass()
        self._last_place = place

    def bring(self, place: int, experts: Sequence[int], check: Callable[[], None]) -> list[int]:
        """The slots of `experts` (at most `slots` of them), after reading those that are not in memory.

        `check` is called while waiting and may raise to give up. Raises DiskError. The caller has made sure that no
        kernel in flight reads a slot.
        """
        keys: list[Key] = [(place, int(expert)) for expert in experts]
        found = {key: slot for key in keys if (slot := self._residency.use(key)) is not None}
        missing = [key for key in keys if key not in found]
        self._counters.expert_hits += len(found)
        if missing:
            found.update(self._read(missing, keys, check))
        return [found[key] for key in keys]

    def _read(self, missing: list[Key], keep: list[Key], check: Callable[[], None]) -> dict[Key, int]:
        started = perf_counter()
        admitted = self._admit(missing, keep)
        reads, conversions, reads_of = [], [], {}
        for (place, expert), slot in admitted.items():
            first = len(reads)
            for piece, view, tensor in zip(self.pieces, self._views, self._origins[place], strict=True):
                row = view[slot : slot + 1]  # of one slot, but an array even where an expert has a single number
                target = row
                factor = tensor.factor if isinstance(tensor, Scaled) else 1.0
                if piece.dtype != MLX_DTYPE[piece.file_dtype] or factor != 1.0:
                    target = np.empty(row.shape, _STAGING[piece.file_dtype])
                    conversions.append((row, target, piece, factor))
                what = f"expert {expert}"
                reads.append(Read(tensor.rows(expert), _bytes(target), what))
            reads_of[place, expert] = slice(first, len(reads))
        pending = self._disk.read(reads)
        try:
            self._wait(reads, pending, check)
        except BaseException:
            # A read in flight must not land in a slot that is already someone else's. Most end at once; where the
            # disk hangs, their slots stay out of use.
            for future in pending:
                future.cancel()
            wait(pending, _LAST_WAIT_S)
            for key in missing:
                self._late.append((self._residency.withhold(key), pending[reads_of[key]]))
            raise
        for row, staged, piece, factor in conversions:
            row[...] = _narrow(_widen(staged, piece.file_dtype) * np.float32(factor), piece.dtype)
        self._counters.expert_reads += len(missing)
        self._counters.disk_s += perf_counter() - started
        return admitted

    def _admit(self, missing: list[Key], keep: list[Key]) -> dict[Key, int]:
        """Slots for what is missing. Raises DiskError while too many are still waiting for a disk that hangs."""
        for slot, reads in self._late:
            if all(read.done() for read in reads):
                self._residency.release(slot)
        self._late = [(slot, reads) for slot, reads in self._late if not all(read.done() for read in reads)]
        try:
            return {key: self._residency.admit(key, keep) for key in missing}
        except LookupError:
            for key in missing:
                self._residency.forget(key)
            raise DiskError(
                "The disk still owes the experts that were asked for before. Check that it is connected, and try again."
            ) from None

    def _wait(self, reads: list[Read], pending: list[Future[int]], check: Callable[[], None]) -> None:
        """Until all is there; `check` may give up meanwhile. Raises DiskError, also when nothing comes any more."""
        came, since = 0, perf_counter()
        for read, future in zip(reads, pending, strict=True):
            got = None
            while got is None:
                try:
                    got = future.result(_LOOK_EVERY_S)
                except TimeoutError:
                    done = sum(other.done() for other in pending)
                    if done > came:
                        came, since = done, perf_counter()
                    elif perf_counter() - since > STALLED_S:
                        raise _stalled(read) from None
                check()
            self._counters.bytes_read += got

    def damaged(self) -> Iterator[str]:
        """The tensors of experts in memory that hold NaN, with their files: where nonsense comes from."""
        for (place, expert), slot in self._residency.items():
            for piece, view, tensor in zip(self.pieces, self._views, self._origins[place], strict=True):
                numbers = view[slot : slot + 1]
                if piece.dtype == mx.bfloat16:
                    numbers = _widen(numbers, "BF16")
                if numbers.dtype.kind == "f" and np.isnan(numbers).any():
                    extent = tensor.rows(expert)
                    yield f"expert {expert} ({extent.name}) in {extent.file}"


def _stalled(read: Read) -> DiskError:
    extent = read.extent
    return DiskError(
        f"The disk gave nothing for {STALLED_S:.0f} s: {read.what} ({extent.name}) in {extent.file} at byte "
        f"{extent.offset:,}. Check that the disk is connected, and try again."
    )


# bfloat16 has no NumPy dtype: its bits are read as uint16.
_STAGING = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}


def _widen(staged: np.ndarray, dtype: str) -> np.ndarray:
    """float32 of the same values: exact for both 16-bit formats (bfloat16 is the upper half of a float32)."""
    if dtype == "BF16":
        return (staged.astype(np.uint32) << 16).view(np.float32)
    return staged.astype(np.float32, copy=False)


def _narrow(numbers: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    """float32 numbers that `dtype` can hold exactly, as its bits lie in a slot."""
    return (numbers.view(np.uint32) >> 16).astype(np.uint16) if dtype == mx.bfloat16 else numbers


def _writable(array: mx.array) -> np.ndarray:
    """A NumPy view of an evaluated array's own memory."""
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.array(bits, copy=False)


def _bytes(row: np.ndarray) -> memoryview:
    return memoryview(row.reshape(-1).view(np.uint8).data)
