"""Pagoda itself, by the functions its worker uses. `experts` instead of a budget in bytes: see engine.load."""

import json
import sys
from pathlib import Path

import mlx.core as mx
from measured import arguments, report
from mlx_lm.models.cache import make_prompt_cache

from engine.decode import prefill
from engine.loader import load

folder, prompt, tokens, memory_bytes, warm = arguments()
experts = json.loads(Path(sys.argv[1]).read_text()).get("experts")
model = load(folder, memory_bytes=memory_bytes or "auto", expert_bytes=experts)
cache = make_prompt_cache(model)


def write(token: int) -> int:
    return int(mx.argmax(model(mx.array([[token]]), cache=cache)[0, -1]))


def read(ids: list[int]) -> int:
    for _ in prefill(model, ids[:-1], cache):
        pass
    return write(ids[-1])


if warm:
    read(prompt)
    cache = make_prompt_cache(model)
report(read, write, prompt, tokens)
