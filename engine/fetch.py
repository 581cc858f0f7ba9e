"""Experts on their way from disk into their slots: reads in flight, and what happens when they don't arrive."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

import mlx.core as mx
import numpy as np

from engine.disk import Reading
from engine.errors import DiskError
from engine.runs import Read

# A disk from which nothing at all came for so long is not slow but gone. The page says "stalled" long before.
STALLED_S = 120.0
_LOOK_EVERY_S = 0.2  # while waiting, for a stop

# How a file's numbers are read before they are converted. bfloat16 has no NumPy dtype: its bits are read as uint16.
STAGING = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}


@dataclass
class Counters:
    """What was read since the model was loaded.

    Seconds: `disk_s` the engine waited for reads; `router_s` for what routers chose, to be computed and to come back
    from the device (0 where layers run on the host: there it is known as soon as it is computed).
    """

    expert_hits: int = 0
    expert_reads: int = 0
    bytes_read: int = 0
    disk_s: float = 0.0
    router_s: float = 0.0
    guesses: int = 0
    right_guesses: int = 0

    @property
    def prefetch_hit_rate(self) -> float | None:
        """The share of experts read on a guess that were then used; None when nothing was guessed."""
        return self.right_guesses / self.guesses if self.guesses else None


@dataclass(frozen=True)
class Conversion:
    """`staged`, as it lies in the file, becomes `row` of a slot: widened, times `factor`."""

    row: np.ndarray
    staged: np.ndarray
    file_dtype: str
    dtype: mx.Dtype
    factor: float

    def carry_out(self) -> None:
        self.row[...] = _narrow(widen(self.staged, self.file_dtype) * np.float32(self.factor), self.dtype)


@dataclass
class Fetch:
    """`missing` are the experts of a module that lie in `slots` after `wait`, and may not be used before."""

    missing: np.ndarray
    slots: np.ndarray
    counters: Counters
    readings: list[Reading]
    conversions: list[Conversion] = field(default_factory=list)

    def wait(self, check: Callable[[], None]) -> None:
        """Until all is there. `check` is called meanwhile and may raise to give up; then the store abandons this.

        Raises DiskError, also when nothing comes any more.
        """
        started = since = perf_counter()
        came = 0
        for reading in self.readings:
            while not reading.wait(_LOOK_EVERY_S):
                if (now := sum(each.arrived_bytes for each in self.readings)) > came:
                    came, since = now, perf_counter()
                elif perf_counter() - since > STALLED_S:
                    raise _stalled(reading.reads[0])
                check()
            self.counters.bytes_read += reading.nbytes
        check()
        for conversion in self.conversions:
            conversion.carry_out()
        self.counters.disk_s += perf_counter() - started

    def cancel(self) -> None:
        """Wish for no more of it; `landed` tells when it has ended."""
        for reading in self.readings:
            reading.cancel()

    @property
    def landed(self) -> bool:
        """Whether nothing can write into the slots any more."""
        return all([reading.landed for reading in self.readings])


def widen(staged: np.ndarray, dtype: str) -> np.ndarray:
    """float32 of the same values: exact for both 16-bit formats (bfloat16 is the upper half of a float32)."""
    if dtype == "BF16":
        return (staged.astype(np.uint32) << 16).view(np.float32)
    return staged.astype(np.float32, copy=False)


def _narrow(numbers: np.ndarray, dtype: mx.Dtype) -> np.ndarray:
    """float32 numbers that `dtype` can hold exactly, as its bits lie in a slot."""
    return (numbers.view(np.uint32) >> 16).astype(np.uint16) if dtype == mx.bfloat16 else numbers


def _stalled(read: Read) -> DiskError:
    extent = read.of.rows(read.row)
    return DiskError(
        f"The disk gave nothing for {STALLED_S:.0f} s: expert {read.row} ({extent.name}) in {extent.file} at byte "
        f"{extent.offset:,}. Check that the disk is connected, and try again."
    )
