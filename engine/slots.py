"""The memory experts live in: one MLX array per piece (weight, scales, ...) with a row per slot.

Rows are written in place through NumPy views of the arrays' own memory and read by kernels under slot numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from engine.disk import Disk, Reading
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


@dataclass(frozen=True)
class _Coming:
    """An expert that is read before it is asked for: on a guess (`staged`), or into a slot that was free anyway."""

    slot: int
    reading: Reading
    conversions: list[Conversion]
    staged: bool


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
        self._sizes = [piece.nbytes for piece in pieces]
        self.one_bytes = sum(self._sizes)
        self._places = {place: [places(origin, disk) for origin in each] for place, each in origins.items()}
        residues = [self._residue(number) for number in range(len(pieces))]
        self.arrays = [
            allocate((slots, *piece.shape), piece.dtype, residue)
            for piece, residue in zip(pieces, residues, strict=True)
        ]
        self._views = [view(array) for array in self.arrays]
        self._starts = [numbers.ctypes.data for numbers in self._views]
        self._converted = {
            place: [_is_converted(piece, origin) for piece, origin in zip(self.pieces, each, strict=True)]
            for place, each in origins.items()
        }
        self._written = np.zeros(slots, bool)
        self._retired = np.empty(0, np.int32)
        self._origins = origins
        self._disk = disk
        self._counters = counters
        self._residency = Residency(slots, len(origins), experts)
        self._all = sum(pieces[0].shape[0] for pieces in origins.values())
        # Given up, but their reads may still write into their slots; and who gets those afterwards.
        self._late: list[tuple[Fetch, Callable[[np.ndarray], None]]] = []
        self._set_aside = 0
        self._staging: list[int] = []  # of those set aside the ones that nothing is read into
        self._coming: dict[tuple[int, int], _Coming] = {}

    @property
    def slots(self) -> int:
        """How many slots experts can be fetched into now."""
        return self._residency.slots

    @property
    def experts(self) -> int:
        """How many experts there are, in memory or not."""
        return self._all

    @property
    def held(self) -> int:
        """How many slots there is memory for now, those for guesses among them."""
        return self.slots + self._set_aside

    @property
    def filled_bytes(self) -> int:
        """The memory that slots really take."""
        return int(self._written.sum()) * self.one_bytes

    def resize(self, held: int) -> None:
        """Hold `held` slots, as far as reads in flight allow; memory of the others goes to the system."""
        held = min(max(held, self.least), self.planned)
        if held - self._set_aside < self.least:
            self.stage(0)
        if held < self.held:
            self._collect_late()
            retired = self._residency.retire(self.held - held)
            for slot in retired[self._written[retired]].tolist():
                for numbers in self._views:
                    row = numbers[slot : slot + 1]
                    forget(row.ctypes.data, row.nbytes)
            self._written[retired] = False
            self._retired = np.concatenate([self._retired, retired])
        elif held > self.held:
            self._retired, back = np.split(self._retired, [len(self._retired) - (held - self.held)])
            self._residency.restore(back)

    @property
    def fits_all(self) -> bool:
        """Whether nothing ever has to go."""
        return self.slots >= self._all

    @property
    def passes(self) -> int:
        """How often tokens came by while choices were noted."""
        return self._residency.passes

    def heat(self) -> np.ndarray:
        """How likely a pass uses each expert: [modules, experts]."""
        return self._residency.heat()

    def expect(self, heat: np.ndarray, passes: float) -> None:
        """Begin as if so many passes had shown this heat."""
        self._residency.expect(heat, passes)

    def each_expert(self) -> Iterator[tuple[int, int]]:
        """(place, expert) of all there are."""
        for place, each in self._places.items():
            for expert in range(len(each[0][0])):
                yield place, expert

    def note(self, place: int, chosen: np.ndarray) -> None:
        """The router of a module has chosen [tokens, k] experts: so residency knows what is popular."""
        if not self.fits_all:
            self._residency.note(place, chosen)

    def waited_for_router(self, seconds: float) -> None:
        """So long it took until it was known which experts are wanted."""
        self._counters.router_s += seconds

    def expected_misses(self, slots: int) -> float:
        """How many experts a pass would have to read with so many slots, by how often each was used lately."""
        return self._residency.expected_misses(slots)

    def hit(self, experts: int) -> None:
        """So many experts were in memory when they were wanted."""
        self._counters.expert_hits += experts

    def slots_of(self, place: int, experts: np.ndarray) -> np.ndarray:
        """Where experts lie that were fetched."""
        return self._residency.slots_of(place, experts)

    def fetch(self, place: int, missing: np.ndarray, keep: np.ndarray) -> Fetch:
        """Start to read `missing` experts of a module, evicting none of `keep` of the same one, nor of `missing`.

        The caller has made sure that no kernel in flight reads a slot that may be evicted, and waits for the fetch;
        one that fails it gives to `abandon`. Raises DiskError while slots still wait for a disk that hangs.
        """
        experts = missing.tolist()
        coming = [self._coming.get((place, expert)) for expert in experts]
        unread = missing[[guess is None for guess in coming]]
        replaced = sum(guess is not None and guess.staged for guess in coming)
        room = self._room(len(unread) + replaced, place, np.concatenate([keep, missing]))
        fresh, rest = np.split(room, [len(unread)])
        self._staging += rest.tolist()
        self._written[room] = True
        reads, conversions = self._reads(place, unread, fresh)
        readings = [self._disk.read(reads, self)] if reads else []
        slots, left = np.empty(len(missing), np.int32), iter(fresh)
        for at, (expert, guess) in enumerate(zip(experts, coming, strict=True)):
            slots[at] = next(left) if guess is None else guess.slot
            if guess is not None:
                del self._coming[place, expert]
                guess.reading.hurry()
                readings.append(guess.reading)
                conversions += guess.conversions
        self._residency.put(place, missing, slots)
        self._counters.expert_reads += len(missing)
        self._counters.right_guesses += replaced
        return Fetch(missing, slots, self._counters, readings, conversions)

    def abandon(self, place: int, fetch: Fetch) -> None:
        """Give up a fetch: its experts are not in memory, its slots stay out of use until its last read has ended."""
        fetch.cancel()
        self._residency.withhold(place, fetch.missing)
        self._late.append((fetch, self._residency.release))

    def stage(self, slots: int) -> None:
        """Set `slots` slots aside for guesses, or, with 0, use them as any others again."""
        if slots:
            self._staging += self._residency.retire(min(slots, self.slots - self.least)).tolist()
            self._set_aside += len(self._staging)
            return
        self._set_aside = 0
        for place in self._places:
            self.guessed_wrong(place)
        self._unstage(np.array(self._staging, np.int32))
        self._staging.clear()

    def guess(self, place: int, experts: np.ndarray) -> None:
        """Experts that will probably be wanted soon are read while the disk is idle, as far as staging has room.

        They evict nothing: until they are fetched they lie in slots set aside for that.
        """
        self._collect_late()
        for expert in experts[self.slots_of(place, experts) < 0].tolist():
            if self._staging and (place, expert) not in self._coming:
                self._coming[place, expert] = self._bring(place, expert, self._staging.pop(), staged=True)
                self._counters.guesses += 1

    def guessed_wrong(self, place: int) -> None:
        """What was guessed for a module and not fetched is not wanted any more."""
        if not self._coming:
            return
        for key in [key for key, guess in self._coming.items() if key[0] == place and guess.staged]:
            guess = self._coming.pop(key)
            guess.reading.cancel()
            fetch = Fetch(np.array([key[1]]), np.array([guess.slot]), self._counters, [guess.reading])
            self._late.append((fetch, self._unstage))

    def warm(self, place: int, expert: int) -> bool:
        """Read an expert that nobody asked for yet into a slot that is free anyway; whether there was one."""
        if (place, expert) in self._coming or self.slots_of(place, np.array([expert]))[0] >= 0:
            return True
        free = self._residency.take_free(1, leaving=0 if self.fits_all else self.least)
        if free:
            self._coming[place, expert] = self._bring(place, expert, free[0], staged=False)
        return bool(free)

    def settle(self, seconds: float = 0.0) -> int:
        """Put what was warmed and has arrived among the rest; how many experts are still on their way.

        Waits so long for the first of them at most.
        """
        left = 0
        for (place, expert), guess in list(self._coming.items()):
            if guess.staged:
                continue
            if not left and seconds:
                with suppress(DiskError):  # said when somebody asks for it
                    guess.reading.wait(seconds)
            if not guess.reading.landed:
                left += 1
                continue
            del self._coming[place, expert]
            fetch = Fetch(
                np.array([expert]), np.array([guess.slot]), self._counters, [guess.reading], guess.conversions
            )
            try:
                fetch.wait(lambda: None)
                self._residency.put(place, fetch.missing, fetch.slots)
            except DiskError:
                self._residency.release(fetch.slots)
        return left

    def _bring(self, place: int, expert: int, slot: int, staged: bool) -> "_Coming":
        self._written[slot] = True
        reads, conversions = self._reads(place, np.array([expert]), np.array([slot]))
        return _Coming(slot, self._disk.read(reads, self, idle=True), conversions, staged)

    def _unstage(self, slots: np.ndarray) -> None:
        if self._set_aside:
            self._staging += slots.tolist()
        else:
            self._residency.restore(slots)

    def _reads(self, place: int, experts: np.ndarray, slots: np.ndarray) -> tuple[list[Read], list[Conversion]]:
        """What has to be read, and converted afterwards, so that experts lie in slots."""
        reads, conversions = [], []
        rows, taken = experts.tolist(), slots.tolist()
        for number, (origin, (files, offsets), converted) in enumerate(
            zip(self._origins[place], self._places[place], self._converted[place], strict=True)
        ):
            if converted:
                piece, numbers, factor = self.pieces[number], self._views[number], getattr(origin, "factor", 1.0)
                staged = np.empty((len(rows), *piece.shape), STAGING[piece.file_dtype])
                conversions += [
                    Conversion(numbers[slot : slot + 1], staged[at : at + 1], piece.file_dtype, piece.dtype, factor)
                    for at, slot in enumerate(taken)
                ]
                size = staged.nbytes // max(len(rows), 1)
                first, at = staged.ctypes.data, range(len(rows))
            else:
                size, first, at = self._sizes[number], self._starts[number], taken
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

    def _room(self, count: int, place: int, keep: np.ndarray) -> np.ndarray:
        self._collect_late()
        try:
            return self._residency.room(count, place, keep)
        except EngineError:
            if not self._late:
                raise
            raise DiskError(
                "The disk still owes the experts that were asked for before. Check that it is connected, and try again."
            ) from None

    def _collect_late(self) -> None:
        for late in [late for late in self._late if late[0].landed]:
            fetch, give_back = late
            give_back(fetch.slots)
            self._counters.bytes_read += sum(reading.arrived_bytes for reading in fetch.readings)
            self._late.remove(late)


def _is_converted(piece: Piece, origin: Origin) -> bool:
    """Whether what lies in the file is not what lies in the slot."""
    return piece.dtype != MLX_DTYPE[piece.file_dtype] or getattr(origin, "factor", 1.0) != 1.0


def places(origin: Origin, disk: Disk) -> tuple[np.ndarray, np.ndarray]:
    """The file (by the disk's number) and the offset of each expert's row."""
    origin = origin.of if isinstance(origin, Scaled) else origin
    numbers = np.array([disk.number(file) for file in origin.files])
    if isinstance(origin, Rows):
        return numbers[origin.file_of], np.asarray(origin.offsets, np.int64)
    count = origin.shape[0]
    step = origin.nbytes // count
    return np.repeat(numbers, count), origin.offset + step * np.arange(count, dtype=np.int64)
