"""How the host chooses experts: with NumPy where the choice is clear, with MLX's own functions at near-ties.

An exponential that differs from MLX's in its last bits must not choose another expert, and of equal ones the same must
be taken as MLX takes. So an array remembers how MLX would have made it, and is made again that way when it matters; and
a function that chooses runs as a whole on MLX when one of its choices is close.
"""

import logging
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from numba import float32, njit

log = logging.getLogger("pagoda.engine")

# Scores that are nearer to each other, relative to the larger, are left to MLX. Its exponential and NumPy's differ by
# some 1e-7.
NEAR = 1e-5


class NearTie(Exception):
    """A choice within a function is too close for the host."""


_within_function = False


def whole_or_on_mlx(on_host: Callable, on_mlx: Callable) -> Callable:
    """A function that chooses: `on_host`, and where one of its choices is close, or it fails there, `on_mlx`."""
    able = True

    def call(*args: Any, **kwargs: Any) -> Any:
        global _within_function
        nonlocal able
        if able:
            _within_function = True
            try:
                return on_host(*args, **kwargs)
            except NearTie:
                pass
            except Exception as error:
                log.info("a router runs on MLX, not on the host: %s: %s", type(error).__name__, error)
                able = False
            finally:
                _within_function = False
        return on_mlx(*args, **kwargs)

    return call


def softmax(x: Any, axis: Any = None, precise: bool = False, **_: Any) -> Any:
    """mx.softmax of a HostArray; over the last axis [..., E], in float32, the host's own."""
    if axis not in (-1, x.ndim - 1, [-1]) or x.dtype != np.float32:
        return mx.softmax(_mlx(x), axis=axis, precise=precise)
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    shares = np.empty_like(rows)
    _softmax(rows, shares)
    out = shares.reshape(x.shape).view(type(x))
    out.on_mlx = lambda: mx.softmax(_mlx(x), axis=-1, precise=precise)
    return out


def sigmoid(x: Any, **_: Any) -> Any:
    """mx.sigmoid of a HostArray in float32."""
    if x.dtype != np.float32:
        return mx.sigmoid(_mlx(x))
    with np.errstate(over="ignore"):  # exp of a large number is infinite, and 1 / infinity the 0 that is meant
        out = 1 / (1 + np.exp(-x))
    out.on_mlx = lambda: mx.sigmoid(_mlx(x))
    return out


def argpartition(a: Any, kth: int, axis: int = -1) -> Any:
    """mx.argpartition of a HostArray: the host's own wherever `kth` of the last axis stands clear.

    Raises NearTie within a function.
    """
    width = a.shape[-1]
    if axis in (-1, a.ndim - 1):
        order = np.argsort(a, axis=-1)
        if _clear(np.ascontiguousarray(a).reshape(-1, width), order.reshape(-1, width), kth % width):
            return order
    if _within_function:
        raise NearTie
    return mx.argpartition(a.on_mlx() if a.on_mlx else _mlx(a), kth=kth, axis=axis)


@njit(nogil=True, cache=True)
def _clear(a, order, kth):
    """Whether in every row of a [n, E] the value that comes in place `kth` stands clear of its neighbours."""
    for row in range(len(a)):
        for place in range(max(kth - 1, 0), min(kth + 1, a.shape[1] - 1)):
            lower, upper = a[row, order[row, place]], a[row, order[row, place + 1]]
            if not upper - lower > NEAR * max(abs(lower), abs(upper)):
                return False
    return True


@njit(nogil=True, error_model="numpy", cache=True)
def _softmax(x, out):
    """out [n, E] = softmax of each row of x."""
    for row in range(len(x)):
        highest = x[row].max()
        total = float32(0)
        for i in range(x.shape[1]):
            out[row, i] = np.exp(x[row, i] - highest)
            total += out[row, i]
        for i in range(x.shape[1]):
            out[row, i] /= total


def topk(a: Any, k: int, axis: int = -1) -> Any:
    """The k largest values along an axis; equal ones are equal, so ties don't matter."""
    return np.partition(a, a.shape[axis] - k, axis).take(np.arange(a.shape[axis] - k, a.shape[axis]), axis)


def _mlx(x: np.ndarray) -> mx.array:
    return mx.array(np.ascontiguousarray(x))
