"""A NumPy array that mlx-lm's model code takes for an MLX array, and the `mx` that code sees meanwhile.

One token through a model is some fifty tiny operations a layer. Each costs MLX's CPU backend 20 to 120 microseconds
and NumPy one or two; for a chunk of prompt, MLX multiplies with one slow thread. So mlx-lm's own Python code is run as
it stands, on these arrays: functions known here are computed by NumPy, all others by MLX.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np

from engine.kernels import attention, routing, steps, tape
from engine.kernels.threads import each

_DTYPES = {
    mx.float32: np.float32, mx.float16: np.float32, mx.bfloat16: np.float32, mx.int32: np.int32, mx.uint32: np.uint32,
    mx.int64: np.int64, mx.bool_: np.bool_,
}  # fmt: skip


class HostArray(np.ndarray):
    """Differs from ndarray where MLX's methods differ: dtypes, flatten's range of axes.

    `on_mlx`, where it is set, makes the same array with MLX: see routing.
    """

    on_mlx: "Callable[[], mx.array] | None" = None

    def __neg__(self) -> "HostArray":
        out = super().__neg__()
        if self.on_mlx is not None:
            on_mlx = self.on_mlx
            out.on_mlx = lambda: -on_mlx()
        return out

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = np.dtype(_DTYPES[dtype] if isinstance(dtype, mx.Dtype) else dtype)
        return self if wanted == self.dtype else super().astype(wanted)

    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> "HostArray":
        return flatten(self, start_axis, end_axis)


def host(value: Any) -> HostArray:
    """Any array as a HostArray; an evaluated MLX array is viewed, not copied. 16-bit floats are widened."""
    if type(value) is HostArray:
        return value
    if isinstance(value, mx.array) and value.dtype in (mx.bfloat16, mx.float16):
        value = value.astype(mx.float32)
    return np.asarray(value).view(HostArray)


def to_mlx(value: Any) -> Any:
    """NumPy arrays become MLX arrays, anything else stays."""
    return mx.array(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def flatten(x: np.ndarray, start_axis: int = 0, end_axis: int = -1) -> Any:
    end = end_axis % x.ndim
    start = start_axis % x.ndim
    return x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :])


def _put_along_axis(x: HostArray, indices: Any, values: Any, axis: int) -> HostArray:
    return tape.whole(_put, x, indices, values, axis)


def _put(x: HostArray, indices: Any, values: Any, axis: int) -> HostArray:
    out = x.copy()
    np.put_along_axis(out, host(indices), np.asarray(values), axis)
    return out


def _take_along_axis(x: Any, indices: Any, axis: int | None = None) -> HostArray:
    x, indices = host(x), host(indices)
    if axis in (-1, x.ndim - 1) and x.size == x.shape[-1] and x.ndim == indices.ndim:  # one row, as of one token
        taken = x.reshape(-1).take(indices)
        if tape.current is not None:
            _note_taken(x, indices, taken)
        return taken.view(HostArray)
    return host(np.take_along_axis(x, indices, axis))


def _note_taken(x: np.ndarray, indices: np.ndarray, taken: np.ndarray) -> None:
    if (x.dtype, indices.dtype) != (np.float32, np.int64):
        raise tape.CannotRecord("values taken of another kind")
    assert tape.current is not None
    arguments = [x, indices, taken, indices.size, x.size]
    tape.current.native(steps.take, arguments, [x, indices], [taken])


def _split(x: HostArray, where: Any, axis: int = 0) -> list[Any]:
    return np.split(x, where, axis)


def rms_norm_of(x: HostArray, weight: np.ndarray, eps: float) -> HostArray:
    """x float32 [..., D] by its RMS over the last axis, times weight [D]."""
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    out = np.empty_like(rows)
    attention.rms_norm(rows, weight, eps, out)
    attention.note_norm(rows, weight, eps, out)
    return out.reshape(x.shape).view(HostArray)


def _rms_norm(x: HostArray, weight: Any, eps: float, stream: Any = None) -> HostArray:
    return rms_norm_of(x, np.ones(x.shape[-1], np.float32) if weight is None else host(weight), eps)


_known_angles: dict[tuple, tuple[np.ndarray, np.ndarray]] = {}


def _rope(
    x: HostArray, dims: int, *, traditional: bool, base: float | None, scale: float, offset: Any, freqs: Any = None
) -> HostArray:
    """x [1, H, L, D], whose first token stands at `offset`."""
    tokens = x.shape[-2]
    kind = (dims, base, id(freqs), scale)

    def angles_from(first: int) -> tuple[np.ndarray, np.ndarray]:
        return _angles_at(_periods(dims, base, freqs), scale, first, tokens)

    if tape.current is not None:
        if tokens != 1:
            raise tape.CannotRecord("several tokens")
        cosines, sines = tape.current.moving(kind, offset, angles_from)
    else:
        cosines, sines = _angles((*kind, int(offset), tokens), lambda: angles_from(int(offset)))
    heads = np.ascontiguousarray(x).reshape(-1, tokens, x.shape[-1])
    out = np.empty_like(heads)
    attention.rotate(heads, cosines, sines, traditional, out)
    attention.note_rotation(heads, cosines, sines, traditional, out)
    return out.reshape(x.shape).view(HostArray)


def _angles(key: tuple, compute: Callable[[], tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """All layers ask for the same angles; the next token asks for others."""
    if key not in _known_angles:
        if len(_known_angles) > 16:
            _known_angles.clear()
        _known_angles[key] = compute()
    return _known_angles[key]


def _periods(dims: int, base: float | None, freqs: Any) -> np.ndarray:
    if freqs is not None:
        return np.asarray(host(freqs), np.float32)
    assert base is not None
    return np.float32(base) ** (np.arange(0, dims, 2, dtype=np.float32) / np.float32(dims))


def _angles_at(periods: np.ndarray, scale: float, first: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines [tokens, dims / 2] of the tokens from position `first` on."""
    positions = np.arange(first, first + tokens, dtype=np.float32) * np.float32(scale)
    angle = positions[:, None] / periods
    return np.cos(angle), np.sin(angle)


def _attention(
    q: HostArray, k: Any, v: Any, *, scale: float, mask: Any = None, sinks: Any = None, **_: Any
) -> HostArray:
    """q [1, H, L, D], k and v [1, K, T, D]: the last L of T tokens look at those before them."""
    if q.shape[0] != 1 or sinks is not None or not (mask is None or isinstance(mask, str)):
        raise TypeError("attention with a mask of its own or sinks has no host form")
    keys, values = host(k)[0], host(v)[0]
    heads, tokens, width = q.shape[1:]
    if tokens == 1:
        of_one = np.ascontiguousarray(q).reshape(heads, width)
        out = attention.attention_of_one(of_one, _by_head(keys), _by_head(values), scale)
        return out.reshape(1, heads, 1, -1).view(HostArray)
    if mask is None:
        raise TypeError("attention of several tokens that see each other has no host form")
    return _causal_attention(q[0], keys, values, scale)


def _by_head(x: np.ndarray) -> np.ndarray:
    """x [K, T, D], copied unless each [T, D] is contiguous."""
    return x if x.strides[1:] == (x.shape[2] * x.itemsize, x.itemsize) else np.ascontiguousarray(x)


QUERY_BLOCK = 128


def _causal_attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> HostArray:
    """q [H, L, D], keys [K, T, D], values [K, T, V] to [1, H, L, V], by BLAS: one block of queries a thread."""
    heads, tokens, width = q.shape
    kinds, total = keys.shape[:2]
    share, before = heads // kinds, total - tokens
    out = np.empty((kinds, share, tokens, values.shape[-1]), np.float32)
    grouped = q.reshape(kinds, share, tokens, width)
    blocks = [(kind, start) for kind in range(kinds) for start in range(0, tokens, QUERY_BLOCK)]

    def one_block(index: int) -> None:
        kind, start = blocks[index]
        stop = min(start + QUERY_BLOCK, tokens)
        seen = before + stop
        some = np.ascontiguousarray(grouped[kind, :, start:stop])
        scores = (some.reshape(-1, width) @ keys[kind, :seen].T).reshape(share, stop - start, seen)
        attention.causal_softmax(scores, scale, before + start)
        result = scores.reshape(-1, seen) @ values[kind, :seen]
        out[kind, :, start:stop] = result.reshape(share, stop - start, -1)

    each(one_block, range(len(blocks)))
    return out.reshape(1, heads, tokens, -1).view(HostArray)


_FUNCTIONS: dict[str, Callable] = {
    # What chooses experts; sorts are not here, so they are MLX's.
    "softmax": routing.softmax,
    "sigmoid": routing.sigmoid,
    "argpartition": routing.argpartition,
    "topk": routing.topk,
    "take_along_axis": _take_along_axis,
    "put_along_axis": _put_along_axis,
    "expand_dims": lambda x, axis: np.expand_dims(x, axis),
    "squeeze": lambda x, axis=None: np.squeeze(x, axis),
    "split": _split,
    "stop_gradient": lambda x: x,
    "contiguous": lambda x, *_: x,
    "flatten": flatten,
    "unflatten": lambda x, axis, shape: x.reshape(*x.shape[: axis % x.ndim], *shape, *x.shape[axis % x.ndim + 1 :]),
    "square": lambda x: x * x,
    "sum": lambda x, axis=None, keepdims=False: np.add.reduce(_plain(x), axis=_axes(axis), keepdims=keepdims),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "concatenate": lambda arrays, axis=0: np.concatenate([host(a) for a in arrays], axis),
    "stack": lambda arrays, axis=0: np.stack([host(a) for a in arrays], axis),
    "where": lambda c, a, b: np.where(*(host(x) if isinstance(x, mx.array) else x for x in (c, a, b))),
    **{
        name: (lambda function: lambda *args, **kw: function(*(_plain(a) for a in args), **kw))(getattr(np, name))
        for name in (
            "reshape", "transpose", "swapaxes", "exp", "log", "log1p", "sqrt", "tanh", "maximum", "minimum", "clip",
            "mean", "max", "abs", "multiply", "add", "subtract", "divide", "repeat",
        )
    },
}  # fmt: skip

_FAST: dict[str, Callable] = {
    "rms_norm": _rms_norm,
    "rope": _rope,
    "scaled_dot_product_attention": _attention,
}


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _plain(value: Any) -> Any:
    return host(value) if isinstance(value, mx.array) else value


def _holds_host(args: tuple, kwargs: dict) -> bool:
    return (
        any(type(a) is HostArray for a in args)
        or any(type(a) is HostArray for a in kwargs.values())
        or any(type(a) in (list, tuple) and any(type(b) is HostArray for b in a) for a in args)
    )


def host_aware(original: Callable, on_host: Callable | None) -> Callable:
    """`original` for MLX arrays; for HostArrays `on_host`, or MLX where that is missing."""
    on_mlx = with_mlx_arrays(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not _holds_host(args, kwargs):
            return original(*args, **kwargs)
        if on_host is None:
            return on_mlx(*args, **kwargs)
        out = on_host(*args, **kwargs)
        if type(out) is HostArray or not isinstance(out, np.ndarray | np.generic):
            return out
        return out.view(HostArray)

    return call


def with_mlx_arrays(original: Callable) -> Callable:
    """`original` called with MLX arrays in the place of HostArrays.

    What MLX makes stays lazy: it comes back to the host where it meets a HostArray or a matrix, so a chain of such
    functions is evaluated once.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if tape.current is not None and _holds_host(args, kwargs):
            raise tape.CannotRecord("a function of MLX's")
        args = tuple([to_mlx(b) for b in a] if type(a) is list else to_mlx(a) for a in args)
        return original(*args, **{name: to_mlx(a) for name, a in kwargs.items()})

    return call


class _Namespace(SimpleNamespace):
    """Looks like a module of MLX; its functions accept HostArrays too."""

    def __init__(self, module: Any, functions: dict[str, Callable]):
        super().__init__()
        self._module, self._functions = module, functions

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if name in self._functions or type(value).__name__ == "nb_func":
            value = host_aware(value, self._functions.get(name))
        setattr(self, name, value)
        return value


host_mx = _Namespace(mx, _FUNCTIONS)
"""Stands for `mlx.core` in a model's module while a token passes through it on the host."""

host_mx.fast = _Namespace(mx.fast, _FAST)
