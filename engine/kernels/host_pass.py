"""A forward pass on the host: mlx-lm's model code, run on NumPy arrays.

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

from engine.kernels.host_array import HostArray, host, host_aware, host_mx, to_mlx, with_mlx_arrays
from engine.kernels.routing import whole_or_on_mlx

log = logging.getLogger("pagoda.engine")

# How far the host's logits may be from MLX's, relative to the largest: float32 sums in another order.
TOLERANCE = 1e-4
# Where in the vocabulary the sequences that are compared begin.
_SEQUENCES = (0.5, 0.25, 0.1)
# A function that uses one of these chooses experts: see routing.
_CHOOSING = ("argpartition", "topk", "sort")
_kv_cache: Any = KVCache
_update_on_mlx = KVCache.update_and_fetch


class HostPass:
    """Runs one sequence of one model on the host, once `check` has found that it can."""

    def __init__(self) -> None:
        self.usable = False
        self._going_on = False
        self._with_logits = True
        self._exchanges: list[tuple[dict[str, Any], str, Any, Any]] = []

    def on_host(self) -> bool:
        """Whether the pass going on runs on the host."""
        return self._going_on

    def wants_logits(self) -> bool:
        """Whether the output layer has to be computed; for the chunks of a prompt nobody looks at it."""
        return self._with_logits

    def fits(self, tokens: mx.array, cache: list | None) -> bool:
        """Whether this call is about a single sequence, with caches that the host can write."""
        return self.usable and tokens.shape[0] == 1 and cache is not None and all(type(c) is KVCache for c in cache)

    def run(self, forward: Callable[..., Any], tokens: mx.array, cache: list, with_logits: bool = True) -> mx.array:
        """`forward(tokens, cache=cache)` on the host: logits [1, L, V], all zero unless they are wanted."""
        self._with_logits = with_logits
        try:
            with self._exchanged():
                logits = forward(tokens, cache=cache)
        finally:
            self._with_logits = True
        return to_mlx(logits) if with_logits else mx.zeros(logits.shape)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Several passes may go on at once in here, all of them on the host."""
        with self._exchanged():
            yield

    def check(
        self, model: nn.Module, forward: Callable[..., Any], after_chunk: Callable[[], None] = lambda: None
    ) -> None:
        """Compare a few chunks and single tokens with MLX's results; remember whether the host can run this model.

        `after_chunk` is called whenever one has been compared. One sequence that agrees is enough: some tokens are so
        touchy that nobody could agree on them: on the default model's <reponame>, hardly trained, MLX's own float32
        is 3e-4 from float64 and the host's 7e-5, either 3e-6 on ordinary words; and random weights have near-ties.
        """
        self._exchanges = list(_exchanges())
        self.usable = True
        embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.QuantizedEmbedding)]
        vocabulary = max((m.weight.shape[0] for m in embeddings), default=10)
        try:
            for share in _SEQUENCES:
                apart = self._apart(model, forward, int(vocabulary * share), after_chunk)
                if apart <= TOLERANCE:
                    return
                log.info("from token %d the host is %.1e from MLX", vocabulary * share, apart)
        except Exception as error:
            log.info("the host can't run this model: %s: %s", type(error).__name__, error)
        self.usable = False

    def _apart(
        self, model: nn.Module, forward: Callable[..., Any], first: int, after_chunk: Callable[[], None]
    ) -> float:
        """How far logits of a sequence that begins at token `first` are from MLX's, relative to the largest."""
        on_mlx, on_host = make_prompt_cache(model), make_prompt_cache(model)
        most = 0.0
        for chunk in ([0, 1, 2], [3, 4], [5], [6]):
            tokens = mx.array([[first + number for number in chunk]])
            if not self.fits(tokens, on_host):
                raise TypeError(f"there is no form of {type(on_host[0]).__name__} for it")
            right = np.array(forward(tokens, cache=on_mlx))
            got = np.array(self.run(forward, tokens, on_host))
            most = float(np.maximum(most, np.abs(got - right).max() / np.abs(right).max()))  # NaN stays NaN
            after_chunk()
        return most

    @contextmanager
    def _exchanged(self) -> Iterator[None]:
        if self._going_on:  # one of several passes that go on together
            yield
            return
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
                on_host = _uncompiled(value)
                if chooses:
                    on_host = whole_or_on_mlx(on_host, with_mlx_arrays(value))
                yield names, name, value, host_aware(value, on_host)


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
    """KVCache.update_and_fetch, written in place into memory that only this cache has."""
    if type(keys) is not HostArray:
        return _update_on_mlx(cache, keys, values)
    start, end = cache.offset, cache.offset + keys.shape[2]
    mine = getattr(cache, "_host", None)
    if mine is None or mine[0] is not cache.keys or end > cache.keys.shape[2]:
        cache.keys = _own(cache.keys, keys, start, end, cache.step)
        cache.values = _own(cache.values, values, start, end, cache.step)
        mine = cache._host = (cache.keys, host(cache.keys), host(cache.values))
    _, k, v = mine
    k[..., start:end, :] = keys
    v[..., start:end, :] = values
    cache.offset = end
    return k[..., :end, :], v[..., :end, :]


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
        host(mine)[..., :used, :] = host(old[..., :used, :])
    return mine
