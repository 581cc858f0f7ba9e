"""The products of a token with quantised matrices and with experts, each one job for the crew.

A job reaches the crew's threads as the address of int64 numbers: addresses of arrays and sizes. Every row of a result
is computed alone, so how a job is cut into pieces never changes a bit of it.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numba import cfunc, float32, njit, types
from numba.np.numpy_support import carray

from engine.kernels.atomics import pointer
from engine.kernels.crew import board, work
from engine.kernels.quantised import dot_rows, lay_out
from engine.kernels.threads import cores

_LOOP = {"nogil": True, "fastmath": True, "error_model": "numpy", "cache": True}
_CALLED = {"fastmath": True, "error_model": "numpy", "cache": True}
_piece = types.void(types.int64, types.int64)

# A piece of so many weights takes some ten microseconds, taking it a fraction of one.
PIECE = 150_000


class Quantised(Protocol):
    """An affine quantised matrix, or one a slot: w uint32 [(S,) O, W], s and b float32 [(S,) O, G]."""

    @property
    def w(self) -> np.ndarray: ...
    @property
    def s(self) -> np.ndarray: ...
    @property
    def b(self) -> np.ndarray: ...
    @property
    def bits(self) -> int: ...


# What a job says of each of its matrices.
_W, _S, _B, _ROWS, _WORDS, _GROUPS, _BITS, _FIELDS = range(8)


def _described(matrix: Quantised) -> list[int]:
    addresses = [array.ctypes.data for array in (matrix.w, matrix.s, matrix.b)]
    return [*addresses, *matrix.w.shape[-2:], matrix.s.shape[-1], matrix.bits]


@njit(**_LOOP)
def _floats(address, rows, columns):
    return carray(pointer(address), (rows, columns), np.float32)


@njit(**_LOOP)
def _lay_out(x, matrix, planes, sums):
    """Lay out the activation x [I] for a matrix: planes and sums are addresses."""
    groups, bits = matrix[_GROUPS], matrix[_BITS]
    lay_out(x, bits, len(x) // groups, _floats(planes, 32 // bits, matrix[_WORDS]), _floats(sums, 1, groups)[0])


@njit(**_LOOP)
def _times(matrix, slot, planes, sums, y, lo, hi):
    """y[lo:hi] = those rows of a matrix, or of the one in a slot, times what was laid out at these addresses."""
    rows, words, groups, bits = matrix[_ROWS], matrix[_WORDS], matrix[_GROUPS], matrix[_BITS]
    w = carray(pointer(matrix[_W] + 4 * slot * rows * words), (rows, words), np.uint32)
    s = _floats(matrix[_S] + 4 * slot * rows * groups, rows, groups)
    b = _floats(matrix[_B] + 4 * slot * rows * groups, rows, groups)
    dot_rows(_floats(planes, 32 // bits, words), _floats(sums, 1, groups)[0], w, s, b, bits, y, lo, hi)


@cfunc(_piece, **_CALLED)
def _some_rows(job, piece):
    """Rows of matrices that lie one below the other, for every token."""
    numbers = carray(pointer(job), (6,), np.int64)
    matrices, tokens, rows_a_piece = numbers[0], numbers[1], numbers[2]
    table = carray(pointer(job + 48), (matrices, _FIELDS), np.int64)
    width, groups = table[0, _WORDS] * (32 // table[0, _BITS]), table[0, _GROUPS]
    above, first = 0, piece * rows_a_piece
    for m in range(matrices):
        rows = table[m, _ROWS]
        lo, hi = max(first - above, 0), min(first + rows_a_piece - above, rows)
        if lo < hi:
            for token in range(tokens):
                y = _floats(numbers[5] + 4 * (above * tokens + token * rows), 1, rows)[0]
                planes, sums = numbers[3] + 4 * token * width, numbers[4] + 4 * token * groups
                _times(table[m], 0, planes, sums, y, lo, hi)
        above += rows


@njit(**_LOOP)
def _multiply(board, function, job, x, planes, sums, out, pieces):
    job[3], job[4], job[5] = planes.ctypes.data, sums.ctypes.data, out.ctypes.data
    for token in range(len(x)):
        _lay_out(x[token], job[6 : 6 + _FIELDS], planes[token].ctypes.data, sums[token].ctypes.data)
    work(board, function, job.ctypes.data, pieces)


class Products:
    """Matrices of one width and format that are multiplied with the same activation, in one job."""

    def __init__(self, matrices: Sequence[Quantised]):
        self._matrices = list(matrices)  # the job knows addresses only: this keeps what lies there
        self._ends = np.cumsum([m.w.shape[0] for m in matrices]).tolist()
        self._width = matrices[0].w.shape[1] * 32 // matrices[0].bits
        self._groups = matrices[0].s.shape[1]
        self._job = np.array([len(matrices), *[0] * 5, *(n for m in matrices for n in _described(m))], np.int64)

    def times(self, x: np.ndarray) -> list[np.ndarray]:
        """x float32 [n, I], contiguous, times each transposed matrix: a list of [n, O]."""
        tokens, total = len(x), self._ends[-1]
        job, out = self._job.copy(), np.empty(tokens * total, np.float32)
        rows = max(16, PIECE // (self._width * tokens))
        job[1], job[2] = tokens, rows
        planes, sums = np.empty((tokens, self._width), np.float32), np.empty((tokens, self._groups), np.float32)
        with board(total * self._width * tokens) as crew:
            _multiply(crew, _some_rows.address, job, x, planes, sums, out, -(-total // rows))
        starts = [0, *self._ends[:-1]]
        return [out[a * tokens : b * tokens].reshape(tokens, -1) for a, b in zip(starts, self._ends, strict=True)]


# Numbers of an experts' job before its three matrices.
_HEAD = 11


@cfunc(_piece, **_CALLED)
def _some_hidden(job, piece):
    """silu(gate(x)) * up(x) of a part of an expert's hidden values."""
    slots_at, chosen, parts, hidden, ups, _, width = carray(pointer(job), (7,), np.int64)
    laid_out = carray(pointer(job + 56), (2, 2), np.int64)
    table = carray(pointer(job + 8 * _HEAD), (3, _FIELDS), np.int64)
    index, part = piece // parts, piece % parts
    slot = carray(pointer(slots_at), (index + 1,), np.int64)[index]
    token, rows = index // chosen, table[0, _ROWS]
    lo, hi = rows * part // parts, rows * (part + 1) // parts
    g, u = _floats(hidden + 4 * index * rows, 1, rows)[0], _floats(ups + 4 * index * rows, 1, rows)[0]
    for which, y in ((0, g), (1, u)):
        planes, sums = laid_out[which, 0] + 4 * token * width, laid_out[which, 1] + 4 * token * table[which, _GROUPS]
        _times(table[which], slot, planes, sums, y, lo, hi)
    for i in range(lo, hi):
        g[i] = g[i] / (float32(1) + np.exp(-g[i])) * u[i]


@cfunc(_piece, **_CALLED)
def _some_out(job, piece):
    """Rows of what an expert makes of its hidden values."""
    slots_at, _, parts, hidden, _, out, _ = carray(pointer(job), (7,), np.int64)
    table = carray(pointer(job + 8 * _HEAD), (3, _FIELDS), np.int64)
    index, part = piece // parts, piece % parts
    slot = carray(pointer(slots_at), (index + 1,), np.int64)[index]
    down, width = table[2], table[0, _ROWS]
    planes, sums = np.empty(width, np.float32), np.empty(down[_GROUPS], np.float32)
    _lay_out(_floats(hidden + 4 * index * width, 1, width)[0], down, planes.ctypes.data, sums.ctypes.data)
    rows = down[_ROWS]
    y = _floats(out + 4 * index * rows, 1, rows)[0]
    _times(down, slot, planes.ctypes.data, sums.ctypes.data, y, rows * part // parts, rows * (part + 1) // parts)
    planes[0] = sums[0]  # only their addresses were used above: this keeps them until here


@njit(**_LOOP)
def _run_experts(board, some_hidden, some_out, job, x, slots, planes, sums, hidden, ups, out):
    job[0], job[3], job[4], job[5] = slots.ctypes.data, hidden.ctypes.data, ups.ctypes.data, out.ctypes.data
    for which in range(2):
        matrix = job[_HEAD + which * _FIELDS : _HEAD + (which + 1) * _FIELDS]
        job[7 + 2 * which], job[8 + 2 * which] = planes[which].ctypes.data, sums[which].ctypes.data
        for token in range(len(x)):
            at = sums[which].ctypes.data + 4 * token * matrix[_GROUPS]
            _lay_out(x[token], matrix, planes[which, token].ctypes.data, at)
    work(board, some_hidden, job.ctypes.data, len(slots) * job[2])
    work(board, some_out, job.ctypes.data, len(slots) * job[2])


class Experts:
    """SwiGLU experts in slots, for few tokens: two jobs, gates with ups and then downs."""

    def __init__(self, gate: Quantised, up: Quantised, down: Quantised):
        self._matrices = gate, up, down  # the job knows addresses only: this keeps what lies there
        self._width, self._hidden = gate.w.shape[2] * 32 // gate.bits, gate.w.shape[1]
        self._groups = max(gate.s.shape[2], up.s.shape[2])
        self._job = np.array([*[0] * _HEAD, *(n for m in self._matrices for n in _described(m))], np.int64)
        self._job[6] = self._width
        self._most_parts = max(1, self._hidden * self._width // PIECE)

    def __call__(self, x: np.ndarray, slots: np.ndarray, out: np.ndarray) -> None:
        """out [n, k, D] of x float32 [n, I] for the experts in slots int64 [n, k]; all contiguous."""
        (tokens, chosen), flat = slots.shape, slots.reshape(-1)
        job = self._job.copy()
        job[1], job[2] = chosen, min(self._most_parts, -(-4 * cores() // len(flat)))
        planes, sums = (np.empty((2, tokens, width), np.float32) for width in (self._width, self._groups))
        hidden, ups = np.empty((2, len(flat), self._hidden), np.float32)
        with board(3 * len(flat) * self._hidden * self._width) as crew:
            addresses = _some_hidden.address, _some_out.address
            _run_experts(crew, *addresses, job, x, flat, planes, sums, hidden, ups, out)
