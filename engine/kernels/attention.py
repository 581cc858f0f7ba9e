"""Numba loops for what surrounds the matrices: RMS norm, rotary positions, attention.

MLX's own need 70 to 120 microseconds a call on the CPU whatever their size, and its attention 3 ms at 2,000 tokens.
"""

import math

import numpy as np
from numba import cfunc, float32, njit, types
from numba.np.numpy_support import carray

from engine.kernels.atomics import pointer
from engine.kernels.crew import board, work
from engine.kernels.threads import cores

_LOOP = {"nogil": True, "fastmath": True, "error_model": "numpy", "cache": True}

# A stretch of so many keys and values of one head is worth a call of its own.
LEAST_STRETCH = 256


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
def _floats(address, rows, columns):
    return carray(pointer(address), (rows, columns), np.float32)


@cfunc(types.void(types.int64, types.int64), fastmath=True, error_model="numpy", cache=True)
def _one_stretch(job, piece):
    """What the queries of one head of keys gather from one stretch of tokens."""
    kinds, share, tokens, parts, width, depth, q, keys, keys_apart, values, values_apart, out, highest, total = carray(
        pointer(job), (14,), np.int64
    )
    part, kind = piece // kinds, piece % kinds
    first, last = tokens * part // parts, tokens * (part + 1) // parts
    k = _floats(keys + kind * keys_apart + 4 * first * width, last - first, width)
    v = _floats(values + kind * values_apart + 4 * first * depth, last - first, depth)
    to = _floats(out + 4 * piece * share * depth, share, depth)
    most, sums = _floats(highest + 4 * piece * share, 1, share)[0], _floats(total + 4 * piece * share, 1, share)[0]
    attend(_floats(q + 4 * kind * share * width, share, width), k, v, float32(1), to, most, sums)


@njit(**_LOOP)
def _attend_in_stretches(board, function, job, q, scale, keys, values, scaled, parts_out, highest, total, out):
    heads, width = q.shape
    kinds, parts, depth = job[0], job[3], job[5]
    for h in range(heads):
        for i in range(width):
            scaled[h, i] = q[h, i] * float32(scale)
    job[6], job[7], job[8] = scaled.ctypes.data, keys.ctypes.data, keys.strides[0]
    job[9], job[10] = values.ctypes.data, values.strides[0]
    job[11], job[12], job[13] = parts_out.ctypes.data, highest.ctypes.data, total.ctypes.data
    work(board, function, job.ctypes.data, parts * kinds)
    for h in range(heads):
        most, weights = float32(-math.inf), float32(0)
        for part in range(parts):
            most = max(most, highest[part, h])
        for i in range(depth):
            out[h, i] = float32(0)
        for part in range(parts):
            weight = np.exp(highest[part, h] - most)
            weights += weight * total[part, h]
            for i in range(depth):
                out[h, i] += weight * parts_out[part, h, i]
        for i in range(depth):
            out[h, i] /= weights


def attention_of_one(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    """Attention of one token, on all threads where that is worth while: float32 [H, V].

    q is [H, D], keys [K, T, D], values [K, T, V], float32; the keys and values of a head have to be contiguous.
    """
    (heads, width), (kinds, tokens, depth) = q.shape, values.shape
    parts = max(1, min(tokens // LEAST_STRETCH, -(-2 * cores() // kinds)))
    job = np.array([kinds, heads // kinds, tokens, parts, width, depth, *[0] * 8], np.int64)
    parts_out, (highest, total) = np.empty((parts, heads, depth), np.float32), np.empty((2, parts, heads), np.float32)
    out = np.empty((heads, depth), np.float32)
    # A key and a value are touched for every head: about two weights' worth each.
    with board(2 * heads * tokens * width) as crew:
        scaled = np.empty_like(q)
        _attend_in_stretches(
            crew, _one_stretch.address, job, q, scale, keys, values, scaled, parts_out, highest, total, out
        )
    return out


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
