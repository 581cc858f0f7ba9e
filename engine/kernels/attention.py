"""Numba loops for what surrounds the matrices: RMS norm, rotary positions, attention.

MLX's own need 70 to 120 microseconds a call on the CPU whatever their size, and its attention 3 ms at 2,000 tokens.
"""

import math

import numpy as np
from numba import cfunc, float32, njit

from engine.kernels import tape
from engine.kernels.addresses import (
    CACHE_FIELDS,
    CACHES,
    POSITION,
    STEP,
    board_of,
    floats,
    integers,
    number,
)
from engine.kernels.atomics import fetch_ahead
from engine.kernels.crew import WORTH_A_CREW, board, work
from engine.kernels.sums import squares_in_order
from engine.kernels.threads import cores

_LOOP = {"nogil": True, "fastmath": True, "error_model": "numpy", "cache": True}
_CALLED = {"fastmath": True, "error_model": "numpy", "cache": True}
# Fast mathematics may fuse a product and a sum here and not there: the bits would depend on who calls.
_THE_SAME = {**_LOOP, "fastmath": False}

# Numbers in a line of the cache; and how many ahead of the sums memory is told what will be read (measured: an eighth
# of the time of a long context).
_LINE, _AHEAD = 16, 1024

# A stretch of so many keys and values of one head is worth a call of its own.
LEAST_STRETCH = 256


@njit(**_THE_SAME)
def rms_norm(x, weight, eps, out):
    """out [n, D] = x [n, D] / rms(x) * weight [D]."""
    width = x.shape[1]
    for n in range(x.shape[0]):
        factor = float32(1) / np.sqrt(squares_in_order(x[n]) / float32(width) + float32(eps))
        for i in range(width):
            out[n, i] = x[n, i] * factor * weight[i]


@njit(**_THE_SAME)
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
        for i in range(0, width, _LINE):
            fetch_ahead(keys, t * width + _AHEAD + i)
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
        for i in range(0, 4 * depth, _LINE):
            fetch_ahead(values, t * depth + _AHEAD + i)
        for h in range(heads):
            a, b, c, d = weights[h, t], weights[h, t + 1], weights[h, t + 2], weights[h, t + 3]
            for i in range(depth):
                out[h, i] += (a * values[t, i] + b * values[t + 1, i]) + (c * values[t + 2, i] + d * values[t + 3, i])
    for t in range(whole, tokens):
        for h in range(heads):
            for i in range(depth):
                out[h, i] += weights[h, t] * values[t, i]


# A job of attention: sizes, then the addresses of queries, of keys and values with how many bytes their heads lie
# apart, and of what each stretch gives.
_KINDS, _SHARE, _TOKENS, _PARTS, _WIDTH, _DEPTH, _Q, _KEYS, _VALUES, _OUT, _HIGHEST, _TOTAL, _FIELDS = (
    *range(8), 9, 11, 12, 13, 14,
)  # fmt: skip


@cfunc(STEP, **_CALLED)
def _one_stretch(job, piece):
    """What the queries of one head of keys gather from one stretch of tokens."""
    kinds, share, tokens, parts, width, depth, q, keys, keys_apart, values, values_apart, out, highest, total = (
        integers(job, _FIELDS)
    )
    part, kind = piece // kinds, piece % kinds
    first, last = tokens * part // parts, tokens * (part + 1) // parts
    k = floats(keys + kind * keys_apart + 4 * first * width, last - first, width)
    v = floats(values + kind * values_apart + 4 * first * depth, last - first, depth)
    to = floats(out + 4 * piece * share * depth, share, depth)
    most, sums = floats(highest + 4 * piece * share, 1, share)[0], floats(total + 4 * piece * share, 1, share)[0]
    attend(floats(q + 4 * kind * share * width, share, width), k, v, float32(1), to, most, sums)


@njit(**_THE_SAME)
def _attend_in_stretches(board, function, job, q, scale, scaled, parts_out, highest, total, out):
    """out [H, V] of q [H, D]; the job knows where keys and values are. The others are room to work in."""
    heads, width = q.shape
    kinds, parts, depth = job[_KINDS], job[_PARTS], job[_DEPTH]
    for h in range(heads):
        for i in range(width):
            scaled[h, i] = q[h, i] * float32(scale)
    job[_Q], job[_OUT] = scaled.ctypes.data, parts_out.ctypes.data
    job[_HIGHEST], job[_TOTAL] = highest.ctypes.data, total.ctypes.data
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


@njit(**_LOOP)
def _parts(tokens, most):
    return max(1, min(tokens // LEAST_STRETCH, most))


def attention_of_one(q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float) -> np.ndarray:
    """Attention of one token, on all threads where that is worth while: float32 [H, V].

    q is [H, D], keys [K, T, D], values [K, T, V], float32; the keys and values of a head have to be contiguous.
    """
    (heads, width), (kinds, tokens, depth) = q.shape, values.shape
    most_parts = -(-2 * cores() // kinds)
    job = np.array([kinds, heads // kinds, tokens, _parts(tokens, most_parts), width, depth, *[0] * 8], np.int64)
    job[_KEYS : _KEYS + 2] = keys.ctypes.data, keys.strides[0]
    job[_VALUES : _VALUES + 2] = values.ctypes.data, values.strides[0]
    parts_out = np.empty((most_parts, heads, depth), np.float32)
    highest, total = np.empty((2, most_parts, heads), np.float32)
    out, scaled = np.empty((heads, depth), np.float32), np.empty_like(q)
    work_of_a_token = 2 * heads * width  # a key and a value are touched for every head: about two weights' worth each
    with board(work_of_a_token * tokens) as crew:
        _attend_in_stretches(crew, _one_stretch.address, job, q, scale, scaled, parts_out, highest, total, out)
    if tape.current is not None:
        layer, sizes = (
            tape.current.cache_of(keys, values),
            [*q.shape, most_parts, depth, WORTH_A_CREW // work_of_a_token],
        )
        room = [scaled, parts_out, highest, total, out]
        arguments = [layer, float(scale), _one_stretch.address, job, q, *room, *sizes]
        tape.current.native(_attend_again, arguments, [q], [out])
    return out


@cfunc(STEP, **_CALLED)
def _attend_again(argument, moment):
    """Attention of one token to a KV cache that holds it already."""
    layer, _, function, at, q, scaled, parts_out, highest, total, out, heads, width, most_parts, depth, few = integers(
        argument, 15
    )
    here = integers(moment, CACHES + CACHE_FIELDS * (layer + 1))
    job = integers(at, _FIELDS)
    job[_TOKENS] = here[POSITION] + 1
    job[_PARTS] = _parts(job[_TOKENS], most_parts)
    job[_KEYS : _KEYS + CACHE_FIELDS] = here[CACHES + CACHE_FIELDS * layer :]
    crew = board_of(moment, job[_TOKENS] > few)
    stretches = floats(parts_out, most_parts * heads, depth).reshape(most_parts, heads, depth)
    _attend_in_stretches(
        crew,
        function,
        job,
        floats(q, heads, width),
        number(argument + 8),
        floats(scaled, heads, width),
        stretches,
        floats(highest, most_parts, heads),
        floats(total, most_parts, heads),
        floats(out, heads, depth),
    )


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


def note_norm(rows: np.ndarray, weight: np.ndarray, eps: float, out: np.ndarray) -> None:
    """Tell the tape of `rms_norm`."""
    if tape.current is not None:
        arguments = [rows, weight, out, *rows.shape, float(eps)]
        tape.current.native(_norm_again, arguments, [rows], [out])


@cfunc(STEP, **_CALLED)
def _norm_again(argument, moment):
    x, weight, out, rows, width = integers(argument, 5)
    rms_norm(floats(x, rows, width), floats(weight, 1, width)[0], number(argument + 40), floats(out, rows, width))


def note_rotation(x: np.ndarray, cosines: np.ndarray, sines: np.ndarray, traditional: bool, out: np.ndarray) -> None:
    """Tell the tape of `rotate` for x [H, 1, D]."""
    if tape.current is not None:
        arguments = [x, cosines, sines, out, len(x), x.shape[-1], cosines.shape[-1], traditional]
        tape.current.native(_rotate_again, arguments, [x, cosines, sines], [out])


@cfunc(STEP, **_CALLED)
def _rotate_again(argument, moment):
    x, cosines, sines, out, heads, width, half, traditional = integers(argument, 8)
    rotate(
        floats(x, heads, width).reshape(heads, 1, width),
        floats(cosines, 1, half),
        floats(sines, 1, half),
        traditional != 0,
        floats(out, heads, width).reshape(heads, 1, width),
    )
