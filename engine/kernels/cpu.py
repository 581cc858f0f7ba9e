"""A model's quantised linears and experts on the CPU: row by row for few tokens, by BLAS for many.

MLX's CPU backend multiplies quantised matrices with one thread at some 0.4 G weights/s. The loops of `quantised` reach
10 a core for a single token; a chunk of prompt dequantises each matrix once and multiplies with BLAS.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.models.switch_layers import SwiGLU, SwitchGLU

from engine.kernels import quantised, tape
from engine.kernels.host_array import HostArray, host, rms_norm_of
from engine.kernels.host_pass import HostPass
from engine.kernels.products import Experts, Products
from engine.kernels.siblings import Siblings, Watcher
from engine.kernels.threads import each, keep_blas_to_one_thread, split
from engine.stand_in import StandIn

# Up to so many rows, multiplying row by row is faster than dequantising the matrix for BLAS.
FEW_ROWS = 16
# The same for the tokens of one expert, whose matrices may be still on their way from memory.
FEW_TOKENS = 32
# Rows dequantised at a time: half a MB at 1,024 columns.
BLOCK_ROWS = 128
_BITS = (4, 8)
# Where so many rows of an embedding have MLX's bits, all have.
_SAMPLES = 64


@dataclass(frozen=True, eq=False)
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

    @property
    def weights(self) -> int:
        return self.w.size * 32 // self.bits

    @property
    def shape(self) -> tuple[int, int]:
        return self.w.shape[-2], self.w.shape[-1] * 32 // self.bits

    def times(self, x: np.ndarray) -> np.ndarray:
        """x [n, I] times the transposed matrix [O, I], on all threads where that is worth while: [n, O]."""
        if len(x) <= FEW_ROWS:
            return self._alone.times(x)[0]
        out = np.empty((len(x), self.w.shape[0]), np.float32)
        planes = quantised.planes_of(x, self.bits)
        split(lambda lo, hi: self._dense(planes, out, lo, hi), self.w.shape[0], self.weights * len(x) // FEW_ROWS)
        return out

    def row(self, number: int) -> np.ndarray:
        """One row of a matrix as float32 [I]."""
        shifts = np.arange(0, 32, self.bits, dtype=np.uint32)
        values = (self.w[number][:, None] >> shifts) & np.uint32((1 << self.bits) - 1)
        by_group = values.reshape(self.s.shape[1], -1).astype(np.float32)
        return (by_group * self.s[number][:, None] + self.b[number][:, None]).reshape(-1)

    @cached_property
    def _alone(self) -> Products:
        return Products([self])

    def times_here(self, x: np.ndarray) -> np.ndarray:
        """x [n, I] times the transposed matrix by BLAS, on the calling thread alone: for many rows."""
        out = np.empty((len(x), self.w.shape[0]), np.float32)
        self._dense(quantised.planes_of(x, self.bits), out, 0, self.w.shape[0])
        return out

    def _dense(self, planes: np.ndarray, out: np.ndarray, lo: int, hi: int) -> None:
        """out[:, lo:hi], by BLAS from dequantised rows; a block of them at a time, so that it stays in the cache."""
        words = self.w.shape[1]
        block = np.empty((min(BLOCK_ROWS, hi - lo), 32 // self.bits, words), np.float32)
        for start in range(lo, hi, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, hi)
            some = block[: stop - start]
            quantised.dequantise(self.w[start:stop], self.s[start:stop], self.b[start:stop], self.bits, some)
            np.matmul(planes, some.reshape(stop - start, -1).T, out=out[:, start:stop])


@dataclass(frozen=True, eq=False)
class DenseMatrix:
    """A view of a float32 matrix w [O, I]."""

    w: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.w.shape[0], self.w.shape[1]

    def row(self, number: int) -> np.ndarray:
        """One row [I]."""
        return self.w[number]

    def times(self, x: np.ndarray) -> np.ndarray:
        """x [n, I] times the transposed matrix: [n, O]."""
        return tape.whole(self._product, x)

    def _product(self, x: np.ndarray) -> np.ndarray:
        out = np.empty((len(x), len(self.w)), np.float32)
        split(lambda lo, hi: self.part(x, out, lo, hi), len(self.w), self.w.size * len(x))
        return out

    def part(self, x: np.ndarray, out: np.ndarray, lo: int, hi: int) -> None:
        """out[:, lo:hi] of x [n, I] times the transposed matrix, on the calling thread."""
        np.matmul(x, self.w[lo:hi].T, out=out[:, lo:hi])


def matrix_of(module: Any) -> Matrix | DenseMatrix | None:
    """Views of a module's evaluated weights; None where the loops don't know the format."""
    if type(module) in (nn.Linear, nn.Embedding):
        return DenseMatrix(np.array(module.weight, copy=False)) if module.weight.dtype == mx.float32 else None
    if getattr(module, "mode", None) != "affine" or module.bits not in _BITS or module.group_size * module.bits % 32:
        return None
    if "biases" not in module or module.scales.dtype != mx.float32:
        return None
    w, s, b = (np.array(module[name], copy=False) for name in ("weight", "scales", "biases"))
    return Matrix(w, s, b, module.bits)


class CpuLinear(StandIn):
    """Stands for a nn.Linear or nn.QuantizedLinear whose format is known here."""

    def __init__(
        self,
        original: nn.Module,
        matrix: "Matrix | DenseMatrix",
        watcher: Watcher | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ):
        super().__init__(original)
        self.matrix = matrix
        self._watcher = watcher
        self._wanted = wanted
        self._bias = host(original["bias"]) if "bias" in original else None
        self._siblings: Siblings | None = None

    def join(self, siblings: Siblings) -> None:
        """From now on, this product is computed together with those that use the same activation."""
        self._siblings = siblings

    def __call__(self, x: mx.array | HostArray) -> mx.array | HostArray:
        if not self._wanted():
            return unwanted(x, self.matrix)
        if self._watcher is not None and self._watcher.watching:
            self._watcher.saw(self, x)
        rows = rows_of(x)
        if self._siblings is not None and len(rows) <= FEW_ROWS:
            y = self._siblings.times(self.matrix, x, rows)
        else:
            y = self.matrix.times(rows)
        if self._bias is not None:
            y = y.view(HostArray)  # a tape hears of these only
            y += self._bias
        return like(x, y.reshape(*x.shape[:-1], -1))


class CpuEmbedding(StandIn):
    """Stands for a nn.Embedding or nn.QuantizedEmbedding; as the output layer it is a matrix like any other.

    This is where a token enters the host: `host_pass` knows whether the pass that is going on runs there.
    """

    def __init__(self, original: nn.Module, matrix: "Matrix | DenseMatrix", host_pass: HostPass):
        super().__init__(original)
        self.matrix = matrix
        self._host_pass = host_pass

    def __call__(self, tokens: mx.array) -> mx.array | HostArray:
        rows = self.original(tokens)
        if not self._host_pass.on_host():
            return rows
        return host(rows) if tape.current is None else self._noted(tape.current, np.array(rows))

    def _noted(self, going: tape.Tape, row: np.ndarray) -> HostArray:
        if row.size != row.shape[-1]:
            raise tape.CannotRecord("several tokens")

        def mlxs(token: int) -> np.ndarray:
            return np.array(self.original(mx.array([token])))[0]

        some = range(0, self.matrix.shape[0], -(-self.matrix.shape[0] // _SAMPLES))
        of = self.matrix.row if all(np.array_equal(self.matrix.row(n), mlxs(n)) for n in some) else mlxs

        def fill(token: int, _: int) -> None:
            row[...] = of(token)

        going.at_start(fill, row)
        return row.view(HostArray)

    def as_linear(self, x: mx.array | HostArray) -> mx.array | HostArray:
        if not self._host_pass.wants_logits():
            return unwanted(x, self.matrix)
        return like(x, self.matrix.times(rows_of(x)).reshape(*x.shape[:-1], -1))


class CpuNorm(StandIn):
    """Stands for a nn.RMSNorm with float32 weights."""

    def __init__(self, original: nn.RMSNorm):
        super().__init__(original)
        self._weight, self._eps = host(original.weight), original.eps

    def __call__(self, x: mx.array | HostArray) -> mx.array | HostArray:
        return rms_norm_of(x, self._weight, self._eps) if type(x) is HostArray else self.original(x)


class CpuExperts:
    """SwiGLU experts in slots: called with x [n, D] and slots [n, k], gives [n, k, D]."""

    def __init__(self, gate: Matrix, up: Matrix, down: Matrix):
        self.gate, self.up, self.down = gate, up, down
        self._of_few = Experts(gate, up, down)

    def __call__(self, x: mx.array | HostArray, slots: np.ndarray) -> mx.array | HostArray:
        rows = rows_of(x)
        flat = np.ascontiguousarray(slots.reshape(len(rows), -1), np.int64)
        out = np.empty((*flat.shape, self.down.w.shape[1]), np.float32)
        if len(rows) <= FEW_TOKENS:
            self._of_few(rows, flat, out)
            return like(x, out.reshape(*slots.shape, -1))
        tokens = np.bincount(flat.reshape(-1))
        self._of_many(rows, flat, np.flatnonzero(tokens > FEW_TOKENS), out)
        pairs = np.flatnonzero(tokens[flat] <= FEW_TOKENS)
        if len(pairs):
            self._of_few(rows, flat, out, pairs)
        return like(x, out.reshape(*slots.shape, -1))

    def _of_many(self, rows: np.ndarray, slots: np.ndarray, experts: np.ndarray, out: np.ndarray) -> None:
        """Each of these experts on one thread: its tokens gathered, three products, results put in place."""

        def one_expert(slot: int) -> None:
            token, k = np.nonzero(slots == slot)
            x = rows[token]
            gate, up = self.gate[slot].times_here(x), self.up[slot].times_here(x)
            out[token, k] = self.down[slot].times_here(gate / (1 + np.exp(-gate)) * up)

        each(one_expert, experts.tolist())


def rows_of(x: mx.array | HostArray) -> np.ndarray:
    """An activation [..., I] as contiguous rows [n, I] in NumPy; an MLX array is evaluated."""
    if not isinstance(x, np.ndarray):
        mx.eval(x)
    return np.ascontiguousarray(np.asarray(x)).reshape(-1, x.shape[-1])


def like(x: mx.array | HostArray, y: np.ndarray) -> mx.array | HostArray:
    """y as the kind of array that x is."""
    return y.view(HostArray) if isinstance(x, np.ndarray) else mx.array(y)


def unwanted(x: mx.array | HostArray, matrix: "Matrix | DenseMatrix") -> HostArray:
    """What stands for a product that nobody will look at: the right shape, no memory."""
    return np.broadcast_to(np.float32(0), (*x.shape[:-1], len(matrix.w))).view(HostArray)


def experts_of(module: nn.Module) -> CpuExperts | None:
    """The kernel for a module of experts behind slots, where there is one for its form and format."""
    if type(module) is not SwitchGLU or type(module.activation) is not SwiGLU:
        return None
    projections = [module.gate_proj, module.up_proj, module.down_proj]
    matrices = [matrix_of(p) for p in projections if "bias" not in p]
    known = [matrix for matrix in matrices if isinstance(matrix, Matrix)]
    return CpuExperts(*known) if len(known) == 3 else None


def replace_linears(model: nn.Module, host_pass: HostPass) -> Watcher:
    """Put CpuLinear, CpuNorm and CpuEmbedding wherever the format allows, in an evaluated float32 model."""
    replaced, watcher = [], Watcher()
    for path, module in model.named_modules():
        matrix = matrix_of(module)
        if matrix is not None and type(module) in (nn.Linear, nn.QuantizedLinear):
            is_output = path.split(".")[-1] == "lm_head"
            wanted = {"wanted": host_pass.wants_logits} if is_output else {}
            replaced.append((path, CpuLinear(module, matrix, watcher, **wanted)))
        elif type(module) is nn.RMSNorm and module.weight.dtype == mx.float32:
            replaced.append((path, CpuNorm(module)))
        elif matrix is not None and type(module) in (nn.Embedding, nn.QuantizedEmbedding):
            replaced.append((path, CpuEmbedding(module, matrix, host_pass)))
    model.update_modules(tree_unflatten(replaced))
    return watcher


def take_over(model: nn.Module, forward: Callable) -> HostPass:
    """Give an evaluated model this machine's kernels; `forward` is its plain forward pass.

    The pass for single tokens is checked against MLX here, which also compiles what was not compiled before. Its first
    chunk shows which products share an activation, so the others are computed with those joined.
    """
    keep_blas_to_one_thread()
    host_pass = HostPass()
    watcher = replace_linears(model, host_pass)
    watcher.watching = True

    def join() -> None:
        if not watcher.watching:
            return
        watcher.watching = False
        for family in watcher.families():
            for matrices in _of_one_format(linear.matrix for linear in family):
                siblings = Siblings(matrices)
                for linear in family:
                    if linear.matrix in matrices:
                        linear.join(siblings)

    host_pass.check(model, forward, join)
    return host_pass


def _of_one_format(matrices: Iterable[Matrix | DenseMatrix]) -> list[list[Matrix]]:
    """Those whose activation is laid out in the same way, together, where there are several."""
    kinds: dict[tuple[int, int], list[Matrix]] = {}
    for matrix in matrices:
        if isinstance(matrix, Matrix):
            kinds.setdefault((matrix.bits, matrix.s.shape[-1]), []).append(matrix)
    return [kind for kind in kinds.values() if len(kind) > 1]
