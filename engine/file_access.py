"""How the system is asked to read a file past its page cache, and what it says about what is in there.

Expert bytes are read once into slots, so the page cache should neither keep them twice nor lose what it has for them.
What is in it already is taken from it: that is memory, the disk is ten times slower.
"""

import ctypes
import os
import platform
import struct
import sys
from pathlib import Path
from time import monotonic

from engine.slot_memory import PAGE

_CACHESTAT = 451  # the same number on every architecture, since Linux 6.5
_F_RDADVISE, _F_NOCACHE = 44, 48  # <sys/fcntl.h> on macOS
_MACHINE = platform.machine()
_LOOK_AGAIN_S = 10.0
# Looking at all of a file takes 16 ms a GB, so it is done ever so much more rarely.
_LOOKING_SHARE = 200

_libc = ctypes.CDLL(None, use_errno=True)


class OpenFile:
    """One file, open for reads through the page cache (`buffered`) and, where that is possible, past it (`direct`)."""

    def __init__(self, path: Path):
        self.path = path
        self.buffered = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.direct = self._direct = open_direct(path)
        self._any_cached = self._all_cached = False
        self._look_again = 0.0
        if sys.platform == "darwin":
            do_not_cache(self.buffered)
        elif hasattr(os, "posix_fadvise"):
            # No read-ahead: neighbouring bytes belong to experts nobody asked for.
            os.posix_fadvise(self.buffered, 0, 0, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        self.direct = None
        for descriptor in (self.buffered, self._direct):
            if descriptor is not None:
                os.close(descriptor)

    def is_cached(self, offset: int, nbytes: int, look_now: bool = True) -> bool:
        """Whether all these bytes are in the page cache. Where the system can't tell: no.

        Without `look_now` a file of which hardly anything is cached is taken for one that has nothing there.
        """
        if not look_now:
            self._look()
            if not self._any_cached:
                return False
        return cached_pages(self.buffered, offset, nbytes) >= -(-(offset + nbytes) // PAGE) - offset // PAGE

    def all_is_cached(self, offset: int, nbytes: int) -> bool:
        """Whether the whole file is in the page cache, as far as these bytes show: all of it was, some seconds ago."""
        self._look()
        self._all_cached = self._all_cached and self.is_cached(offset, nbytes)
        return self._all_cached

    def _look(self) -> None:
        if (now := monotonic()) < self._look_again:
            return
        size = os.fstat(self.buffered).st_size
        pages = cached_pages(self.buffered, 0, size)
        self._any_cached, self._all_cached = pages > size // PAGE // 100, pages >= -(-size // PAGE)
        self._look_again = now + max(_LOOK_AGAIN_S, _LOOKING_SHARE * (monotonic() - now))

    def leave_no_trace(self, offset: int, nbytes: int) -> None:
        """Drop from the page cache what a buffered read has just put there."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.buffered, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def announce(self, offset: int, nbytes: int) -> None:
        """Tell the system of a read that waits for a free thread (macOS alone has a use for it)."""
        if sys.platform == "darwin":
            announce(self.buffered, offset, nbytes)


def open_direct(path: Path) -> int | None:
    """A descriptor for reads past the page cache; None where the file system has none (9p, some FUSE, old tmpfs)."""
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return None


def cached_pages(descriptor: int, offset: int, nbytes: int) -> int:
    """How many pages of a range are in the page cache, by cachestat(2); 0 where the system doesn't tell."""
    if sys.platform != "linux" or _MACHINE not in ("x86_64", "aarch64"):
        return 0
    wanted, found = (ctypes.c_uint64 * 2)(offset, max(nbytes, 1)), (ctypes.c_uint64 * 5)()
    if _libc.syscall(_CACHESTAT, descriptor, wanted, found, 0):
        return 0
    return found[0]


def do_not_cache(descriptor: int) -> None:
    """macOS: what is read through this descriptor is not kept; what is cached already is used."""
    _fcntl(descriptor, _F_NOCACHE, 1)


def announce(descriptor: int, offset: int, nbytes: int) -> None:
    """macOS: start to read a range, without waiting and without a place for its bytes yet."""
    _fcntl(descriptor, _F_RDADVISE, struct.pack("@qi4x", offset, min(nbytes, (1 << 31) - 1)))


def _fcntl(descriptor: int, command: int, argument: int | bytes) -> None:
    import fcntl

    fcntl.fcntl(descriptor, command, argument)
