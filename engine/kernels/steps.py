"""The steps of a recorded token that belong to no matrix: sums, products, shares, the choice of experts; and their run.

Each gives the very bits that NumPy gives, so a replayed token is the token that mlx-lm's code on the host computes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import cfunc, float32, njit

from engine.kernels.addresses import CACHES, STEP, UNDECIDED, floats, integers
from engine.kernels.atomics import call_at

# No fast mathematics: it would divide by multiplying, and sum in another order.
_EXACT = {"error_model": "numpy", "cache": True}

# Scores that are nearer to each other, relative to the larger, are left to MLX. Its exponential and NumPy's differ by
# some 1e-7.
NEAR = 1e-5

_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE = range(4)
_OPERATIONS = {np.add: _ADD, np.subtract: _SUBTRACT, np.multiply: _MULTIPLY, np.divide: _DIVIDE}
# NumPy sums more values than these in parts of parts.
_MOST_SUMMED = 128


@njit(nogil=True, **_EXACT)
def run(steps, first, moment):
    """Do steps int64 [n, 2] from number `first` on; the number of the first that Python has to do, or n."""
    for n in range(first, len(steps)):
        if steps[n, 0] == 0:
            return n
        call_at(steps[n, 0], steps[n, 1], moment.ctypes.data)
        if moment[UNDECIDED] != 0:
            moment[UNDECIDED] = 0
            return n
    return len(steps)


@njit(nogil=True, **_EXACT)
def _add(a, b, step, out):
    for i in range(len(a)):
        out[i] = a[i] + b[i * step]


@njit(nogil=True, **_EXACT)
def _subtract(a, b, step, out):
    for i in range(len(a)):
        out[i] = a[i] - b[i * step]


@njit(nogil=True, **_EXACT)
def _multiply(a, b, step, out):
    for i in range(len(a)):
        out[i] = a[i] * b[i * step]


@njit(nogil=True, **_EXACT)
def _divide(a, b, step, out):
    for i in range(len(a)):
        out[i] = a[i] / b[i * step]


@cfunc(STEP, **_EXACT)
def combine(argument, moment):
    """out [R, C] = x [R, C] (operation) y, y[r, c] lying at r * y_rows + c * y_columns numbers, y_columns 0 or 1."""
    operation, x, y, out, rows, columns, y_rows, y_columns = integers(argument, 8)
    for row in range(rows):
        a, to = floats(x + 4 * row * columns, 1, columns)[0], floats(out + 4 * row * columns, 1, columns)[0]
        b = floats(y + 4 * row * y_rows, 1, columns if y_columns else 1)[0]
        if operation == _ADD:
            _add(a, b, y_columns, to)
        elif operation == _SUBTRACT:
            _subtract(a, b, y_columns, to)
        elif operation == _MULTIPLY:
            _multiply(a, b, y_columns, to)
        else:
            _divide(a, b, y_columns, to)


@cfunc(STEP, **_EXACT)
def negate(argument, moment):
    """out [n] = -x [n]."""
    x, out, count = integers(argument, 3)
    a, to = floats(x, 1, count)[0], floats(out, 1, count)[0]
    for i in range(count):
        to[i] = -a[i]


@cfunc(STEP, **_EXACT)
def add_rows(argument, moment):
    """out [A, C] = the sum over B of x [A, B, C], one row after the other."""
    x, out, blocks, rows, columns = integers(argument, 5)
    for block in range(blocks):
        to = floats(out + 4 * block * columns, 1, columns)[0]
        to[:] = floats(x + 4 * block * rows * columns, 1, columns)[0]
        for row in range(1, rows):
            some = floats(x + 4 * (block * rows + row) * columns, 1, columns)[0]
            for i in range(columns):
                to[i] += some[i]


@cfunc(STEP, **_EXACT)
def add_values(argument, moment):
    """out [A] = the sum of each row of x [A, n], n at most 128, in NumPy's order: eight sums side by side."""
    x, out, rows, count = integers(argument, 4)
    to = floats(out, 1, rows)[0]
    for row in range(rows):
        values = floats(x + 4 * row * count, 1, count)[0]
        total, whole = float32(0), 0
        if count >= 8:
            whole = count - count % 8
            r = values[:8].copy()
            for i in range(8, whole, 8):
                for j in range(8):
                    r[j] += values[i + j]
            total = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]))
        for i in range(whole, count):
            total += values[i]
        to[row] = total


@njit(nogil=True, cache=True)
def stands_clear(a, order, kth):
    """Whether in every row of a [n, E] the value that comes in place `kth` stands clear of its neighbours."""
    for row in range(len(a)):
        for place in range(max(kth - 1, 0), min(kth + 1, a.shape[1] - 1)):
            lower, upper = a[row, order[row, place]], a[row, order[row, place + 1]]
            if not upper - lower > NEAR * max(abs(lower), abs(upper)):
                return False
    return True


@njit(nogil=True, error_model="numpy", cache=True)
def softmax_rows(x, out):
    """out [n, E] = softmax of each row of x."""
    for row in range(len(x)):
        highest = x[row].max()
        total = float32(0)
        for i in range(x.shape[1]):
            out[row, i] = np.exp(x[row, i] - highest)
            total += out[row, i]
        for i in range(x.shape[1]):
            out[row, i] /= total


@cfunc(STEP, **_EXACT)
def softmax(argument, moment):
    """out [n, E] = softmax of each row of x."""
    x, out, rows, columns = integers(argument, 4)
    softmax_rows(floats(x, rows, columns), floats(out, rows, columns))


@cfunc(STEP, **_EXACT)
def choose(argument, moment):
    """order [E] = what sorts x [E]; undecided where two are equal or the one in place `kth` does not stand clear."""
    x, out, count, kth = integers(argument, 4)
    values, order = floats(x, 1, count), integers(out, count)
    order[:] = np.argsort(values[0])
    decided = stands_clear(values, order.reshape(1, count), kth)
    for place in range(count - 1):
        decided = decided and values[0, order[place]] < values[0, order[place + 1]]
    if not decided:
        integers(moment, CACHES)[UNDECIDED] = 1


@cfunc(STEP, **_EXACT)
def take(argument, moment):
    """out [n] = x [E] at indices int64 [n]."""
    x, indices, out, count, values = integers(argument, 5)
    a, places, to = floats(x, 1, values)[0], integers(indices, count), floats(out, 1, count)[0]
    for i in range(count):
        to[i] = a[places[i]]


def of_ufunc(
    ufunc: np.ufunc, method: str, inputs: Sequence[Any], out: np.ndarray, kwargs: dict[str, Any]
) -> Sequence[Any] | None:
    """The step that does what a NumPy function did with float32 arrays, and its arguments; None if there is none."""
    arrays = [x for x in (*inputs, out) if isinstance(x, np.ndarray)]
    if any(x.dtype != np.float32 or not x.flags.c_contiguous for x in arrays):
        return None
    if method == "reduce" and ufunc is np.add and "initial" not in kwargs:
        return _summed(inputs[0], out, **kwargs)
    if method != "__call__" or kwargs:
        return None
    if ufunc is np.negative:
        return [negate, inputs[0], out, out.size]
    return _combined(ufunc, inputs, out)


def _combined(ufunc: np.ufunc, inputs: Sequence[Any], out: np.ndarray) -> Sequence[Any] | None:
    operation = _OPERATIONS.get(ufunc)
    if operation is None or len(inputs) != 2 or out.ndim == 0:
        return None
    x, y = inputs
    if operation in (_ADD, _MULTIPLY) and np.size(x) < np.size(y):
        x, y = y, x
    if not isinstance(x, np.ndarray) or x.shape != out.shape:
        return None
    rows, columns = out.size // out.shape[-1], out.shape[-1]
    if isinstance(y, float | int):
        y = np.array([y], np.float32)
    elif not isinstance(y, np.ndarray):
        return None
    if y.size == x.size and y.shape == x.shape:
        steps = columns, 1
    elif y.size == 1:
        steps = 0, 0
    elif y.shape == (*x.shape[:-1], 1):
        steps = 1, 0
    elif y.size == columns == y.shape[-1]:
        steps = 0, 1
    else:
        return None
    return [combine, operation, x, y, out, rows, columns, *steps]


def _summed(
    x: np.ndarray, out: np.ndarray, axis: Any = 0, keepdims: bool = False, dtype: Any = None, where: Any = True
) -> Sequence[Any] | None:
    if not isinstance(axis, int) or dtype is not None or where is not True or not x.size:
        return None
    axis %= x.ndim
    blocks, count = int(np.prod(x.shape[:axis])), x.shape[axis]
    columns = x.size // (blocks * count)
    if columns > 1:
        return [add_rows, x, out, blocks, count, columns]
    return [add_values, x, out, blocks, count] if count <= _MOST_SUMMED else None
