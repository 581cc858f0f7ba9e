"""What lies at an address, for compiled code that is given addresses; and what the steps of a recorded token are told.

A step is a C function of two addresses: of its own arguments, and of the moment, which all steps of a token share.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numba.np.numpy_support import carray

from engine.kernels.atomics import pointer

_NATIVE = {"nogil": True, "error_model": "numpy", "cache": True}

STEP: Any = types.void(types.int64, types.int64)

# The moment, int64: where the token stands, the crew's board and its size, whether a step could not decide. For each
# KV cache of the sequence follow the addresses of keys and of values, each with how many bytes its heads lie apart.
POSITION, BOARD, BOARD_SIZE, UNDECIDED, CACHES = range(5)
CACHE_FIELDS = 4


@njit(**_NATIVE)
def floats(address, rows, columns):
    """float32 [rows, columns]."""
    return carray(pointer(address), (rows, columns), np.float32)


@njit(**_NATIVE)
def integers(address, count):
    """int64 [count]."""
    return carray(pointer(address), (count,), np.int64)


@njit(**_NATIVE)
def number(address):
    """The float64 there."""
    return carray(pointer(address), (1,), np.float64)[0]


@njit(**_NATIVE)
def board_of(moment, worth):
    """The crew's board of the moment; an empty one for a job that is not `worth` a crew."""
    board, size = integers(moment, CACHES)[BOARD : BOARD_SIZE + 1]
    return integers(board, size if worth else 0)
