"""Parallel positional reads past the page cache: bytes go from the file straight into the memory the kernel reads.

Depth is everything on today's disks, so many reads are in flight at once: by the system's own queue where it has one
(engine/aio.py), else by threads. What the page cache has already is taken from there, and while the machine has
memory that holds nothing, it may keep what is read; it is never counted on, and nothing is pushed out of it.
"""

import ctypes
import errno
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from engine import memory
from engine.aio import Aio
from engine.checkpoint import Identity, identity_of
from engine.errors import DiskError, ModelChanged
from engine.file_access import OpenFile
from engine.reader_threads import ReaderThreads
from engine.runs import Blocks, Form, Read, Run, direct_form, runs_of, vectors_from

# Measured on 1 MB random reads: 1 thread 0.1-0.2 GB/s, 4 threads 0.8-1.2, 16-32 threads 1.3-1.7.
READERS = 16
_DEPTH = 64
# Reads nobody waits for yet leave the disk's queue to the others.
_IDLE_DEPTH = 4
# What is in the page cache is copied at memory's speed: more threads only take turns.
_CACHE_READERS = 2
_RETRIES = 3
_LOOK_AGAIN_S = 1.0
_LAST_WAIT_S = 1.0

_libc = ctypes.CDLL(None, use_errno=True)
_never_ended: list["Disk"] = []
"""Closed with reads in flight: what those may still write into has to live as long as the process."""


class Reading:
    """Reads that were asked for together. Asked about on the thread that the Disk belongs to."""

    def __init__(self, disk: "Disk", reads: Sequence[Read], owner: object):
        self.reads, self.owner = reads, owner
        self.nbytes = sum(read.nbytes for read in reads)
        self.arrived_bytes = 0
        self.flying = 0
        self.jobs: list[Future[int]] = []
        self._disk = disk

    @property
    def landed(self) -> bool:
        """Whether nothing of it can write anywhere any more."""
        if self.flying:
            self._disk.pump(0)
        return not self.flying and all(job.done() for job in self.jobs)

    def wait(self, seconds: float) -> bool:
        """Whether all is there, after `seconds` at most. Raises DiskError."""
        deadline = monotonic() + seconds
        while self.flying:
            left = deadline - monotonic()
            self._disk.pump(max(left, 0))
            if self.flying and left <= 0:
                return False
        while self.jobs:
            try:
                self.arrived_bytes += self.jobs[-1].result(max(deadline - monotonic(), 0))
            except TimeoutError:
                return False
            self.jobs.pop()
            # It may have been a read in flight that had to be repeated.
            if self.flying:
                return self.wait(deadline - monotonic())
        self._disk.check_unchanged({read.file for read in self.reads})
        return True

    def hurry(self) -> None:
        """Somebody waits for it now."""
        self._disk.hurry(self)

    def cancel(self) -> None:
        """Wish for no more of it. What is in flight ends when it ends: `landed` tells."""
        self._disk.drop(self)
        for job in self.jobs:
            job.cancel()


class _OfThread(threading.local):
    """Each reader thread has a block of its own."""

    def __init__(self) -> None:
        self.blocks = Blocks(1)


@dataclass(slots=True)
class _Flight:
    reading: Reading
    run: Run
    idle: bool


class Disk:
    """Open files, and reads from them. Belongs to one thread."""

    def __init__(self, readers: int = READERS, cache: bool = True, asynchronous: bool = True):
        """`cache` False reads from the disk itself what the page cache has; `asynchronous` False uses threads alone."""
        self._threads = ReaderThreads(readers)
        self._numbers: dict[Path, int] = {}
        self._files: list[OpenFile | None] = []
        self._paths: list[Path] = []
        self._were: dict[int, Identity] = {}
        self._cache = cache
        self._spare, self._looked = False, -_LOOK_AGAIN_S
        self._aio = _aio() if asynchronous else None
        self._blocks = Blocks()
        self._mine = _OfThread()
        self._waiting: deque[_Flight] = deque()
        self._idle: deque[_Flight] = deque()
        self._flying: dict[int, tuple[_Flight, Form]] = {}
        self._flying_idle = 0
        self._next = itertools.count()

    def open(self, files: dict[Path, Identity]) -> None:
        """Open files now, and refuse to read from them once they are not what they were when found out about.

        An open file can still be read when its name is deleted. Raises DiskError.
        """
        for path, identity in files.items():
            number = self.number(path)
            self._were[number] = identity
            try:
                self._file(number)
            except OSError as error:
                raise DiskError(f"{path} cannot be opened: {error}. Check that the disk is connected.") from error
            self.check_unchanged([number])

    def number(self, path: Path) -> int:
        """What stands for a file in a Read."""
        if path not in self._numbers:
            self._numbers[path] = len(self._paths)
            self._paths.append(path)
            self._files.append(None)
        return self._numbers[path]

    def read(self, reads: Sequence[Read], owner: object = None, idle: bool = False) -> Reading:
        """Start the reads. `owner` has the memory they go to; `idle` ones leave the disk to all others."""
        reading = Reading(self, reads, owner)
        if self._cache and reads and self._from_cache_at_once(reading):
            return reading
        from_cache, spare = [], self._cache and self._spare_memory()
        for run in runs_of(reads):
            try:
                file = self._file(run.file)
            except OSError as error:
                reading.jobs.append(_failed(self._trouble(reading, run, 0, error)))
                continue
            if self._cache and file.is_cached(run.offset, run.nbytes, look_now=spare):
                from_cache.append(run)
            elif spare:
                reading.jobs.append(self._threads.submit(self._plain, reading, [run], True))
            elif file.direct is not None and self._aio:
                (self._idle if idle else self._waiting).append(_Flight(reading, run, idle))
                reading.flying += 1
            else:
                file.announce(run.offset, run.nbytes)
                reading.jobs.append(self._threads.submit(self._by_thread, reading, [run], file.direct is not None))
        for part in range(_CACHE_READERS):
            if some := from_cache[part::_CACHE_READERS]:
                reading.jobs.append(self._threads.submit(self._plain, reading, some, True))
        self._submit()
        return reading

    def _from_cache_at_once(self, reading: Reading) -> bool:
        """Start reads of files that are in the page cache as a whole, if they are: nothing else is worth asking."""
        samples = {read.file: read for read in reading.reads}
        try:
            opened = {number: self._file(number) for number in samples}
        except OSError:
            return False  # said further on
        native = _native_reads()
        if native is None or not all(
            file.all_is_cached(samples[number].offset, samples[number].nbytes) for number, file in opened.items()
        ):
            return False
        table = np.array(
            [(opened[read.file].buffered, read.offset, read.nbytes, read.address) for read in reading.reads], np.int64
        )
        for part in range(_CACHE_READERS):
            if len(some := table[part::_CACHE_READERS]):
                some = np.ascontiguousarray(some)
                reading.jobs.append(self._threads.submit(self._natively, native, reading, some, part))
        return True

    def _natively(self, native: Callable[[np.ndarray], int], reading: Reading, table: np.ndarray, part: int) -> int:
        if (whole := native(table)) < len(table):
            self._plain(reading, runs_of(reading.reads[part::_CACHE_READERS][whole:]), True)
        return int(table[:, 2].sum())

    def pump(self, seconds: float) -> None:
        """Attend to reads in flight; waits at most `seconds` for the first to end."""
        if self._aio and self._flying:
            for number, result in self._aio.ended(seconds):
                self._end(*self._flying.pop(number), result)
        self._submit()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for a read."""
        return not self._waiting and len(self._flying) == self._flying_idle

    def hurry(self, reading: Reading) -> None:
        """Reads that were to leave the disk to others go before them."""
        for flight in [flight for flight in self._idle if flight.reading is reading]:
            self._idle.remove(flight)
            flight.idle = False
            self._waiting.appendleft(flight)
        self._submit()

    def drop(self, reading: Reading) -> None:
        """Forget those of its reads that have not begun."""
        for waiting in (self._waiting, self._idle):
            for flight in [flight for flight in waiting if flight.reading is reading]:
                waiting.remove(flight)
                reading.flying -= 1

    def check_unchanged(self, files: Iterable[int]) -> None:
        """Raises ModelChanged when one is not the file any more that it was when it was opened."""
        # Two microseconds, after the reads: what they gave was there while nothing had changed yet.
        for number in files:
            file, was = self._files[number], self._were.get(number)
            if file is not None and was is not None and identity_of(file.buffered) != was:
                raise ModelChanged(
                    f"{file.path} was changed since the model was loaded, so its experts can't be trusted any more. "
                    "The model has to be loaded again."
                )

    def close(self) -> None:
        """Close every file, unless a read hangs: then they are left to the end of the process, and nobody waits."""
        for waiting in (self._waiting, self._idle):
            for flight in waiting:
                flight.reading.flying -= 1
            waiting.clear()
        deadline = monotonic() + _LAST_WAIT_S
        while self._flying and (left := deadline - monotonic()) > 0:
            self.pump(left)
        busy = self._threads.close(max(deadline - monotonic(), 0))
        if self._flying or busy:
            _never_ended.append(self)
            return
        if self._aio:
            self._aio.close()
            self._aio = None
        for file in self._files:
            if file is not None:
                file.close()
        self._files = [None] * len(self._files)

    def _spare_memory(self) -> bool:
        """Whether there is so much memory that holds nothing at all that the page cache may have some of it."""
        now = monotonic()
        if now - self._looked > _LOOK_AGAIN_S:
            self._looked = now
            self._spare = memory.unused_bytes() > max(memory.physical_bytes() // 8, memory.GIB)
        return self._spare

    def _file(self, number: int) -> OpenFile:
        file = self._files[number]
        if file is None:
            file = self._files[number] = OpenFile(self._paths[number])
        return file

    def _submit(self) -> None:
        """Start what may start: reads that somebody waits for first."""
        if not self._aio:
            return
        self._start(self._aio, self._waiting, _DEPTH - len(self._flying) + self._flying_idle, idle=False)
        if not self._waiting:
            self._start(self._aio, self._idle, _IDLE_DEPTH - self._flying_idle, idle=True)

    def _start(self, aio: Aio, waiting: deque[_Flight], room: int, idle: bool) -> None:
        asked: list[tuple[int, int, int, ctypes.Array]] = []
        while waiting and len(asked) < room:
            form = direct_form(waiting[0].run, self._blocks)
            if form is None:
                break
            flight, number = waiting.popleft(), next(self._next)
            direct = self._file(flight.run.file).direct
            self._flying[number] = flight, form
            self._flying_idle += idle
            if direct is None:
                self._end(*self._flying.pop(number), -errno.EINVAL)
            else:
                asked.append((number, direct, form.start, form.vectors))
        while asked:
            try:
                taken = aio.submit(asked, idle)
            except OSError as error:
                self._end(*self._flying.pop(asked[0][0]), -(error.errno or errno.EIO))
                taken = 1
            asked = asked[taken:]

    def _end(self, flight: _Flight, form: Form, result: int) -> None:
        reading, run = flight.reading, flight.run
        self._flying_idle -= flight.idle
        if result >= run.end - form.start:
            form.copy()
            reading.arrived_bytes += run.nbytes
        else:
            if result == -errno.EINVAL:
                self._file(run.file).direct = None  # the file system has no direct reads after all
            reading.jobs.append(self._threads.submit(self._plain, reading, [run], False))
        self._blocks.give_back(form.blocks)
        reading.flying -= 1

    def _by_thread(self, reading: Reading, runs: list[Run], direct: bool) -> int:
        """Where the system has no queue of its own."""
        if not direct:
            return self._plain(reading, runs, False)
        for run in runs:
            file, blocks = self._file(run.file), self._mine.blocks
            form = direct_form(run, blocks)
            if (
                form is None
                or file.direct is None
                or _preadv(file.direct, form.vectors, form.start) < run.end - form.start
            ):
                self._plain(reading, [run], False)
            else:
                form.copy()
            blocks.give_back(form.blocks if form else [])
        return sum(run.nbytes for run in runs)

    def _plain(self, reading: Reading, runs: list[Run], keep: bool) -> int:
        """Through the page cache, again and again where something fails; may it `keep` that? Raises DiskError."""
        for run in runs:
            file, done, failures = self._file(run.file), 0, 0
            while done < run.nbytes:
                try:
                    got = _preadv(file.buffered, vectors_from(run, done), run.offset + done)
                    if got < 0:
                        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                    if got == 0:
                        raise OSError(f"the file ends at byte {run.offset + done:,}")
                    done += got
                except OSError as error:
                    failures += 1
                    if failures > _RETRIES:
                        raise self._trouble(reading, run, done, error) from error
            if not keep:
                file.leave_no_trace(run.offset, run.nbytes)
        return sum(run.nbytes for run in runs)

    def _trouble(self, reading: Reading, run: Run, done: int, error: OSError) -> DiskError:
        """What could not be read, in words; a file that was changed says so instead."""
        try:
            self.check_unchanged([run.file])
        except DiskError as changed:
            return changed
        at = run.offset + done
        read = next(r for r in reading.reads if r.file == run.file and r.offset <= at < r.offset + r.nbytes)
        return DiskError(
            f"Could not read expert {read.row} ({read.of.rows(read.row).name}): {self._paths[run.file]} at byte "
            f"{at:,}: {error}. Check that the disk is connected and the file is whole."
        )


@cache
def _native_reads() -> Callable[[np.ndarray], int] | None:
    try:
        from engine.native_reads import read_all
    except ImportError:  # no Numba: on macOS
        return None
    return read_all


def _aio() -> Aio | None:
    try:
        return Aio(_DEPTH + _IDLE_DEPTH)
    except OSError:  # another system, or one that forbids it
        return None


def _preadv(descriptor: int, vectors: ctypes.Array, offset: int) -> int:
    return _libc.preadv(ctypes.c_int(descriptor), vectors, ctypes.c_int(len(vectors)), ctypes.c_int64(offset))


def _failed(error: DiskError) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
