"""Where the bytes of a lazy array lie, also after mlx-lm's sanitize has renamed, stacked, split or reinterpreted it.

mlx-lm turns a published checkpoint's tensors into its own layout by a few operations on lazy arrays. While it does, the
ones that only choose bytes are followed here: what they give is still on disk as it is, row by row. Every other
operation (a transposition, a dequantisation) makes an array whose bytes exist nowhere yet.
"""

import threading
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from math import frexp, prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from engine.checkpoint import ITEM_BYTES, Extent

MLX_DTYPE = {
    "BOOL": mx.bool_, "U8": mx.uint8, "I8": mx.int8, "U16": mx.uint16, "I16": mx.int16, "U32": mx.uint32,
    "I32": mx.int32, "U64": mx.uint64, "I64": mx.int64, "F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32,
    # MLX has no 8-bit floats: their bits are read as they are.
    "F8_E4M3": mx.uint8, "F8_E8M0": mx.uint8,
}  # fmt: skip
SPELLED = {mx_dtype: name for name, mx_dtype in reversed(MLX_DTYPE.items())}


@dataclass(frozen=True, slots=True)
class Rows:
    """An array whose rows along the first axis lie apart, each in one piece; a few bytes a row, whatever their number.

    Like an Extent it has a name, a dtype, a shape and `rows`.
    """

    name_of: Callable[[int], str]
    """The name of the tensor that a row is of."""
    files: tuple[Path, ...]
    file_of: np.ndarray
    offsets: np.ndarray
    dtype: str
    row_shape: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.offsets), *self.row_shape)

    @property
    def row_bytes(self) -> int:
        return prod(self.row_shape) * ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        return len(self.offsets) * self.row_bytes

    def rows(self, row: int) -> Extent:
        """The bytes of `self[row]` along the first axis."""
        file = self.files[self.file_of[row]]
        return Extent(self.name_of(row), file, int(self.offsets[row]), self.row_bytes, self.dtype, self.row_shape)


@dataclass(frozen=True, slots=True)
class Scaled:
    """Numbers that lie at `of`, to be multiplied by `factor` after reading; exact, see `_times`."""

    of: Extent | Rows
    factor: float

    @property
    def files(self) -> tuple[Path, ...]:
        return self.of.files

    @property
    def dtype(self) -> str:
        return self.of.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of.shape

    @property
    def nbytes(self) -> int:
        return self.of.nbytes

    def rows(self, row: int) -> Extent:
        """The bytes of a row before they are multiplied."""
        return self.of.rows(row)


InPlace = Extent | Rows
Origin = InPlace | Scaled


class Provenance:
    """The origin of each lazy array that is still on disk as it is."""

    def __init__(self) -> None:
        # The arrays are kept here and in _stacks, so that no id is used twice.
        self._known: dict[int, tuple[mx.array, Origin]] = {}
        self._parts: dict[int, list[mx.array]] = {}
        self._stacks: list[mx.array] = []

    def add(self, array: mx.array, origin: Origin) -> None:
        """`array` is what lies at `origin`."""
        self._known[id(array)] = (array, origin)

    def of(self, array: Any) -> Origin | None:
        """Where `array` lies; None when its bytes are nowhere on disk."""
        known = self._known.get(id(array))
        return known[1] if known else None

    def parts_of(self, array: mx.array) -> list[mx.array] | None:
        """What `array` was stacked from, wherever that lies; None for one that was not stacked."""
        return self._parts.get(id(array))

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow the operations on known arrays in this block."""
        with _one_at_a_time:
            watched: list[tuple[Any, str, Any]] = []
            try:
                for owner, name, rule in _RULES:
                    original = getattr(owner, name)
                    watched.append((owner, name, original))
                    setattr(owner, name, self._watching(original, rule))
                yield
            finally:
                for owner, name, original in watched:
                    setattr(owner, name, original)

    def _watching(self, original: Callable, rule: Callable) -> Callable:
        def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(first, *args, **kwargs)
            origins = self._origins(first)
            if origins is not None:
                if rule in (_stack, _same) or not _any_scaled(origins):
                    self._record(result, rule(origins, *args, **kwargs))
            elif rule is _stack and not args and not kwargs:
                self._parts[id(result)] = list(first)
                self._stacks.append(result)
            return result

        return call

    def _origins(self, first: Any) -> Any:
        """The origin of an array, or of each in a list of arrays; None when one is unknown."""
        if isinstance(first, list | tuple):
            found = [self.of(array) for array in first]
            return found if found and None not in found else None
        return self.of(first)

    def _record(self, result: Any, origin: Origin | list[Origin | None] | None) -> None:
        several = isinstance(origin, list)
        for array, one in zip(result if several else [result], origin if several else [origin], strict=True):
            # The array itself says what was made; an origin that does not fit it was followed wrongly.
            if one is not None and array.shape == one.shape and array.dtype == MLX_DTYPE[one.dtype]:
                self.add(array, one)


_one_at_a_time = threading.Lock()  # what is watched belongs to the whole process


def _any_scaled(origins: Origin | list[Origin]) -> bool:
    return any(isinstance(one, Scaled) for one in (origins if isinstance(origins, list) else [origins]))


def _apart(origin: InPlace) -> Rows:
    """Any array of two axes or more as rows."""
    if isinstance(origin, Rows):
        return origin
    step = origin.nbytes // max(origin.shape[0], 1)
    offsets = origin.offset + step * np.arange(origin.shape[0], dtype=np.int64)
    file_of = np.zeros(origin.shape[0], np.uint16)
    return Rows(lambda _: origin.name, (origin.file,), file_of, offsets, origin.dtype, origin.shape[1:])


def _view(origin: InPlace, dtype: mx.Dtype) -> InPlace | None:
    """The same bytes, read as another type."""
    name, last = SPELLED[dtype], (origin.shape[-1:] or (1,))[0]
    width = last * ITEM_BYTES[origin.dtype]
    if width % ITEM_BYTES[name]:
        return None
    last = width // ITEM_BYTES[name]
    if isinstance(origin, Extent):
        return replace(origin, dtype=name, shape=(*origin.shape[:-1], last))
    return replace(origin, dtype=name, row_shape=(*origin.row_shape[:-1], last)) if origin.row_shape else None


def _astype(origin: InPlace, dtype: mx.Dtype, *_: Any, **__: Any) -> InPlace | None:
    return origin if MLX_DTYPE[origin.dtype] == dtype else None


def _times(origin: InPlace, factor: Any) -> Origin | None:
    """By a number: as MLX rounds it in float32, or by a power of two in 16 bits."""
    if type(factor) not in (int, float) or not factor:
        return None
    exact = origin.dtype == "F32" or (origin.dtype in ("BF16", "F16") and abs(frexp(factor)[0]) == 0.5)
    return Scaled(origin, float(factor)) if exact else None


def _same(origin: Origin, *_: Any, **__: Any) -> Origin:
    return origin


def _reshape(origin: InPlace, *shape: Any, **_: Any) -> InPlace | None:
    wanted = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], list | tuple) else list(shape)
    if -1 in wanted:
        others = -prod(wanted)
        wanted[wanted.index(-1)] = prod(origin.shape) // others if others else 0
    if isinstance(origin, Extent):
        return replace(origin, shape=tuple(wanted))
    return replace(origin, row_shape=tuple(wanted[1:])) if wanted[0] == origin.shape[0] else None


def _flatten(origin: InPlace, start_axis: int = 0, end_axis: int = -1, **_: Any) -> InPlace | None:
    axes = len(origin.shape)
    start, end = start_axis % axes, end_axis % axes
    return _reshape(origin, *origin.shape[:start], prod(origin.shape[start : end + 1]), *origin.shape[end + 1 :])


def _cut(origin: InPlace, axis: int, lo: int, hi: int) -> InPlace | None:
    """origin[lo:hi] along its first or second axis."""
    if axis == 0:
        if isinstance(origin, Rows):
            return replace(
                origin,
                name_of=lambda row: origin.name_of(lo + row),
                file_of=origin.file_of[lo:hi],
                offsets=origin.offsets[lo:hi],
            )
        step = origin.nbytes // origin.shape[0]
        return replace(
            origin, offset=origin.offset + lo * step, nbytes=(hi - lo) * step, shape=(hi - lo, *origin.shape[1:])
        )
    rows = _apart(origin)
    if axis != 1 or not rows.row_shape or not rows.row_shape[0]:
        return None
    step = rows.row_bytes // rows.row_shape[0]
    return replace(rows, offsets=rows.offsets + lo * step, row_shape=(hi - lo, *rows.row_shape[1:]))


def _take(origin: InPlace, key: Any) -> InPlace | None:
    """Slices of the first two axes, one row, or one column of numbers."""
    if isinstance(key, int) and origin.shape:
        return origin.rows(key % origin.shape[0])
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(origin.shape) - len(keys) + 1)
    if len(origin.shape) == 2 and len(keys) == 2 and keys[0] == slice(None) and type(keys[1]) is int:
        column = keys[1] % origin.shape[1]
        cut = _cut(origin, 1, column, column + 1)
        return replace(cut, row_shape=()) if isinstance(cut, Rows) else None
    out: InPlace | None = origin
    for axis, one in enumerate(keys):
        if not isinstance(one, slice) or out is None:
            return None
        lo, hi, step = one.indices(origin.shape[axis])
        if step != 1:
            return None
        if (lo, hi) != (0, origin.shape[axis]):
            out = _cut(out, axis, lo, max(hi, lo))
    return out


def _split(origin: InPlace, where: int | Sequence[int], axis: int = 0, **_: Any) -> list[InPlace | None]:
    axis %= len(origin.shape)
    size = origin.shape[axis]
    bounds = [size * i // where for i in range(1, where)] if isinstance(where, int) else list(where)
    return [_cut(origin, axis, lo, hi) for lo, hi in zip([0, *bounds], [*bounds, size], strict=True)]


def _stack(origins: list[Origin], axis: int = 0, **_: Any) -> Origin | None:
    """One array of many: each becomes a row, where it lies in one piece."""
    first = origins[0]
    if isinstance(first, Scaled):
        if not all(isinstance(one, Scaled) and one.factor == first.factor for one in origins):
            return None
        stacked = _stack([one.of for one in origins if isinstance(one, Scaled)], axis)
        return Scaled(stacked, first.factor) if isinstance(stacked, Rows) else None
    if axis != 0 or not all(
        isinstance(one, Extent) and one.dtype == first.dtype and one.shape == first.shape for one in origins
    ):
        return None
    return _joined([one for one in origins if isinstance(one, Extent)], first.shape)


def _joined(extents: list[Extent], row_shape: tuple[int, ...]) -> Rows:
    files = tuple(dict.fromkeys(one.file for one in extents))
    number = {file: i for i, file in enumerate(files)}
    return Rows(
        _naming([one.name for one in extents]),
        files,
        np.array([number[one.file] for one in extents], np.uint16),
        np.array([one.offset for one in extents], np.int64),
        extents[0].dtype,
        row_shape,
    )


def _naming(names: list[str]) -> Callable[[int], str]:
    """The names by their numbers, in few bytes where they are like experts.7.weight."""
    for at, part in enumerate(first := names[0].split(".")):
        if part == "0":
            before, after = "".join(f"{p}." for p in first[:at]), "".join(f".{p}" for p in first[at + 1 :])
            if all(name == f"{before}{row}{after}" for row, name in enumerate(names)):
                return lambda row: f"{before}{row}{after}"
    return names.__getitem__


def _concatenate(origins: list[InPlace], axis: int = 0, **_: Any) -> InPlace | None:
    """Rows after rows, as of a tensor that was cut in several."""
    first = origins[0]
    if axis != 0 or not first.shape:
        return None
    if any(one.dtype != first.dtype or one.shape[1:] != first.shape[1:] for one in origins):
        return None
    parts = [_apart(one) for one in origins]
    starts = [0, *accumulate(part.shape[0] for part in parts[:-1])]
    files = tuple(dict.fromkeys(file for part in parts for file in part.files))
    file_of = [np.array([files.index(file) for file in part.files], np.uint16)[part.file_of] for part in parts]
    return replace(
        parts[0],
        name_of=lambda row: parts[bisect(starts, row) - 1].name_of(row - starts[bisect(starts, row) - 1]),
        files=files,
        file_of=np.concatenate(file_of),
        offsets=np.concatenate([part.offsets for part in parts]),
    )


_RULES: list[tuple[Any, str, Callable]] = [
    (mx, "stack", _stack),
    (mx, "concatenate", _concatenate),
    (mx, "split", _split),
    (mx, "contiguous", _same),
    (mx, "stop_gradient", _same),
    (mx, "view", _view),
    (mx, "reshape", _reshape),
    (mx, "flatten", _flatten),
    (mx.array, "split", _split),
    (mx.array, "view", _view),
    (mx.array, "astype", _astype),
    (mx.array, "reshape", _reshape),
    (mx.array, "flatten", _flatten),
    (mx.array, "__getitem__", _take),
    (mx.array, "__mul__", _times),
    (mx.array, "__rmul__", _times),
]
