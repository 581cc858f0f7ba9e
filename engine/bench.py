"""How fast a model runs under a budget: prompt, tokens, bytes, and what the disk and the memory would have allowed."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from engine import inspection, machine, memory
from engine.decode import prefill
from engine.loader import PagedModel, load


@dataclass(frozen=True)
class Result:
    """`limit_tokens_per_s` is what the measured disk and memory bandwidth allow for the bytes that had to move.

    `prefetch_hit_rate` is None when nothing was prefetched. With a `batch` of several sequences, tokens a second
    are those of all together, `tpot_s_p50` is the time until each has its next one, and `tokens` are the first one's.
    """

    model: str
    model_path: str
    device: str
    budget_bytes: int
    trunk_bytes: int
    expert_bytes: int
    slot_bytes: int
    peak_rss_bytes: int
    load_s: float
    batch: int
    prompt_tokens: int
    ttft_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    tpot_s_p50: float
    bytes_read_per_token: float
    expert_hit_rate: float
    prefetch_hit_rate: float | None
    disk_bytes_per_s: float
    memory_bytes_per_s: float
    limit_tokens_per_s: float
    limit_ratio: float
    tokens: list[int]

    def to_dict(self) -> dict:
        return asdict(self)


def bench(
    folder: Path,
    *,
    memory_bytes: int | None = None,
    expert_bytes: int | float | str | None = None,
    prompt_tokens: int = 128,
    tokens: int = 64,
    batch: int = 1,
    lookahead: bool | None = None,
) -> Result:
    """Load, read a random prompt for each of `batch` sequences (seed 0, 1, ...), write `tokens` greedy tokens of each,
    all together, measure. Raises EngineError."""
    opened_at = perf_counter()
    budget = "auto" if memory_bytes is None else memory_bytes
    model = load(folder, memory_bytes=budget, expert_bytes=expert_bytes, lookahead=lookahead)
    load_s = perf_counter() - opened_at
    sizes = model.sizes
    made = [random_prompt(model, prompt_tokens, seed) for seed in range(batch)]
    prompt_length = len(made[0])

    states, started = [make_prompt_cache(model) for _ in made], perf_counter()
    for one, state in zip(made, states, strict=True):
        for _ in prefill(model, one[:-1], state):
            pass
    times: list[float] = []
    first, before = 0.0, (0, 0, 0)
    for _ in range(tokens):
        for one, logits in zip(made, model.next_logits([one[-1] for one in made], states), strict=True):
            one.append(int(mx.argmax(logits)))
        times.append(perf_counter())
        if len(times) == 1:
            first, before = times[0] - started, _moved(model)
    read, hits, reads = (now - then for now, then in zip(_moved(model), before, strict=True))
    peak, prefetch_hit_rate = memory.peak_rss_bytes(), model.stats().prefetch_hit_rate
    model.close()

    gaps = [b - a for a, b in pairwise(times)]
    per_token = sum(gaps) / len(gaps) / batch if gaps else 0.0
    read_per_token = read / len(gaps) / batch if gaps else 0.0
    looked_at = inspection.inspect(folder, memory_bytes)
    disk, ram = looked_at.disk_bytes_per_s, machine.memory_speed()
    limit = inspection.limit(sizes.trunk_bytes + looked_at.expert_bytes_per_token, read_per_token, disk, ram)
    speed = 1 / per_token if per_token else 0.0
    return Result(
        model=folder.name,
        model_path=str(folder),
        device=machine.device_name(),
        budget_bytes=sizes.budget_bytes,
        trunk_bytes=sizes.trunk_bytes,
        expert_bytes=sizes.expert_bytes,
        slot_bytes=sizes.slot_bytes,
        peak_rss_bytes=peak,
        load_s=load_s,
        batch=batch,
        prompt_tokens=prompt_length,
        ttft_s=first,
        prefill_tokens_per_s=prompt_length * batch / first,
        decode_tokens_per_s=speed,
        tpot_s_p50=sorted(gaps)[len(gaps) // 2] if gaps else 0.0,
        bytes_read_per_token=read_per_token,
        expert_hit_rate=hits / (hits + reads) if hits + reads else 1.0,
        prefetch_hit_rate=prefetch_hit_rate,
        disk_bytes_per_s=disk,
        memory_bytes_per_s=ram,
        limit_tokens_per_s=limit,
        limit_ratio=speed / limit,
        tokens=made[0][prompt_length:],
    )


def random_prompt(model: PagedModel, tokens: int, seed: int = 0) -> list[int]:
    """At least two ids that the model knows, none of them special in the usual tokenizers."""
    known = model(mx.array([[0]]), cache=make_prompt_cache(model)).shape[-1]
    vocabulary = min(known, len(model.tokenizer))
    return np.random.default_rng(seed).integers(vocabulary // 10, vocabulary // 2, max(tokens, 2)).tolist()


def _moved(model: PagedModel) -> tuple[int, int, int]:
    stats = model.stats()
    return stats.bytes_read, stats.expert_hits, stats.expert_reads
