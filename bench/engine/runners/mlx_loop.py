"""The greedy loop over a model that is called as mlx-lm's are: what the engines built on MLX share."""

from typing import Any

import mlx.core as mx
from measured import report
from mlx_lm.models.cache import make_prompt_cache


def measure(model: Any, prompt: list[int], tokens: int, warm: bool, chunk: int | None) -> None:
    """Report on model(ids [1, L], cache=...) -> logits [1, L, V]: the prompt read `chunk` tokens at a time, its last
    token alone; None: all at once."""
    cache = make_prompt_cache(model)

    def step(ids: list[int]) -> int:
        start = 0
        while chunk and start < len(ids) - 1:
            stop = min(start + chunk, len(ids) - 1)
            model(mx.array([ids[start:stop]]), cache=cache)
            mx.eval([c.state for c in cache])
            start = stop
        return int(mx.argmax(model(mx.array([ids[start:]]), cache=cache)[0, -1]))

    if warm:
        step(prompt[:4])
        cache = make_prompt_cache(model)
    report(step, lambda token: step([token]), prompt, tokens)
