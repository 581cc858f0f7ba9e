"""Sums of float32 values in an order of their own: quick, and the same bits whoever calls.

Fast mathematics lets the compiler choose the order, and it chooses by what surrounds the loop.
"""

from numba import float32, njit

_IN_ORDER = {"nogil": True, "error_model": "numpy", "cache": True}


@njit(**_IN_ORDER)
def sum_in_order(x):
    """The sum of x [n]: eight sums side by side, then those."""
    a = b = c = d = e = f = g = h = float32(0)
    whole = len(x) - len(x) % 8
    for i in range(0, whole, 8):
        a += x[i]
        b += x[i + 1]
        c += x[i + 2]
        d += x[i + 3]
        e += x[i + 4]
        f += x[i + 5]
        g += x[i + 6]
        h += x[i + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(whole, len(x)):
        total += x[i]
    return total


@njit(**_IN_ORDER)
def squares_in_order(x):
    """The sum of the squares of x [n], in the same order."""
    a = b = c = d = e = f = g = h = float32(0)
    whole = len(x) - len(x) % 8
    for i in range(0, whole, 8):
        a += x[i] * x[i]
        b += x[i + 1] * x[i + 1]
        c += x[i + 2] * x[i + 2]
        d += x[i + 3] * x[i + 3]
        e += x[i + 4] * x[i + 4]
        f += x[i + 5] * x[i + 5]
        g += x[i + 6] * x[i + 6]
        h += x[i + 7] * x[i + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(whole, len(x)):
        total += x[i] * x[i]
    return total
