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

from engine.kernels import steps, tape
from engine.kernels.steps import softmax_rows, stands_clear

log = logging.getLogger("pagoda.engine")


class NearTie(Exception):
    """A choice within a function is too close for the host."""


_within_function = False


def whole_or_on_mlx(on_host: Callable, on_mlx: Callable) -> Callable:
    """A function that chooses: `on_host`, and where one of its choices is close, or it fails there, `on_mlx`."""
    able = True

    def call(*args: Any, **kwargs: Any) -> Any:
        return tape.whole(choose, *args, **kwargs)

    def choose(*args: Any, **kwargs: Any) -> Any:
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
    softmax_rows(rows, shares)
    if tape.current is not None:
        tape.current.native(steps.softmax, [rows, shares, *rows.shape], [rows], [shares])
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
        values = np.asarray(a)
        order = np.argsort(values, axis=-1)
        if stands_clear(np.ascontiguousarray(values).reshape(-1, width), order.reshape(-1, width), kth % width):
            if tape.current is not None:
                _note_choice(a, kth, order)
            return order
    if _within_function:
        raise NearTie
    if tape.current is not None:
        raise tape.CannotRecord("a choice that is left to MLX this time")
    return mx.argpartition(a.on_mlx() if a.on_mlx else _mlx(a), kth=kth, axis=axis)


def _note_choice(a: Any, kth: int, order: np.ndarray) -> None:
    if a.size != a.shape[-1] or a.dtype != np.float32:
        raise tape.CannotRecord("a choice of several tokens")

    def otherwise() -> None:
        order[...] = np.array(argpartition(a, kth))

    assert tape.current is not None
    tape.current.native(steps.choose, [a, order, order.size, kth % order.size], [a], [order], otherwise)


def topk(a: Any, k: int, axis: int = -1) -> Any:
    """The k largest values along an axis; equal ones are equal, so ties don't matter."""
    return tape.whole(_topk, a, k, axis)


def _topk(a: Any, k: int, axis: int) -> Any:
    return np.partition(a, a.shape[axis] - k, axis).take(np.arange(a.shape[axis] - k, a.shape[axis]), axis)


def _mlx(x: np.ndarray) -> mx.array:
    return mx.array(np.ascontiguousarray(x))
