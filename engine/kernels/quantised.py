"""Numba loops over MLX's affine quantised weights, read in place: weight = scale * q + bias, group by group.

A uint32 word holds eight 4-bit or four 8-bit values. An activation is laid out vector of words by vector of words: for
each, all first places, then all second ones, multiplied by that place's power of two beforehand, so that `word & mask`
needs no shift; powers of two are exact in float32. The products are written in LLVM's vectors: see `vectors`.

Shapes: w uint32 [O, W], s and b float32 [O, G].
"""

import numpy as np
from numba import float32, int32, njit, uint32

from engine.kernels.sums import sum_in_order
from engine.kernels.vectors import row_product

_LOOP = {"nogil": True, "fastmath": True, "error_model": "numpy", "cache": True}
# Fast mathematics would sum differently for one activation and for several, and depending on who calls.
_IN_ORDER = {**_LOOP, "fastmath": False}

# So many activations at a time: their totals and the matrix's values fit in sixteen vector registers.
TOGETHER = 4
# Eight words of a row at a time: a group or a part of one; two groups of four words; or four, for an odd last group.
_whole4, _pair4, _four4 = row_product(4, 8), row_product(4, 8, groups_a_vector=2), row_product(4, 4)
_whole8 = row_product(8, 8)
_whole4s, _pair4s = row_product(4, 8, tokens=TOGETHER), row_product(4, 8, groups_a_vector=2, tokens=TOGETHER)
_four4s, _whole8s = row_product(4, 4, tokens=TOGETHER), row_product(8, 8, tokens=TOGETHER)


@njit(**_LOOP)
def _lanes(words, groups, bits):
    """Words in a vector of a row."""
    return 4 if bits == 4 and words // groups % 8 != 0 and groups % 2 == 1 else 8


@njit(**_IN_ORDER)
def lay_out(x, words, groups, bits, out, sums):
    """The activation x [I] for `dot_rows`, into out [I], and the sum of each group of it (for the biases)."""
    places, lanes = 32 // bits, _lanes(words, groups, bits)
    for vector in range(words // lanes):
        factor = float32(1)
        for p in range(places):
            if p == places - 1:
                factor = float32(1)  # the topmost place is shifted down instead: it would be negative as int32
            for lane in range(lanes):
                out[(vector * places + p) * lanes + lane] = x[(vector * lanes + lane) * places + p] * factor
            factor /= float32(1 << bits)
    group = len(x) // groups
    for g in range(groups):
        sums[g] = sum_in_order(x[g * group : (g + 1) * group])


@njit(**_LOOP)
def dot_rows(xs, sums, w, s, b, bits, ys, lo, hi):
    """Rows lo to hi of the quantised matrix times each activation that was laid out.

    xs, sums and ys are int64 [n]: addresses of the activations, of the sums of their groups, and of the results.
    """
    first = 0
    while first < len(xs):
        count = min(TOGETHER, len(xs) - first)
        if count >= TOGETHER - 1:
            some = np.empty((3, TOGETHER), np.int64)
            for n in range(TOGETHER):  # a last one that is missing is another one twice: cheaper than one by one
                at = first + min(n, count - 1)
                some[0, n], some[1, n], some[2, n] = xs[at], sums[at], ys[at]
            _together(some[0], some[1], w, s, b, bits, some[2], lo, hi)
        else:
            for at in range(first, first + count):
                _alone(xs[at : at + 1], sums[at : at + 1], w, s, b, bits, ys[at : at + 1], lo, hi)
        first += count


@njit(**_IN_ORDER)
def _alone(xs, sums, w, s, b, bits, ys, lo, hi):
    words, groups = w.shape[1], s.shape[1]
    if bits == 8:
        for row in range(lo, hi):
            _whole8(xs, sums, w, s, b, row, ys)
    elif words // groups % 8 == 0:
        for row in range(lo, hi):
            _whole4(xs, sums, w, s, b, row, ys)
    elif groups % 2 == 0:
        for row in range(lo, hi):
            _pair4(xs, sums, w, s, b, row, ys)
    else:
        for row in range(lo, hi):
            _four4(xs, sums, w, s, b, row, ys)


@njit(**_IN_ORDER)
def _together(xs, sums, w, s, b, bits, ys, lo, hi):
    words, groups = w.shape[1], s.shape[1]
    if bits == 8:
        for row in range(lo, hi):
            _whole8s(xs, sums, w, s, b, row, ys)
    elif words // groups % 8 == 0:
        for row in range(lo, hi):
            _whole4s(xs, sums, w, s, b, row, ys)
    elif groups % 2 == 0:
        for row in range(lo, hi):
            _pair4s(xs, sums, w, s, b, row, ys)
    else:
        for row in range(lo, hi):
            _four4s(xs, sums, w, s, b, row, ys)


@njit(**_LOOP)
def _spread(scales, row, words_per_group, out):
    for g in range(scales.shape[1]):
        scale = scales[row, g]
        for j in range(words_per_group):
            out[g * words_per_group + j] = scale


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
