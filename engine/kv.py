"""What can be done with the state that a model has of the tokens it has read: copy it, cut it back, undo a pass.

A state is mlx-lm's prompt cache: a list with one cache a layer. A copy shares memory with the original until either is
written to: MLX's arrays are functional, and the host pass writes only behind what it had, into arrays of its own.
"""

import copy
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

State = list[Any]


def can_cut(state: State) -> bool:
    """Whether the state can be cut back to fewer tokens; a window that has moved and a recurrence forgot too much."""
    return all(_can_cut(c) for c in state)


def _can_cut(cache: Any) -> bool:
    if isinstance(cache, CacheList):
        return can_cut(list(cache.caches))
    if isinstance(cache, ChunkedKVCache):
        return cache.start_position == 0
    return isinstance(cache, KVCache | RotatingKVCache) and cache.is_trimmable()


def always_cuttable(state: State) -> bool:
    """Whether the state of any number of tokens can be cut back."""
    return all(type(c) is KVCache for one in state for c in (one.caches if isinstance(one, CacheList) else (one,)))


def copied(state: State, tokens: int, cut: int = 0) -> State:
    """A copy of a state of `tokens` tokens, less the last `cut` of them (which `can_cut` allows)."""
    return [_copied(c, tokens - cut, cut) for c in state]


def _copied(cache: Any, tokens: int, cut: int) -> Any:
    if type(cache) is KVCache:
        if cache.keys is None or cache.values is None:
            return KVCache()
        return KVCache.from_state((cache.keys[..., :tokens, :], cache.values[..., :tokens, :], tokens))
    if hasattr(cache, "from_state"):
        mine = type(cache).from_state(tree_map(_same, cache.state))
    else:
        mine = copy.deepcopy(cache)
    if cut:
        mine.trim(cut)
    return mine


def _same(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, mx.array) else value


def can_store(state: State) -> bool:
    """Whether the state can be written and read back: see `stored`."""
    return all(_is_mlx_lms(c) or _attributes(c) is not None for c in state)


def stored(state: State) -> State:
    """The state in kinds of caches that mlx-lm can read back: it knows its own alone. A cache that a model has of its
    own kind becomes the arrays and numbers that are its attributes, by their names' order."""
    return [c if _is_mlx_lms(c) else _as_arrays(c) for c in state]


def restored(state: Any, like: State) -> State:
    """What was `stored`, as caches of the kinds in `like`, an empty state of the same model. Raises ValueError."""
    if not isinstance(state, list) or len(state) != len(like):
        raise ValueError("it is of other layers")
    return [c if _is_mlx_lms(empty) else _from_arrays(c, empty) for c, empty in zip(state, like, strict=True)]


def _is_mlx_lms(cache: Any) -> bool:
    inner = cache.caches if isinstance(cache, CacheList) else (cache,)
    return all(type(c).__module__ == KVCache.__module__ for c in inner)


def _attributes(cache: Any) -> dict[str, Any] | None:
    """All that a cache consists of, where it is nothing but arrays, numbers and None."""
    found = dict(sorted(vars(cache).items())) if hasattr(cache, "__dict__") else {}
    plain = all(value is None or isinstance(value, mx.array | int) for value in found.values())
    return found if found and plain else None


def _as_arrays(cache: Any) -> ArraysCache:
    values = list((_attributes(cache) or {}).values())
    arrays = ArraysCache(len(values))
    for number, value in enumerate(values):
        arrays[number] = mx.array(value) if isinstance(value, int) else value
    return arrays


def _from_arrays(arrays: Any, empty: Any) -> Any:
    names = _attributes(empty)
    if type(arrays) is not ArraysCache or names is None or len(arrays.cache) != len(names):
        raise ValueError("it is of other layers")
    mine = copy.deepcopy(empty)
    for (name, value), array in zip(names.items(), arrays.cache, strict=True):
        setattr(mine, name, int(np.array(array)) if isinstance(value, int) else array)
    return mine


def cut(state: State, tokens: int) -> None:
    """Let whole KV caches hold no more than the first `tokens`."""
    for cache in state:
        cache.offset = min(cache.offset, tokens)


def compact(state: State) -> State:
    """A copy that holds no more memory than it needs, evaluated: another thread may write it down."""
    arrays = [_compact(c) for c in state]
    mx.eval(arrays_of(arrays))
    return arrays


def _compact(cache: Any) -> Any:
    if type(cache) is KVCache and cache.keys is not None and cache.values is not None:
        keys, values = (mx.contiguous(part[..., : cache.offset, :]) for part in (cache.keys, cache.values))
        return KVCache.from_state((keys, values, cache.offset))
    return (
        type(cache).from_state(tree_map(_same, cache.state)) if hasattr(cache, "from_state") else copy.deepcopy(cache)
    )


def arrays_of(state: State) -> list[mx.array]:
    """All arrays of a state."""
    leaves: Any = tree_flatten([c.state for c in state])
    return [value for _, value in leaves if isinstance(value, mx.array)]


def nbytes(state: State) -> int:
    """The memory that a state takes, with the room it has to grow."""
    return sum(array.nbytes for array in arrays_of(state))


def undo(state: State, before_prompt: bool) -> Callable[[], bool]:
    """Remember the state before a pass that may break off in the middle. The function that this returns brings it
    back and says whether it could.

    `before_prompt`: the pass is a chunk of a prompt. A window that wraps is remembered only then: for every single
    token that would cost a copy of it.
    """
    undos = [_undo(c, before_prompt) for c in state]
    return lambda: all([each() for each in undos])


def _undo(cache: Any, before_prompt: bool) -> Callable[[], bool]:
    if type(cache) is KVCache:
        offset = cache.offset

        def cut() -> bool:
            cache.offset = offset
            return True

        return cut
    if type(cache) is ArraysCache:
        arrays, lengths, padding = list(cache.cache), cache.lengths, cache.left_padding

        def put_back() -> bool:
            cache.cache, cache.lengths, cache.left_padding = arrays, lengths, padding
            return True

        return put_back
    if not before_prompt:
        return lambda: False
    remembered = vars(_copied(cache, 0, 0) if hasattr(cache, "from_state") else copy.deepcopy(cache))

    def restore() -> bool:
        vars(cache).update(remembered)
        return True

    return restore


def same_kind(state: State, other: State) -> bool:
    """Whether two states are of the same model's layers."""
    return [_kind(c) for c in state] == [_kind(c) for c in other]


def _kind(cache: Any) -> Any:
    return (type(cache), *map(_kind, cache.caches)) if isinstance(cache, CacheList) else type(cache)
