"""How the host chooses experts: with NumPy where the choice is clear, with MLX's own functions at near-ties.

An exponential that differs from MLX's in its last bits must not choose another expert, and of equal ones the same must
be taken as MLX takes. So an array remembers how MLX would have made it, and is made again that way when it matters.
"""

from typing import Any

import mlx.core as mx
import numpy as np

# Scores that are nearer to each other, relative to the larger, are left to MLX. Its exponential and NumPy's differ by
# some 1e-7.
NEAR = 1e-5


def softmax(x: Any, axis: Any = None, precise: bool = False, **_: Any) -> Any:
    """mx.softmax of a HostArray; over the last axis [..., E], in float32, the host's own."""
    if axis not in (-1, x.ndim - 1, [-1]) or x.dtype != np.float32:
        return mx.softmax(_mlx(x), axis=axis, precise=precise)
    out = np.exp(x - x.max(-1, keepdims=True))
    out /= out.sum(-1, keepdims=True)
    out.on_mlx = lambda: mx.softmax(_mlx(x), axis=-1, precise=precise)
    return out


def argpartition(a: Any, kth: int, axis: int = -1) -> Any:
    """mx.argpartition of a HostArray: along the last axis [..., E] the host's own, wherever `kth` stands clear."""
    if axis in (-1, a.ndim - 1):
        order = np.argsort(a, axis=-1)
        place = kth % a.shape[-1]
        around = np.take_along_axis(a, order[..., max(place - 1, 0) : place + 2], -1)
        if (np.diff(around, axis=-1) > NEAR * np.abs(around).max(-1, keepdims=True)).all():
            return order
    return mx.argpartition(a.on_mlx() if a.on_mlx else _mlx(a), kth=kth, axis=axis)


def _mlx(x: np.ndarray) -> mx.array:
    return mx.array(np.ascontiguousarray(x))
