"""From what a person or a model's author asked for to mlx-lm's sampler and logits processors.

Each token is drawn with a seed of its own, made of the run's seed and the token's position, so that a reply which was
cut off goes on exactly as it would have.
"""

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from engine.constraint import Constraint
from engine.events import Sampling

# mlx-lm looks 20 tokens back, too few to keep a small model from repeating a sentence; llama.cpp's default is 64.
PENALTY_WINDOW = 64

# Dividing by less overflows float32, and a smaller top-p is lost beside 1: both mean the likeliest token.
NEARLY_GREEDY = 1e-4

_GENERATION_CONFIG = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def model_defaults(folder: Path) -> Sampling:
    """What the model's own generation_config.json asks for; greedy where it does not sample."""
    try:
        raw = json.loads((folder / "generation_config.json").read_text())
    except (OSError, ValueError):
        return Sampling()
    if not isinstance(raw, dict):
        return Sampling()
    numbers = {
        ours: raw[theirs] for theirs, ours in _GENERATION_CONFIG.items() if type(raw.get(theirs)) in (int, float)
    }
    if raw.get("do_sample") is False:
        numbers["temperature"] = 0.0
    return Sampling(**numbers)


def merged(wish: Sampling, defaults: Sampling) -> Sampling:
    """`wish`, with `defaults` where it says nothing."""
    gaps = {
        name: getattr(defaults, name)
        for name in Sampling.__dataclass_fields__
        if getattr(wish, name) is None and getattr(defaults, name) is not None
    }
    return replace(wish, **gaps)


@dataclass(frozen=True)
class Sampler:
    """Chooses the next token of one run."""

    draw: Callable[[mx.array], mx.array]
    processors: tuple[Callable[[mx.array, mx.array], mx.array], ...]
    seed: int
    constraint: Constraint | None = None

    @property
    def over(self) -> bool:
        """Whether nothing may follow."""
        return self.constraint is not None and self.constraint.over

    def __call__(self, tokens: list[int], logits: mx.array) -> int:
        """The token after `tokens`, from `logits` [V]. One call for each token of the reply, in order."""
        row = logits[None].astype(mx.float32)
        if self.processors:
            history = mx.array(tokens[-PENALTY_WINDOW:])
            for process in self.processors:
                row = process(history, row)
        if self.constraint is not None:
            row = self.constraint.mask(row)
        logprobs = row - mx.logsumexp(row, axis=-1, keepdims=True)
        mx.random.seed((self.seed * 1_000_003 + len(tokens)) % (1 << 63))
        token = int(self.draw(logprobs)[0])
        if self.constraint is not None:
            self.constraint.take(token)
        return token


def make(wish: Sampling, vocabulary: int, constraint: Constraint | None = None) -> Sampler:
    """The sampler for a merged wish over `vocabulary` tokens; without a seed, a random one."""
    temperature, top_p, top_k = wish.temperature or 0.0, wish.top_p or 0.0, wish.top_k or 0
    if temperature < NEARLY_GREEDY or 0 < top_p < NEARLY_GREEDY:
        temperature = 0.0
    if top_k >= vocabulary:
        top_k = 0  # all tokens: no choice at all
    draw = make_sampler(temp=temperature, top_p=top_p, min_p=wish.min_p or 0.0, top_k=top_k)
    repetition = wish.repetition_penalty
    processors = make_logits_processors(
        repetition_penalty=None if repetition == 1 else repetition,
        repetition_context_size=PENALTY_WINDOW,
        presence_penalty=wish.presence_penalty,
        presence_context_size=PENALTY_WINDOW,
        frequency_penalty=wish.frequency_penalty,
        frequency_context_size=PENALTY_WINDOW,
        logit_bias={int(token): float(bias) for token, bias in wish.logit_bias} or None,
    )
    seed = secrets.randbits(40) if wish.seed is None else wish.seed
    return Sampler(draw, tuple(processors), seed, constraint)
