"""Parallel positional reads: bytes go from the file straight into the memory the kernel reads.

Depth is everything on today's disks, so many reads are in flight at once.
"""

import os
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint import Extent, Identity, identity_of
from engine.errors import DiskError

# Measured on 1 MB random reads: 1 thread 0.1-0.2 GB/s, 4 threads 0.8-1.2, 16-32 threads 1.3-1.7.
READERS = 16
_RETRIES = 3
_F_NOCACHE = 48  # <sys/fcntl.h> on macOS: do not keep what is read in the page cache


@dataclass(frozen=True)
class Read:
    """Fill `target` (a writable, contiguous byte view as long as the extent) from `extent`; `what` names it."""

    extent: Extent
    target: memoryview
    what: str


class Disk:
    """Open files and the threads that read from them."""

    def __init__(self, readers: int = READERS):
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="expert-reader")
        self._files: dict[Path, int] = {}
        self._were: dict[Path, Identity] = {}
        self._lock = threading.Lock()

    def open(self, files: dict[Path, Identity]) -> None:
        """Open files now, and refuse to read from them once they are not what they were when found out about.

        An open file can still be read when its name is deleted. Raises DiskError.
        """
        self._were.update(files)
        for file in files:
            try:
                self._check_unchanged(file, self._descriptor(file))
            except OSError as error:
                raise DiskError(f"{file} cannot be opened: {error}. Check that the disk is connected.") from error

    def read(self, reads: Iterable[Read]) -> list[Future[int]]:
        """Start the reads; each future gives its byte count or raises DiskError."""
        return [self._pool.submit(self._fill, read) for read in reads]

    def close(self) -> None:
        """Wait for reads in flight, then close every file."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            for fd in self._files.values():
                os.close(fd)
            self._files.clear()

    def _fill(self, read: Read) -> int:
        extent, target = read.extent, read.target
        done, failures = 0, 0
        while done < extent.nbytes:
            try:
                got = os.preadv(self._descriptor(extent.file), [target[done:]], extent.offset + done)
                if got == 0:
                    raise OSError(f"the file ends at byte {extent.offset + done:,}")
                done += got
            except OSError as error:
                failures += 1
                if failures > _RETRIES:
                    self._check_unchanged(extent.file, self._files.get(extent.file))
                    raise DiskError(
                        f"Could not read {read.what} ({extent.name}): {extent.file} at byte {extent.offset + done:,}: "
                        f"{error}. Check that the disk is connected and the file is whole."
                    ) from error
        self._check_unchanged(extent.file, self._descriptor(extent.file))
        return done

    def _check_unchanged(self, file: Path, descriptor: int | None) -> None:
        # Two microseconds, after the read: what it gave was there while nothing had changed yet.
        if descriptor is None or (was := self._were.get(file)) is None or identity_of(descriptor) == was:
            return
        raise DiskError(
            f"{file} was changed since the model was loaded, so its experts can't be trusted any more. "
            "Load the model again."
        )

    def _descriptor(self, file: Path) -> int:
        fd = self._files.get(file)
        if fd is None:
            with self._lock:
                fd = self._files.get(file)
                if fd is None:
                    fd = self._files[file] = _open(file)
        return fd


def _open(file: Path) -> int:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, _F_NOCACHE, 1)
    else:
        # No read-ahead: neighbouring bytes belong to experts nobody asked for.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd
