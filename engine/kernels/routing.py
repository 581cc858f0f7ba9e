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
    out = np.exp(x - x.max(-1, keepdims=True))
    out /= out.sum(-1, keepdims=True)
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
    """mx.argpartition of a HostArray: the host's own wherever `kth` stands clear. Raises NearTie within a function."""
    order = np.argsort(a, axis=axis)
    place = kth % a.shape[axis]
    near = np.arange(max(place - 1, 0), min(place + 2, a.shape[axis]))
    around = np.take_along_axis(a, order.take(near, axis), axis)
    if (np.diff(around, axis=axis) > NEAR * np.abs(around).max(axis, keepdims=True)).all():
        return order
    if _within_function:
        raise NearTie
    return mx.argpartition(a.on_mlx() if a.on_mlx else _mlx(a), kth=kth, axis=axis)


def topk(a: Any, k: int, axis: int = -1) -> Any:
    """The k largest values along an axis; equal ones are equal, so ties don't matter."""
    return np.partition(a, a.shape[axis] - k, axis).take(np.arange(a.shape[axis] - k, a.shape[axis]), axis)


def _mlx(x: np.ndarray) -> mx.array:
    return mx.array(np.ascontiguousarray(x))
