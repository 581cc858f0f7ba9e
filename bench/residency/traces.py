"""Router traces: recorded from a real model while it writes, and synthetic ones with favourites that move."""

from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from bench.residency.policies import Trace
from engine.loader import load
from engine.slots import SlotStore

PROMPTS = (
    "What is a lighthouse, and who looks after it?",
    "Write a short story about a fox that learns to swim.",
    "Explain in three steps how bread is baked.",
    "def quicksort(items):",
    "Translate into French: The weather is fine today.",
)


def recorded(folder: Path, tokens_each: int = 60) -> Trace:
    """What the routers chose for each token of greedy replies to PROMPTS; prompts themselves are left out."""
    model = load(folder, expert_bytes="all")
    trace: Trace = []
    note = SlotStore.note

    def watched(store: SlotStore, place: int, chosen: np.ndarray) -> None:
        trace[-1].extend((place, int(expert)) for expert in np.sort(chosen[-1]))
        note(store, place, chosen)

    SlotStore.note = watched
    try:
        for prompt in PROMPTS:
            cache = make_prompt_cache(model)
            ids = model.tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
            trace.append([])
            token = int(mx.argmax(model(mx.array([ids]), cache=cache)[0, -1]))
            trace.pop()
            for _ in range(tokens_each):
                trace.append([])
                token = int(mx.argmax(model(mx.array([[token]]), cache=cache)[0, -1]))
    finally:
        SlotStore.note = note
        model.close()
    return trace


def synthetic(
    layers: int, experts: int, top_k: int, passes: int, zipf: float, drift_every: int = 0, stickiness: float = 0.0
) -> Trace:
    """Each pass draws top_k experts a layer by Zipf's law with exponent `zipf`.

    Every `drift_every` passes the favourites change; with `stickiness` an expert of the last pass is kept, as real
    routers do from token to token.
    """
    rng = np.random.default_rng(0)
    favour = [rng.permutation(np.arange(1, experts + 1) ** -zipf) for _ in range(layers)]
    last: list[list[int]] = [[] for _ in range(layers)]
    trace: Trace = []
    for number in range(passes):
        if drift_every and number and number % drift_every == 0:
            favour = [rng.permutation(weights) for weights in favour]
        one_pass = []
        for layer, weights in enumerate(favour):
            kept = [expert for expert in last[layer] if rng.random() < stickiness]
            rest = weights.copy()
            rest[kept] = 0
            drawn = rng.choice(experts, top_k - len(kept), replace=False, p=rest / rest.sum()).tolist()
            last[layer] = kept + drawn
            one_pass.extend((layer, expert) for expert in sorted(last[layer]))
        trace.append(one_pass)
    return trace
