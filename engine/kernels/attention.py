"""Numba loops for what surrounds the matrices: RMS norm, rotary positions, attention.

MLX's own need 70 to 120 microseconds a call on the CPU whatever their size, and its attention 3 ms at 2,000 tokens.
"""

import math

import numpy as np
from numba import float32, njit

_LOOP = {"nogil": True, "fastmath": True, "error_model": "numpy", "cache": True}


@njit(**_LOOP)
def rms_norm(x, weight, eps, out):
    """out [n, D] = x [n, D] / rms(x) * weight [D]."""
    width = x.shape[1]
    for n in range(x.shape[0]):
        total = float32(0)
        for i in range(width):
            total += x[n, i] * x[n, i]
        factor = float32(1) / np.sqrt(total / float32(width) + float32(eps))
        for i in range(width):
            out[n, i] = x[n, i] * factor * weight[i]


@njit(**_LOOP)
def rotate(x, cosines, sines, traditional, out):
    """Rotary positions (Su et al., 2021): x and out [H, L, D], cosines and sines [L, dims / 2].

    Pairs are neighbours when `traditional`, else half of `dims` apart; what lies beyond dims stays as it is.
    """
    half = cosines.shape[1]
    for h in range(x.shape[0]):
        for t in range(x.shape[1]):
            for i in range(half):
                a = 2 * i if traditional else i
                b = a + 1 if traditional else i + half
                out[h, t, a] = x[h, t, a] * cosines[t, i] - x[h, t, b] * sines[t, i]
                out[h, t, b] = x[h, t, a] * sines[t, i] + x[h, t, b] * cosines[t, i]
            for i in range(2 * half, x.shape[2]):
                out[h, t, i] = x[h, t, i]


@njit(**_LOOP)
def attend(q, keys, values, scale, out, lo, hi):
    """out[h] [V] = softmax(scale * q[h] . keys) . values for the query heads lo to hi.

    q [H, D]; keys [K, T, D], values [K, T, V] with H a multiple of K (grouped heads).
    """
    tokens, width, depth = keys.shape[1], keys.shape[2], values.shape[2]
    share = q.shape[0] // keys.shape[0]
    scores = np.empty(tokens, np.float32)
    for h in range(lo, hi):
        k = h // share
        highest = float32(-math.inf)
        for t in range(tokens):
            dot = float32(0)
            for i in range(width):
                dot += q[h, i] * keys[k, t, i]
            scores[t] = dot * float32(scale)
            highest = max(highest, scores[t])
        total = float32(0)
        for i in range(depth):
            out[h, i] = float32(0)
        for t in range(tokens):
            weight = np.exp(scores[t] - highest)
            total += weight
            for i in range(depth):
                out[h, i] += weight * values[k, t, i]
        for i in range(depth):
            out[h, i] /= total


@njit(**_LOOP)
def causal_softmax(scores, scale, first):
    """In place, row by row: softmax(scale * scores) over the columns that a row may see, zero elsewhere.

    scores [n, L, T]; row l of L stands at position first + l and sees the columns 0 to first + l.
    """
    for n in range(scores.shape[0]):
        for row in range(scores.shape[1]):
            seen = min(first + row + 1, scores.shape[2])
            highest = float32(-math.inf)
            for t in range(seen):
                highest = max(highest, scores[n, row, t])
            total = float32(0)
            for t in range(seen):
                scores[n, row, t] = np.exp((scores[n, row, t] - highest) * float32(scale))
                total += scores[n, row, t]
            for t in range(seen):
                scores[n, row, t] /= total
            for t in range(seen, scores.shape[2]):
                scores[n, row, t] = float32(0)
