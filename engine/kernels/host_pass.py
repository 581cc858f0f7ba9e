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

from engine.errors import EngineError
from engine.kernels import kv_store, replay
from engine.kernels.host_array import host_aware, host_mx, to_mlx, with_mlx_arrays
from engine.kernels.kv_store import update_on_host, update_on_mlx
from engine.kernels.routing import whole_or_on_mlx

log = logging.getLogger("pagoda.engine")

# How far the host's logits may be from MLX's, relative to the largest: float32 sums in another order.
TOLERANCE = 1e-4
# Where in the vocabulary the sequences that are compared begin.
_SEQUENCES = (0.5, 0.25, 0.1)
# A function that uses one of these chooses experts: see routing.
_CHOOSING = ("argpartition", "topk", "sort")
# A model's code is given so many tokens to be recorded; near-ties of its router may spoil one.
_RECORDINGS = 3
# What was recorded has to give the same bits as the model's code for so many tokens.
_PROOFS = 2
_kv_cache: Any = KVCache


class HostPass:
    """Runs one sequence of one model on the host, once `check` has found that it can."""

    def __init__(self) -> None:
        self.usable = False
        self._going_on = False
        self._with_logits = True
        self._exchanges: list[tuple[dict[str, Any], str, Any, Any]] = []
        self._replay: replay.Replay | None = None
        self._recordings = self._proofs = 0

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
        if with_logits and tokens.shape[1] == 1 and not self._going_on and replay.ready(cache):
            return self._one(forward, tokens, cache)
        return self._as_written(forward, tokens, cache, with_logits)

    def _as_written(self, forward: Callable[..., Any], tokens: mx.array, cache: list, with_logits: bool) -> mx.array:
        """The model's code, run on the host."""
        self._with_logits = with_logits
        try:
            with self._exchanged():
                logits = forward(tokens, cache=cache)
        finally:
            self._with_logits = True
        return to_mlx(logits) if with_logits else mx.zeros(logits.shape)

    def _one(self, forward: Callable[..., Any], tokens: mx.array, cache: list) -> mx.array:
        """One token: recorded, or, once that was proved to give the very same, repeated."""
        if self._replay is not None:
            if self._proofs < _PROOFS:
                return self._proved(self._replay, forward, tokens, cache)
            with self._exchanged():
                return to_mlx(self._replay.run(_token_of(tokens), cache))
        if self._recordings < _RECORDINGS:
            self._recordings += 1
            try:
                with self._exchanged():
                    self._replay, logits = replay.record(forward, tokens, cache)
                return to_mlx(logits)
            except EngineError:
                raise
            except Exception as error:
                log.info("a token of this model can't be recorded: %s: %s", type(error).__name__, error)
        return self._as_written(forward, tokens, cache, with_logits=True)

    def _proved(self, recorded: replay.Replay, forward: Callable[..., Any], tokens: mx.array, cache: list) -> mx.array:
        """The logits as the model's code gives them; and whether repeating what was recorded gives their very bits."""
        position = cache[0].offset
        logits = self._as_written(forward, tokens, cache, with_logits=True)
        rows = [row for c in cache for row in kv_store.rows_at(c, position)]
        right = [row.copy() for row in rows]
        for c in cache:
            c.offset = position
        with self._exchanged():
            repeated = recorded.run(_token_of(tokens), cache)
        pairs = [(repeated, np.array(logits)), *zip(rows, right, strict=True)]
        self._proofs += 1
        if not all(np.array_equal(got, wanted) for got, wanted in pairs):
            apart = [float(np.abs(got - wanted).max()) for got, wanted in pairs]
            log.info("a recorded token of this model does not give the same bits: %s", apart)
            self._replay, self._recordings = None, _RECORDINGS
            for row, bits in zip(rows, right, strict=True):
                row[...] = bits
        return logits

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
        for chunk in ([0, 1, 2], [3, 4], [5], [6], [7]):
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
        _kv_cache.update_and_fetch = update_on_host
        self._going_on = True
        try:
            yield
        finally:
            self._going_on = False
            _kv_cache.update_and_fetch = update_on_mlx
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


def _token_of(tokens: mx.array) -> int:
    return int(np.array(tokens)[0, 0])
