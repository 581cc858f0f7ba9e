"""Memory for slots: MLX arrays whose rows the disk can write in place, and whose unused rows cost nothing.

A direct read wants the address in memory to lie as far into a page as the bytes do in their file. So each array begins
at a chosen place in a page. It is untouched at first: the system gives a page when something is written there, and
takes it back when told that a row is not needed.
"""

import ctypes
import mmap
import os
import sys

import mlx.core as mx
import numpy as np

PAGE = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
# Linux gives fresh zero pages afterwards; macOS keeps what it has no other use for. Both leave the addresses valid.
_FORGET = mmap.MADV_DONTNEED if sys.platform == "linux" else mmap.MADV_FREE


def allocate(shape: tuple[int, ...], dtype: mx.Dtype, residue: int = 0) -> mx.array:
    """An array whose memory begins `residue` bytes into a page. Its contents are undefined."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.size
    room = mx.zeros((nbytes + PAGE,), dtype=mx.uint8)
    mx.eval(room)
    start = (residue - address_of(room)) % PAGE
    array = room[start : start + nbytes].view(dtype).reshape(shape)
    mx.eval(array)
    forget(address_of(room), room.nbytes)
    return array


def view(array: mx.array) -> np.ndarray:
    """A writable NumPy view of an evaluated array's own memory; bfloat16 as its bits, NumPy has no such type."""
    bits = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.array(bits, copy=False)


def address_of(array: mx.array) -> int:
    """Where an evaluated array's memory begins."""
    return view(array).ctypes.data


def forget(address: int, nbytes: int) -> None:
    """Give the whole pages within these bytes back to the system; what they held is lost."""
    first, last = -(-address // PAGE) * PAGE, (address + nbytes) // PAGE * PAGE
    if last > first and _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _FORGET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def give_back_freed() -> None:
    """Let MLX and the C library return to the system what they have freed and kept for later."""
    mx.clear_cache()
    if trim := getattr(_libc, "malloc_trim", None):  # glibc's own
        trim(0)
