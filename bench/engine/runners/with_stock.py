"""mlx-lm as it is, with all weights in memory: the reference for tokens and for speed."""

import mlx.core as mx
from measured import arguments, report
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

folder, prompt, tokens, _, warm = arguments()
model, *_ = load(folder)
cache = make_prompt_cache(model)


def step(ids: list[int]) -> int:
    for start in range(0, len(ids) - 1, 512):
        model(mx.array([ids[start : min(start + 512, len(ids) - 1)]]), cache=cache)
        mx.eval([c.state for c in cache])
    return int(mx.argmax(model(mx.array([ids[-1:]]), cache=cache)[0, -1]))


if warm:
    step(prompt[:4])
    cache = make_prompt_cache(model)
report(step, lambda token: step([token]), prompt, tokens)
