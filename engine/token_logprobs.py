"""How likely the model found a token, and which ones it found likeliest: its own numbers, before any sampling."""

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper


def logprobs(logits: mx.array, token: int, top: int, tokenizer: TokenizerWrapper) -> tuple[tuple[int, str, float], ...]:
    """(id, text, log probability) of `token`, then of the `top` likeliest, from `logits` [V]."""
    row = np.array(logits.astype(mx.float32)).astype(np.float64)
    row -= row.max()
    row -= np.log(np.exp(row).sum())
    best = np.argpartition(-row, min(top, len(row) - 1))[:top]
    best = best[np.argsort(-row[best], kind="stable")]
    return tuple((int(id), tokenizer.decode([int(id)]), float(row[id])) for id in (token, *best))
