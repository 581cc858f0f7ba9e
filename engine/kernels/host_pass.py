"""One token's forward pass on the host: mlx-lm's model code, run on NumPy arrays.

For the length of the pass, the names `mx`, compiled functions and the KV cache's update in the modules that the model's
code lives in are exchanged for ones that accept HostArrays. Whether the result is MLX's is checked once per model,
before anyone relies on it; a model whose code can't be run this way goes on with MLX.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache, make_prompt_cache

from engine.kernels.host_array import HostArray, host, host_aware, host_mx, to_mlx

log = logging.getLogger("pagoda.engine")

# How far the host's logits may be from MLX's, relative to the largest: float32 sums in another order.
TOLERANCE = 1e-4
# Functions that choose experts are left to MLX: see host_array.
_CHOOSING = ("softmax", "sigmoid", "argpartition", "topk", "sort")
_kv_cache: Any = KVCache
_update_on_mlx = KVCache.update_and_fetch


class HostPass:
    """Runs single tokens of one model on the host, once `check` has found that it can."""

    def __init__(self) -> None:
        self.usable = False
        self._going_on = False
        self._exchanges: list[tuple[dict[str, Any], str, Any, Any]] = []

    def on_host(self) -> bool:
        """Whether the pass going on runs on the host."""
        return self._going_on

    def fits(self, tokens: mx.array, cache: list | None) -> bool:
        """Whether this call is a single token of a single sequence, with caches that the host can write."""
        return self.usable and tokens.shape == (1, 1) and cache is not None and all(type(c) is KVCache for c in cache)

    def run(self, forward: Callable[..., Any], tokens: mx.array, cache: list) -> mx.array:
        """`forward(tokens, cache=cache)` on the host: logits [1, 1, V]."""
        with self._exchanged():
            logits = forward(tokens, cache=cache)
        return to_mlx(logits)

    def check(self, model: nn.Module, forward: Callable[..., Any]) -> None:
        """Compare two tokens with MLX's result and remember whether the host can be used for this model."""
        self._exchanges = list(_exchanges())
        caches = [make_prompt_cache(model) for _ in range(2)]
        vocabulary = np.arange(3, 8)
        try:
            for cache in caches:
                mx.eval(forward(mx.array([vocabulary[:3].tolist()]), cache=cache))
            for token in vocabulary[3:].tolist():
                right = np.array(forward(mx.array([[token]]), cache=caches[0]))
                self.usable = True
                if not self.fits(mx.array([[token]]), caches[1]):
                    raise TypeError(f"the host has no form of {type(caches[1][0]).__name__}")
                got = np.array(self.run(forward, mx.array([[token]]), caches[1]))
                apart = float(np.abs(got - right).max() / np.abs(right).max())
                if not apart <= TOLERANCE:
                    raise ArithmeticError(f"logits differ by {apart:.1e}")
        except Exception as error:
            self.usable = False
            log.info("single tokens run on MLX, not on the host: %s: %s", type(error).__name__, error)

    @contextmanager
    def _exchanged(self) -> Iterator[None]:
        for names, name, _, on_host in self._exchanges:
            names[name] = on_host
        _kv_cache.update_and_fetch = _update_on_host
        self._going_on = True
        try:
            yield
        finally:
            self._going_on = False
            _kv_cache.update_and_fetch = _update_on_mlx
            for names, name, on_mlx, _ in self._exchanges:
                names[name] = on_mlx


def _exchanges() -> Iterator[tuple[dict[str, Any], str, Any, Any]]:
    """(module's names, name, what MLX has there, what the host has there) of every module of models and layers."""
    compiled: Any = type(mx.compile(lambda x: x))
    for module in _modules():
        names = vars(module)
        for name, value in list(names.items()):
            if value is mx:
                yield names, name, value, host_mx
            elif isinstance(value, compiled) and hasattr(value, "__code__"):
                chooses = any(word in function_name for function_name in value.__code__.co_names for word in _CHOOSING)
                yield names, name, value, host_aware(value, None if chooses else _uncompiled(value))


def _modules() -> list[ModuleType]:
    return [module for name, module in list(sys.modules.items()) if name.startswith(("mlx_lm.models.", "mlx.nn"))]


def _uncompiled(function: Any) -> FunctionType:
    """The Python function that mx.compile was given; its module's `mx` is exchanged with the others."""
    plain = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    plain.__kwdefaults__ = function.__kwdefaults__
    return plain


def _update_on_host(cache: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    """KVCache.update_and_fetch for one token, written in place into memory that only this cache has."""
    if type(keys) is not HostArray:
        return _update_on_mlx(cache, keys, values)
    at = cache.offset
    mine = getattr(cache, "_host", None)
    if mine is None or mine[0] is not cache.keys or at >= cache.keys.shape[2]:
        cache.keys = _own(cache.keys, keys, at, cache.step)
        cache.values = _own(cache.values, values, at, cache.step)
        mine = cache._host = (cache.keys, host(cache.keys), host(cache.values))
    _, k, v = mine
    k[..., at, :] = keys[..., 0, :]
    v[..., at, :] = values[..., 0, :]
    cache.offset = at + 1
    return k[..., : at + 1, :], v[..., : at + 1, :]


def _own(old: mx.array | None, new: HostArray, used: int, step: int) -> mx.array:
    """A larger array [B, H, T, D] of our own with what was used of the old one.

    It doubles, so that a long reply copies its cache a few times, not once every `step` tokens.
    """
    room = -(-(used + 1) // step) * step
    if old is not None and room > old.shape[2]:
        room = max(room, 2 * old.shape[2])
    batch, heads, _, width = new.shape
    mine = mx.zeros((batch, heads, room, width), mx.float32)
    mx.eval(mine)
    if old is not None and used:
        host(mine)[..., :used, :] = host(old[..., :used, :])
    return mine
