"""The memory experts live in: one MLX array per piece (weight, scales, ...) with a row per slot.

Rows are written in place through NumPy views of the arrays' own memory and read by kernels under slot numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from engine.disk import Disk
from engine.errors import DiskError, EngineError
from engine.fetch import STAGING, Conversion, Counters, Fetch, widen
from engine.provenance import MLX_DTYPE, Origin, Rows, Scaled
from engine.residency import Residency
from engine.runs import Read
from engine.slot_memory import PAGE, allocate, forget, view


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


class SlotStore:
    """Experts of all layers with equal pieces share these slots.

    `origins[place]` gives, piece by piece, the array on disk whose rows are the (at most `experts`) of one module.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        slots: int,
        origins: dict[int, list[Origin]],
        experts: int,
        disk: Disk,
        counters: Counters,
        least: int = 1,
    ):
        """`least` slots are needed for one token; there are never fewer, however scarce memory becomes."""
        self.pieces = tuple(pieces)
        self.planned = slots
        self.least = min(least, slots)
        self.one_bytes = sum(piece.nbytes for piece in pieces)
        self._places = {place: [places(origin, disk) for origin in each] for place, each in origins.items()}
        residues = [self._residue(number) for number in range(len(pieces))]
        self.arrays = [
            allocate((slots, *piece.shape), piece.dtype, residue)
            for piece, residue in zip(pieces, residues, strict=True)
        ]
        self._views = [view(array) for array in self.arrays]
        self._written = np.zeros(slots, bool)
        self._retired = np.empty(0, np.int32)
        self._origins = origins
        self._disk = disk
        self._counters = counters
        self._residency = Residency(slots, len(origins), experts)
        self._room_for_all = slots >= sum(pieces[0].shape[0] for pieces in origins.values())  # nothing ever has to go
        self._late: list[Fetch] = []  # given up, but their reads may still write into their slots

    @property
    def slots(self) -> int:
        """How many slots are in use now."""
        return self._residency.slots

    @property
    def filled_bytes(self) -> int:
        """The memory that slots really take."""
        return int(self._written.sum()) * self.one_bytes

    def resize(self, slots: int) -> None:
        """Have `slots` slots in use, as far as reads in flight allow; memory of the others goes to the system."""
        slots = min(max(slots, self.least), self.planned)
        if slots < self.slots:
            self._collect_late()
            retired = self._residency.retire(self.slots - slots)
            for slot in retired[self._written[retired]].tolist():
                for numbers in self._views:
                    row = numbers[slot : slot + 1]
                    forget(row.ctypes.data, row.nbytes)
            self._written[retired] = False
            self._retired = np.concatenate([self._retired, retired])
        elif slots > self.slots:
            self._retired, back = np.split(self._retired, [len(self._retired) - (slots - self.slots)])
            self._residency.restore(back)

    def note(self, place: int, chosen: np.ndarray) -> None:
        """The router of a module has chosen [tokens, k] experts: so residency knows what is popular."""
        if not self._room_for_all:
            self._residency.note(place, chosen)

    def hit(self, experts: int) -> None:
        """So many experts were in memory when they were wanted."""
        self._counters.expert_hits += experts

    def slots_of(self, place: int, experts: np.ndarray) -> np.ndarray:
        """Where experts lie that were fetched."""
        return self._residency.slots_of(place, experts)

    def fetch(self, place: int, experts: np.ndarray) -> Fetch:
        """Start to read those of `experts` (at most `slots` of them) that are not in memory.

        The caller has made sure that no kernel in flight reads a slot, and waits for one fetch before the next; one
        that fails it gives to `abandon`. Raises DiskError while slots still wait for a disk that hangs.
        """
        missing = experts[self.slots_of(place, experts) < 0]
        slots = self._admit(place, missing, experts)
        self._written[slots] = True
        reads, conversions = self._reads(place, missing, slots)
        self._counters.expert_hits += len(experts) - len(missing)
        self._counters.expert_reads += len(missing)
        return Fetch(missing, slots, self._counters, self._disk.read(reads, self), conversions)

    def abandon(self, place: int, fetch: Fetch) -> None:
        """Give up a fetch: its experts are not in memory, its slots stay out of use until its last read has ended."""
        fetch.reading.cancel()
        self._residency.withhold(place, fetch.missing)
        self._late.append(fetch)

    def _reads(self, place: int, experts: np.ndarray, slots: np.ndarray) -> tuple[list[Read], list[Conversion]]:
        """What has to be read, and converted afterwards, so that experts lie in slots."""
        reads, conversions = [], []
        rows = experts.tolist()
        for piece, numbers, origin, (files, offsets) in zip(
            self.pieces, self._views, self._origins[place], self._places[place], strict=True
        ):
            factor = getattr(origin, "factor", 1.0)
            if piece.dtype != MLX_DTYPE[piece.file_dtype] or factor != 1.0:
                staged = np.empty((len(rows), *piece.shape), STAGING[piece.file_dtype])
                conversions += [
                    Conversion(numbers[slot : slot + 1], staged[at : at + 1], piece.file_dtype, piece.dtype, factor)
                    for at, slot in enumerate(slots.tolist())
                ]
                size = staged.nbytes // max(len(rows), 1)
                first, at = staged.ctypes.data, range(len(rows))
            else:
                size, first, at = piece.nbytes, numbers.ctypes.data, slots.tolist()
            reads += [
                Read(file, offset, size, first + slot * size, origin, row)
                for file, offset, slot, row in zip(
                    files[experts].tolist(), offsets[experts].tolist(), at, rows, strict=True
                )
            ]
        return reads, conversions

    def damaged(self) -> Iterator[str]:
        """The tensors of experts in memory that hold NaN, with their files: where nonsense comes from."""
        for place, expert, slot in self._residency.items():
            for piece, rows, tensor in zip(self.pieces, self._views, self._origins[place], strict=True):
                numbers = rows[slot : slot + 1]
                if piece.dtype == mx.bfloat16:
                    numbers = widen(numbers, "BF16")
                if numbers.dtype.kind == "f" and np.isnan(numbers).any():
                    extent = tensor.rows(expert)
                    yield f"expert {expert} ({extent.name}) in {extent.file}"

    def _residue(self, number: int) -> int:
        """How far into a page most rows of a piece lie in their files: there direct reads need no copy."""
        offsets = np.concatenate([each[number][1] for each in self._places.values()])
        residue = int(np.bincount(offsets % PAGE).argmax())
        return residue if residue % self.pieces[number].dtype.size == 0 else 0

    def _admit(self, place: int, missing: np.ndarray, keep: np.ndarray) -> np.ndarray:
        self._collect_late()
        try:
            return self._residency.admit(place, missing, keep)
        except EngineError:
            if not self._late:
                raise
            raise DiskError(
                "The disk still owes the experts that were asked for before. Check that it is connected, and try again."
            ) from None

    def _collect_late(self) -> None:
        for fetch in [fetch for fetch in self._late if fetch.landed]:
            self._residency.release(fetch.slots)
            self._late.remove(fetch)


def places(origin: Origin, disk: Disk) -> tuple[np.ndarray, np.ndarray]:
    """The file (by the disk's number) and the offset of each expert's row."""
    origin = origin.of if isinstance(origin, Scaled) else origin
    numbers = np.array([disk.number(file) for file in origin.files])
    if isinstance(origin, Rows):
        return numbers[origin.file_of], np.asarray(origin.offsets, np.int64)
    count = origin.shape[0]
    step = origin.nbytes // count
    return np.repeat(numbers, count), origin.offset + step * np.arange(count, dtype=np.int64)
