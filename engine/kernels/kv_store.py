"""KV caches that the host writes: mlx-lm's KVCache, its arrays grown and written in place."""

from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache
from numba import cfunc

from engine.kernels import tape
from engine.kernels.addresses import CACHE_FIELDS, CACHES, POSITION, STEP, floats, integers
from engine.kernels.host_array import HostArray, host

update_on_mlx = KVCache.update_and_fetch


def update_on_host(cache: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    """KVCache.update_and_fetch, written in place into memory that only this cache has."""
    if type(keys) is not HostArray:
        if tape.current is not None:
            raise tape.CannotRecord("keys of MLX's")
        return update_on_mlx(cache, keys, values)
    start = int(cache.offset)
    end = start + keys.shape[2]
    if not _is_ours(cache) or end > cache.keys.shape[2]:
        cache.keys = _own(cache.keys, keys, start, end, cache.step)
        cache.values = _own(cache.values, values, start, end, cache.step)
        k, v = host(cache.keys), host(cache.values)
        cache._host = cache.keys, k, v, [n for x in (k, v) for n in (x.ctypes.data, x.strides[1])]
    _, k, v, _ = cache._host
    np.asarray(k)[..., start:end, :] = keys
    np.asarray(v)[..., start:end, :] = values
    if tape.current is not None:
        _note_update(tape.current, cache, keys, values)
    cache.offset = end
    return k[..., :end, :], v[..., :end, :]


def has_room(cache: Any) -> bool:
    """Whether the host has the arrays of this cache, and one more token fits."""
    return _is_ours(cache) and cache.offset < cache.keys.shape[2]


def where(cache: Any) -> list[int]:
    """What the moment says of a cache that has room: see addresses."""
    return cache._host[3]


def rows_at(cache: Any, position: int) -> list[np.ndarray]:
    """Views of the keys and values [H, D] of one token, in a cache that the host has."""
    return [np.asarray(x)[0, :, position] for x in cache._host[1:3]]


def _is_ours(cache: Any) -> bool:
    mine = getattr(cache, "_host", None)
    return mine is not None and mine[0] is cache.keys


def _own(old: mx.array | None, new: HostArray, used: int, needed: int, step: int) -> mx.array:
    """A larger array [B, H, T, D] of our own with what was used of the old one and room for what is needed.

    It grows by a half, so that a long reply copies its cache a few times, not once every `step` tokens.
    """
    room = -(-needed // step) * step
    if old is not None and used and room > old.shape[2]:
        room = max(room, old.shape[2] * 3 // 2 // step * step)
    batch, heads, _, width = new.shape
    mine = mx.zeros((batch, heads, room, width), mx.float32)
    mx.eval(mine)
    if old is not None and used:
        np.asarray(host(mine))[..., :used, :] = host(old[..., :used, :])
    return mine


def _note_update(going: tape.Tape, cache: Any, keys: np.ndarray, values: np.ndarray) -> None:
    layer, (_, kinds, tokens, width), depth = going.number_of(cache), keys.shape, values.shape[-1]
    if len(keys) != 1 or tokens != 1:
        raise tape.CannotRecord("keys of several tokens")
    arguments = [layer, kinds, keys, width, values, depth]
    going.native(_remember, arguments, [keys, values], [])
    going.is_cache(layer, *cache._host[1:3])


@cfunc(STEP, error_model="numpy", cache=True)
def _remember(argument, moment):
    """Write a token's keys [K, D] and values [K, V] to their place in the cache."""
    layer, kinds, keys, width, values, depth = integers(argument, 6)
    here = integers(moment, CACHES + CACHE_FIELDS * (layer + 1))
    k, k_apart, v, v_apart = here[CACHES + CACHE_FIELDS * layer :]
    for kind in range(kinds):
        floats(k + kind * k_apart + 4 * here[POSITION] * width, 1, width)[:] = floats(keys + 4 * kind * width, 1, width)
        floats(v + kind * v_apart + 4 * here[POSITION] * depth, 1, depth)[:] = floats(
            values + 4 * kind * depth, 1, depth
        )
