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
def attend(q, keys, values, scale, out, highest, total):
    """What query heads q [H, D] gather from the values [T, V] of the one head of keys [T, D] that they share.

    With weights exp(scale * q . key - highest): out [H, V] is the weighted sum of values, total [H] that of weights. So
    results of several stretches of tokens can be put together (as flash-decoding does, Dao et al., 2023). Arrays have
    to be contiguous: with strides that are not known the loops do not vectorise and take ten times as long.
    """
    heads, width = q.shape
    tokens, depth = values.shape
    weights = np.empty((heads, tokens), np.float32)
    for t in range(tokens):
        for h in range(heads):
            dot = float32(0)
            for i in range(width):
                dot += q[h, i] * keys[t, i]
            weights[h, t] = dot * float32(scale)
    for h in range(heads):
        most = float32(-math.inf)
        for t in range(tokens):
            most = max(most, weights[h, t])
        sum_of_weights = float32(0)
        for t in range(tokens):
            weights[h, t] = np.exp(weights[h, t] - most)
            sum_of_weights += weights[h, t]
        highest[h], total[h] = most, sum_of_weights
        for i in range(depth):
            out[h, i] = float32(0)
    whole = tokens - tokens % 4
    for t in range(0, whole, 4):
        for h in range(heads):
            a, b, c, d = weights[h, t], weights[h, t + 1], weights[h, t + 2], weights[h, t + 3]
            for i in range(depth):
                out[h, i] += (a * values[t, i] + b * values[t + 1, i]) + (c * values[t + 2, i] + d * values[t + 3, i])
    for t in range(whole, tokens):
        for h in range(heads):
            for i in range(depth):
                out[h, i] += weights[h, t] * values[t, i]


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
