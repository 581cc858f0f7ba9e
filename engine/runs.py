"""What is asked of the disk: reads of pieces, put together where they are neighbours, and their form for direct reads.

A direct read moves whole pages between the file and memory. Bytes that lie equally far into a page in both go straight
to their place, but for the pages at either end; others come by way of a page-aligned block.
"""

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.checkpoint import Extent
from engine.slot_memory import PAGE

# One read at most; larger pieces are read in several at once. Beyond one MB a read gains nothing by its size.
RUN_BYTES = 2 << 20
# So small a piece may rather be copied than be read on its own.
_SMALL_BYTES = 128 << 10
_MOST_PARTS = 256
_BLOCK_BYTES = RUN_BYTES + 2 * PAGE
_SPARE_BLOCKS = 16


class Rowed(Protocol):
    """An array on disk whose rows have a name and a place: an Extent, or what a Provenance makes of several."""

    def rows(self, row: int) -> Extent: ...


class Read(NamedTuple):
    """`nbytes` at `offset` of a file (by the Disk's number) go to `address`: the row of an expert in `of`."""

    file: int
    offset: int
    nbytes: int
    address: int
    of: Rowed
    row: int


class Vector(ctypes.Structure):
    """struct iovec: where bytes go."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@dataclass(slots=True)
class Run:
    """Bytes [offset, end) of a file, in one read. `parts` are (address, nbytes), one after the other."""

    file: int
    offset: int
    end: int
    parts: list[tuple[int, int]]

    @property
    def nbytes(self) -> int:
        return self.end - self.offset


@dataclass(slots=True)
class Form:
    """A read of whole pages from `start`; then `copies` (to, from, nbytes) are made, and blocks are free again."""

    start: int
    end: int
    vectors: ctypes.Array
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    blocks: list[mmap.mmap] = field(default_factory=list)

    def copy(self) -> None:
        """Put what came into blocks in its place."""
        for to, source, nbytes in self.copies:
            ctypes.memmove(to, source, nbytes)


def runs_of(reads: Sequence[Read]) -> list[Run]:
    """The reads in file order, neighbours together where that doesn't mean to copy much."""
    runs: list[Run] = []
    last = None
    for read in sorted(reads, key=lambda read: (read.file, read.offset)):
        at, address, left = read.offset, read.address, read.nbytes
        while left:
            # Cut where a page begins, so that the rest stays as well aligned as the whole.
            size = min(left, RUN_BYTES - at % PAGE)
            if last is not None and _joins(last, read.file, at, address, size):
                address_before, size_before = last.parts[-1]
                if address_before + size_before == address:
                    last.parts[-1] = (address_before, size_before + size)
                else:
                    last.parts.append((address, size))
                last.end += size
            else:
                last = Run(read.file, at, at + size, [(address, size)])
                runs.append(last)
            at, address, left = at + size, address + size, left - size
    return runs


def _joins(run: Run, file: int, offset: int, address: int, nbytes: int) -> bool:
    if run.file != file or run.end != offset or run.nbytes + nbytes > RUN_BYTES or len(run.parts) >= _MOST_PARTS:
        return False
    before, size = run.parts[-1]
    aligned = offset % PAGE == address % PAGE == 0 and before % PAGE == (run.end - size) % PAGE
    return aligned or before + size == address or max(nbytes, run.nbytes) <= _SMALL_BYTES


class Blocks:
    """Page-aligned memory for what can't go straight to its place. Bounded: a read waits until some is free."""

    def __init__(self, most: int = _SPARE_BLOCKS):
        self._free: list[mmap.mmap] = []
        self._left = most
        self._pages: list[mmap.mmap] = []

    def take(self) -> mmap.mmap | None:
        """A block as large as any run; None while all are in use."""
        if self._free:
            return self._free.pop()
        if not self._left:
            return None
        self._left -= 1
        return mmap.mmap(-1, _BLOCK_BYTES)

    def two_pages(self) -> mmap.mmap:
        """Room for the first and the last page of a run."""
        return self._pages.pop() if self._pages else mmap.mmap(-1, 2 * PAGE)

    def give_back(self, blocks: list[mmap.mmap]) -> None:
        for block in blocks:
            (self._free if len(block) == _BLOCK_BYTES else self._pages).append(block)


def direct_form(run: Run, blocks: Blocks) -> Form | None:
    """How a run is read in whole pages; None while no block is free for it."""
    start, end = run.offset // PAGE * PAGE, -(-run.end // PAGE) * PAGE
    if _lies_alike(run):
        return _in_place(run, start, end, blocks)
    block = blocks.take()
    if block is None:
        return None
    first = address_of(block)
    copies, at = [], first + run.offset - start
    for address, nbytes in run.parts:
        copies.append((address, at, nbytes))
        at += nbytes
    return Form(start, end, _vectors([(first, end - start)]), copies, [block])


def _lies_alike(run: Run) -> bool:
    """Whether every part lies as far into a page in memory as in the file, and parts meet where pages do."""
    head, tail, at = -run.offset % PAGE, run.end % PAGE, run.offset
    if run.nbytes < 3 * PAGE or run.parts[0][1] < head or run.parts[-1][1] < tail:
        return False
    for address, nbytes in run.parts:
        if address % PAGE != at % PAGE or (at % PAGE and at != run.offset):
            return False
        at += nbytes
    return True


def _in_place(run: Run, start: int, end: int, blocks: Blocks) -> Form:
    parts, copies, ends = list(run.parts), [], []
    head, tail = run.offset - start, run.end % PAGE
    block = blocks.two_pages() if head or tail else None
    first = address_of(block) if block is not None else 0
    if head:
        address, nbytes = parts[0]
        copies.append((address, first + head, PAGE - head))
        parts[0] = (address + PAGE - head, nbytes - (PAGE - head))
        ends.append((first, PAGE))
    if tail:
        address, nbytes = parts[-1]
        copies.append((address + nbytes - tail, first + PAGE, tail))
        parts[-1] = (address, nbytes - tail)
    vectors = [*ends, *(part for part in parts if part[1]), *([(first + PAGE, PAGE)] if tail else [])]
    return Form(start, end, _vectors(vectors), copies, [block] if block is not None else [])


def vectors_from(run: Run, done: int) -> ctypes.Array:
    """Where the bytes of a run go after the first `done`."""
    left = []
    for address, nbytes in run.parts:
        skipped = min(done, nbytes)
        done -= skipped
        if nbytes > skipped:
            left.append((address + skipped, nbytes - skipped))
    return _vectors(left)


def _vectors(parts: list[tuple[int, int]]) -> ctypes.Array:
    return (Vector * len(parts))(*parts)


def address_of(block: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(block))
