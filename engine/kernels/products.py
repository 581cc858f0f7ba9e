"""The products of a token with quantised matrices and with experts, each one job for the crew.

A job reaches the crew's threads as the address of int64 numbers: addresses of arrays and sizes. Every row of a result
is computed alone, so how a job is cut into pieces never changes a bit of it.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numba import cfunc, float32, njit
from numba.np.numpy_support import carray

from engine.kernels import tape
from engine.kernels.addresses import STEP, board_of, floats, integers
from engine.kernels.atomics import pointer
from engine.kernels.crew import WORTH_A_CREW, board, work
from engine.kernels.quantised import dot_rows, lay_out

_LOOP = {"nogil": True, "fastmath": True, "error_model": "numpy", "cache": True}
_CALLED = {"fastmath": True, "error_model": "numpy", "cache": True}

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
def _lay_out(x, matrix, out, sums):
    """Lay out the activation x [I] for a matrix: out and sums are addresses."""
    words, groups, bits = matrix[_WORDS], matrix[_GROUPS], matrix[_BITS]
    lay_out(x, words, groups, bits, floats(out, 1, len(x))[0], floats(sums, 1, groups)[0])


@njit(**_LOOP)
def _times(matrix, slot, xs, sums, ys, lo, hi):
    """Rows lo to hi of a matrix, or of the one in a slot, times what was laid out: addresses as of `dot_rows`."""
    rows, words, groups = matrix[_ROWS], matrix[_WORDS], matrix[_GROUPS]
    w = carray(pointer(matrix[_W] + 4 * slot * rows * words), (rows, words), np.uint32)
    s = floats(matrix[_S] + 4 * slot * rows * groups, rows, groups)
    b = floats(matrix[_B] + 4 * slot * rows * groups, rows, groups)
    dot_rows(xs, sums, w, s, b, matrix[_BITS], ys, lo, hi)


@cfunc(STEP, **_CALLED)
def _some_rows(job, piece):
    """Rows of matrices that lie one below the other, for every token."""
    matrices, tokens, rows_a_piece, laid_out, summed, out = integers(job, 6)
    table = carray(pointer(job + 48), (int(matrices), _FIELDS), np.int64)
    width, groups = table[0, _WORDS] * (32 // table[0, _BITS]), table[0, _GROUPS]
    xs, sums, ys = np.empty(tokens, np.int64), np.empty(tokens, np.int64), np.empty(tokens, np.int64)
    above, first = 0, piece * rows_a_piece
    for m in range(matrices):
        rows = table[m, _ROWS]
        lo, hi = max(first - above, 0), min(first + rows_a_piece - above, rows)
        if lo < hi:
            for token in range(tokens):
                xs[token], sums[token] = laid_out + 4 * token * width, summed + 4 * token * groups
                ys[token] = out + 4 * (above * tokens + token * rows)
            _times(table[m], 0, xs, sums, ys, lo, hi)
        above += rows


@njit(**_LOOP)
def _multiply(board, function, job, x, laid_out, sums, out, pieces):
    job[3], job[4], job[5] = laid_out.ctypes.data, sums.ctypes.data, out.ctypes.data
    for token in range(len(x)):
        _lay_out(x[token], job[6 : 6 + _FIELDS], laid_out[token].ctypes.data, sums[token].ctypes.data)
    work(board, function, job.ctypes.data, pieces)


@cfunc(STEP, **_CALLED)
def _multiply_again(argument, moment):
    """The job of one activation's products, with everything where it was."""
    function, at, x, laid_out, sums, pieces, worth, width = integers(argument, 8)
    _lay_out(floats(x, 1, width)[0], integers(at, 6 + _FIELDS)[6:], laid_out, sums)
    work(board_of(moment, worth), function, at, pieces)


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
        laid_out, sums = np.empty((tokens, self._width), np.float32), np.empty((tokens, self._groups), np.float32)
        weights, pieces = total * self._width * tokens, -(-total // rows)
        with board(weights) as crew:
            _multiply(crew, _some_rows.address, job, x, laid_out, sums, out, pieces)
        if tape.current is not None:
            arguments = [_some_rows.address, job, x, laid_out, sums, pieces, weights >= WORTH_A_CREW, self._width]
            tape.current.native(_multiply_again, arguments, [x], [out])
        starts = [0, *self._ends[:-1]]
        return [out[a * tokens : b * tokens].reshape(tokens, -1) for a, b in zip(starts, self._ends, strict=True)]


# Numbers of an experts' job before its three matrices.
_HEAD = 13
# Hidden values of so many pairs of a token and an expert are there at once: 16 MB of them.
_MOST_HIDDEN = 4 << 20


@njit(**_LOOP)
def _task(job, piece):
    """An expert's slot, the first and last of its pairs in order, and the part of its rows that a piece is about."""
    slots, order, firsts, _, parts = integers(job, 5)
    task, part = piece // parts, piece % parts
    first, last = integers(firsts, task + 2)[task : task + 2]
    slot = integers(slots, integers(order, first + 1)[first] + 1)[integers(order, first + 1)[first]]
    return slot, first, last, part, parts


@cfunc(STEP, **_CALLED)
def _some_hidden(job, piece):
    """silu(gate(x)) * up(x) of a part of an expert's hidden values, for each of its tokens."""
    slot, first, last, part, parts = _task(job, piece)
    numbers = integers(job, _HEAD)
    order, chosen, hidden, ups, width = integers(numbers[1], last), numbers[3], numbers[5], numbers[6], numbers[8]
    table = carray(pointer(job + 8 * _HEAD), (3, _FIELDS), np.int64)
    rows, count = table[0, _ROWS], last - first
    lo, hi = rows * part // parts, rows * (part + 1) // parts
    xs, sums, ys = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    for which in range(2):
        for n in range(count):
            token = order[first + n] // chosen
            xs[n] = numbers[9 + 2 * which] + 4 * token * width
            sums[n] = numbers[10 + 2 * which] + 4 * token * table[which, _GROUPS]
            ys[n] = (hidden if which == 0 else ups) + 4 * (first + n) * rows
        _times(table[which], slot, xs, sums, ys, lo, hi)
    for pair in range(first, last):
        g, u = floats(hidden + 4 * pair * rows, 1, rows)[0], floats(ups + 4 * pair * rows, 1, rows)[0]
        for i in range(lo, hi):
            g[i] = g[i] / (float32(1) + np.exp(-g[i])) * u[i]


@cfunc(STEP, **_CALLED)
def _some_out(job, piece):
    """Rows of what an expert makes of its hidden values, for each of its tokens."""
    slot, first, last, part, parts = _task(job, piece)
    numbers = integers(job, _HEAD)
    order, hidden, out = integers(numbers[1], last), numbers[5], numbers[7]
    table = carray(pointer(job + 8 * _HEAD), (3, _FIELDS), np.int64)
    down, width, count = table[2], table[0, _ROWS], last - first
    laid_out, summed = np.empty((count, width), np.float32), np.empty((count, down[_GROUPS]), np.float32)
    xs, sums, ys = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    rows = down[_ROWS]
    for n in range(count):
        xs[n], sums[n] = laid_out[n].ctypes.data, summed[n].ctypes.data
        ys[n] = out + 4 * order[first + n] * rows
        _lay_out(floats(hidden + 4 * (first + n) * width, 1, width)[0], down, xs[n], sums[n])
    _times(down, slot, xs, sums, ys, rows * part // parts, rows * (part + 1) // parts)
    laid_out[0, 0] = summed[0, 0]  # only their addresses were used above: this keeps them until here


@njit(**_LOOP)
def _run_experts(board, functions, about, sizes, x, slots, order, out):
    """Both jobs for the pairs of `order`: `about` is what is known of the experts, the rest is written into a copy."""
    job, hidden_values = about.copy(), about[_HEAD + _ROWS]
    (some_hidden, some_out), (chosen, most_parts, groups) = functions, sizes
    firsts, tasks = np.empty(len(order) + 1, np.int64), 0
    for n in range(len(order)):
        if n == 0 or slots[order[n]] != slots[order[n - 1]]:
            firsts[tasks] = n
            tasks += 1
    firsts[tasks] = len(order)
    laid_out, sums = np.empty((2, len(x), x.shape[1]), np.float32), np.empty((2, len(x), groups), np.float32)
    hidden, ups = np.empty((len(order), hidden_values), np.float32), np.empty((len(order), hidden_values), np.float32)
    job[0], job[1], job[2], job[3] = slots.ctypes.data, order.ctypes.data, firsts.ctypes.data, chosen
    job[4] = max(1, min(most_parts, -(-4 * (1 + board.size) // tasks)))
    job[5], job[6], job[7] = hidden.ctypes.data, ups.ctypes.data, out.ctypes.data
    for which in range(2):
        matrix = job[_HEAD + which * _FIELDS : _HEAD + (which + 1) * _FIELDS]
        job[9 + 2 * which], job[10 + 2 * which] = laid_out[which].ctypes.data, sums[which].ctypes.data
        for token in range(len(x)):
            at = sums[which].ctypes.data + 4 * token * matrix[_GROUPS]
            _lay_out(x[token], matrix, laid_out[which, token].ctypes.data, at)
    work(board, some_hidden, job.ctypes.data, tasks * job[4])
    work(board, some_out, job.ctypes.data, tasks * job[4])
    # Only the addresses of these were used above: this keeps them until here.
    firsts[0] = job[0] = 0
    laid_out[0, 0, 0] = sums[0, 0, 0] = hidden[0, 0] = ups[0, 0] = 0


class Experts:
    """SwiGLU experts in slots, each for its few tokens: two jobs, gates with ups and then downs."""

    def __init__(self, gate: Quantised, up: Quantised, down: Quantised):
        self._matrices = gate, up, down  # the job knows addresses only: this keeps what lies there
        self._width, self._hidden = gate.w.shape[2] * 32 // gate.bits, gate.w.shape[1]
        self._groups = max(gate.s.shape[2], up.s.shape[2])
        self._job = np.array([*[0] * _HEAD, *(n for m in self._matrices for n in _described(m))], np.int64)
        self._job[8] = self._width
        self._most_parts = max(1, self._hidden * self._width // PIECE)

    def __call__(self, x: np.ndarray, slots: np.ndarray, out: np.ndarray, pairs: np.ndarray | None = None) -> None:
        """out [n, k, D] of x float32 [n, I] for the experts in slots int64 [n, k]; all contiguous.

        `pairs` int64 are the places in [n, k] that are to be computed, counted row by row; all of them when None.
        """
        (tokens, chosen), flat = slots.shape, slots.reshape(-1)
        order = np.arange(len(flat)) if pairs is None else pairs
        if tokens > 1:  # those of one expert together
            order = order[np.argsort(flat[order], kind="stable")]
        at_once = max(1, _MOST_HIDDEN // (2 * self._hidden))
        functions, sizes = (_some_hidden.address, _some_out.address), (chosen, self._most_parts, self._groups)
        for start in range(0, len(order), at_once):
            some = order[start : start + at_once]
            with board(3 * len(some) * self._hidden * self._width) as crew:
                _run_experts(crew, functions, self._job, sizes, x, flat, some, out)
