"""Numba loops over MLX's affine quantised weights, read in place: weight = scale * q + bias, group by group.

A uint32 word holds eight 4-bit or four 8-bit values. The activation is laid out as one plane per place in the word and
multiplied by that place's power of two beforehand, so that `word & mask` needs no shift; powers of two are exact in
float32. The product of a row is written in LLVM's vectors: see `vectors`.

Shapes: w uint32 [O, W], s and b float32 [O, G], planes float32 [P, W], sums float32 [G], y float32 [O].
"""

import numpy as np
from numba import float32, int32, njit, uint32

from engine.kernels.vectors import row_product

_LOOP = {"nogil": True, "fastmath": True, "error_model": "numpy", "cache": True}


@njit(**_LOOP)
def lay_out(x, bits, group, planes, sums):
    """Planes of the activation x [I] for `dot_rows`, and the sum of each group of it (for the biases)."""
    places = 32 // bits
    factor = float32(1)
    for p in range(places):
        if p == places - 1:
            factor = float32(1)  # the topmost place is shifted down instead: it would be negative as int32
        for j in range(planes.shape[1]):
            planes[p, j] = x[j * places + p] * factor
        factor /= float32(1 << bits)
    for g in range(sums.shape[0]):
        total = float32(0)
        for i in range(g * group, (g + 1) * group):
            total += x[i]
        sums[g] = total


# Eight words of a row at a time: a group or a part of one; two groups of four words; or four, for an odd last group.
_whole4, _pair4, _four4 = row_product(4, 8), row_product(4, 8, groups_a_vector=2), row_product(4, 4)
_whole8 = row_product(8, 8)


@njit(**_LOOP)
def dot_rows(planes, sums, w, s, b, bits, y, lo, hi):
    """y[lo:hi] = rows lo to hi of the quantised matrix times the activation that was laid out."""
    groups = s.shape[1]
    if bits == 8:
        for row in range(lo, hi):
            y[row] = _whole8(planes, sums, w, s, b, row)
    elif w.shape[1] // groups % 8 == 0:
        for row in range(lo, hi):
            y[row] = _whole4(planes, sums, w, s, b, row)
    elif groups % 2 == 0:
        for row in range(lo, hi):
            y[row] = _pair4(planes, sums, w, s, b, row)
    else:
        for row in range(lo, hi):
            y[row] = _four4(planes, sums, w, s, b, row)


@njit(**_LOOP)
def _spread(scales, row, words_per_group, out):
    for g in range(scales.shape[1]):
        scale = scales[row, g]
        for j in range(words_per_group):
            out[g * words_per_group + j] = scale


@njit(**_LOOP)
def matvec(x, w, s, b, bits, y, lo, hi):
    """y[lo:hi] of the quantised matrix times x [I]."""
    planes = np.empty((32 // bits, w.shape[1]), np.float32)
    sums = np.empty(s.shape[1], np.float32)
    lay_out(x, bits, x.shape[0] // s.shape[1], planes, sums)
    dot_rows(planes, sums, w, s, b, bits, y, lo, hi)


@njit(**_LOOP)
def dequantise(w, s, b, bits, out):
    """The matrix as float32, out [O, P, W]: value p of word j of row o at out[o, p, j].

    In this order every store is contiguous; `planes_of` puts activations in the same order.
    """
    words, groups = w.shape[1], s.shape[1]
    per_group = words // groups
    scale, bias = np.empty(words, np.float32), np.empty(words, np.float32)
    mask = uint32((1 << bits) - 1)
    for o in range(w.shape[0]):
        _spread(s, o, per_group, scale)
        _spread(b, o, per_group, bias)
        for p in range(32 // bits):
            shift = uint32(p * bits)
            for j in range(words):
                out[o, p, j] = scale[j] * float32(int32((w[o, j] >> shift) & mask)) + bias[j]


def planes_of(x: np.ndarray, bits: int) -> np.ndarray:
    """Activations x [n, I] with their columns in the order of `dequantise`: [n, I]."""
    places = 32 // bits
    return np.ascontiguousarray(x.reshape(len(x), -1, places).transpose(0, 2, 1)).reshape(len(x), -1)
