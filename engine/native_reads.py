"""Many small reads in one call that never holds Python's lock, for bytes that are in the page cache anyway.

A layer's misses are some thirty reads of 32 to 256 KB, each of which takes 10 to 50 microseconds from the page cache.
Made one by one from a Python thread, each waits for the lock that the thread which computes has.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types

from engine.kernels.atomics import native

_INDEX = ir.IntType(64)


@native
def _pread(typingctx, descriptor, address, nbytes, offset):
    """POSIX's pread of int64 numbers: bytes read, or -1."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INDEX, [ir.IntType(32), ir.IntType(8).as_pointer(), _INDEX, _INDEX])
        function = builder.module.globals.get("pread") or ir.Function(builder.module, kind, "pread")
        descriptor = builder.trunc(args[0], ir.IntType(32))
        address = builder.inttoptr(args[1], ir.IntType(8).as_pointer())
        return builder.call(function, [descriptor, address, args[2], args[3]])

    return types.int64(types.int64, types.int64, types.int64, types.int64), codegen


@njit(nogil=True, cache=True)
def read_all(table):
    """Carry out reads int64 [n, 4] of (descriptor, offset, bytes, address); how many of them came whole, at least."""
    for row in range(len(table)):
        descriptor, offset, left, address = table[row, 0], table[row, 1], table[row, 2], table[row, 3]
        while left > 0:
            got = _pread(descriptor, address, left, offset)
            if got <= 0:
                return row
            offset, left, address = offset + got, left - got, address + got
    return len(table)
