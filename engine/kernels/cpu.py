"""A model's quantised linears and experts on the CPU: Numba for one token, NumPy's BLAS for many.

MLX's CPU backend multiplies quantised matrices with one thread at some 0.4 G weights/s. The loops of `quantised` reach
10 a core for a single token; a chunk of prompt dequantises each matrix once and multiplies with BLAS.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.models.switch_layers import SwiGLU, SwitchGLU

from engine.kernels import quantised

# Up to so many rows, one pass of matvec a row is faster than dequantising the matrix for BLAS.
FEW_ROWS = 3
# Below so many weights a second thread costs more than it gives: waking it takes some 30 microseconds.
WORTH_A_THREAD = 1_000_000
_BITS = (4, 8)

_threads = max(1, min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 16))
_pool = ThreadPoolExecutor(max(1, _threads - 1), thread_name_prefix="kernel")


def split(work: Callable[[int, int], None], count: int, weights: int) -> None:
    """Run `work(lo, hi)` over range(count), on all threads where `weights` makes it worth while."""
    parts = min(_threads, count) if weights >= WORTH_A_THREAD else 1
    if parts == 1:
        work(0, count)
        return
    # Even bounds: the kernels take rows in pairs.
    bounds = [count * part // parts & ~1 for part in range(parts)] + [count]
    others = [_pool.submit(work, bounds[part], bounds[part + 1]) for part in range(1, parts)]
    work(bounds[0], bounds[1])
    for other in others:
        other.result()


@dataclass(frozen=True)
class Matrix:
    """Views of one affine quantised matrix, or of one a slot: w [(S,) O, W], s and b [(S,) O, G]."""

    w: np.ndarray
    s: np.ndarray
    b: np.ndarray
    bits: int

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.w, self.s, self.b

    def __getitem__(self, slot: int) -> "Matrix":
        return Matrix(self.w[slot], self.s[slot], self.b[slot], self.bits)

    def times(self, x: np.ndarray) -> np.ndarray:
        """x [n, I] times the transposed matrix [O, I]: [n, O]."""
        rows, weights = self.w.shape[0], self.w.size * 32 // self.bits
        if len(x) > FEW_ROWS:
            return quantised.planes_of(x, self.bits) @ self.dense().T
        y = np.empty((len(x), rows), np.float32)
        for one, out in zip(x, y, strict=True):
            split(
                lambda lo, hi, one=one, out=out: quantised.matvec(one, *self.arrays, self.bits, out, lo, hi),
                rows,
                weights,
            )
        return y

    def dense(self) -> np.ndarray:
        """The matrix in float32 [O, I], its columns in the order of `planes_of`."""
        rows, words = self.w.shape
        out = np.empty((rows, 32 // self.bits, words), np.float32)
        split(lambda lo, hi: quantised.dequantise(*self.arrays, self.bits, out, lo, hi), rows, out.size)
        return out.reshape(rows, -1)


def matrix_of(module: nn.Module) -> Matrix | None:
    """Views of a quantised module's evaluated weights; None where the loops don't know the format."""
    if getattr(module, "mode", None) != "affine" or module.bits not in _BITS or module.group_size * module.bits % 32:
        return None
    if "biases" not in module or module.scales.dtype != mx.float32:
        return None
    return Matrix(*(np.array(module[name], copy=False) for name in ("weight", "scales", "biases")), module.bits)


class CpuLinear(nn.Module):
    """Stands for a nn.QuantizedLinear whose format `quantised` knows."""

    def __init__(self, original: nn.QuantizedLinear, matrix: Matrix):
        super().__init__()
        self.original = original
        self._matrix = matrix

    def __call__(self, x: mx.array) -> mx.array:
        y = mx.array(self._matrix.times(rows_of(x))).reshape(*x.shape[:-1], -1)
        return y + self.original["bias"] if "bias" in self.original else y


class CpuEmbedding(nn.Module):
    """Stands for a nn.QuantizedEmbedding; as the output layer it is a matrix like any other."""

    def __init__(self, original: nn.QuantizedEmbedding, matrix: Matrix):
        super().__init__()
        self.original = original
        self._matrix = matrix

    def __call__(self, tokens: mx.array) -> mx.array:
        return self.original(tokens)

    def as_linear(self, x: mx.array) -> mx.array:
        return mx.array(self._matrix.times(rows_of(x))).reshape(*x.shape[:-1], -1)


class CpuExperts:
    """SwiGLU experts in slots: called with x [n, D] and slots [n, k], gives [n, k, D]."""

    def __init__(self, gate: Matrix, up: Matrix, down: Matrix):
        self.gate, self.up, self.down = gate, up, down

    def __call__(self, x: mx.array, slots: np.ndarray) -> mx.array:
        rows = rows_of(x)
        flat = slots.reshape(len(rows), -1)
        out = np.empty((*flat.shape, self.down.w.shape[1]), np.float32)
        if len(rows) <= FEW_ROWS:
            for one, chosen, to in zip(rows, flat, out, strict=True):
                self._one(one, chosen, to)
        else:
            self._many(rows, flat, out)
        return mx.array(out).reshape(*slots.shape, -1)

    def _one(self, x: np.ndarray, slots: np.ndarray, out: np.ndarray) -> None:
        bits = (self.gate.bits, self.up.bits, self.down.bits)
        parts = self.gate.arrays, self.up.arrays, self.down.arrays
        weights = len(slots) * 3 * self.gate.w.shape[1] * len(x)
        split(lambda lo, hi: quantised.swiglu_experts(x, slots, *parts, bits, out, lo, hi), len(slots), weights)

    def _many(self, rows: np.ndarray, slots: np.ndarray, out: np.ndarray) -> None:
        """Each expert once: its tokens gathered, its matrices dequantised, three products, results put in place."""
        for slot in np.unique(slots):
            token, k = np.nonzero(slots == slot)
            x = rows[token]
            gate, up = self.gate[slot].times(x), self.up[slot].times(x)
            out[token, k] = self.down[slot].times(gate / (1 + np.exp(-gate)) * up)


def rows_of(x: mx.array) -> np.ndarray:
    """An activation [..., I] as contiguous rows [n, I] in NumPy, after evaluating it."""
    mx.eval(x)
    return np.ascontiguousarray(np.array(x, copy=False)).reshape(-1, x.shape[-1])


def experts_of(module: nn.Module) -> CpuExperts | None:
    """The kernel for a module of experts behind slots, where there is one for its form and format."""
    if type(module) is not SwitchGLU or type(module.activation) is not SwiGLU:
        return None
    projections = [module.gate_proj, module.up_proj, module.down_proj]
    matrices = [matrix_of(p) for p in projections if "bias" not in p]
    return CpuExperts(*matrices) if len(matrices) == 3 and all(matrices) else None


def replace_linears(model: nn.Module) -> None:
    """Put CpuLinear and CpuEmbedding wherever their format allows, in an evaluated model."""
    replaced = []
    for path, module in model.named_modules():
        kind = {nn.QuantizedLinear: CpuLinear, nn.QuantizedEmbedding: CpuEmbedding}.get(type(module))
        if kind and (matrix := matrix_of(module)):
            replaced.append((path, kind(module, matrix)))
    model.update_modules(tree_unflatten(replaced))
