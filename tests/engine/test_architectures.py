"""Every architecture of mlx-lm with routed experts, paged, against stock mlx-lm with all weights in memory.

Tiny random checkpoints, a prompt of 70 tokens and 8 more steps, at budgets of all, half and the least possible: equal
tokens, logits within 1e-4 of the largest.
"""

from pathlib import Path

import mlx.core as mx
import mlx_lm.utils
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from engine import loader
from engine.decode import prefill
from tests.engine.tiny_checkpoints import architectures, save, tiny_model
from tests.engine.tiny_configs import NEEDS_METAL, OVERRIDES

PROMPT = [(7 * i) % 100 + 5 for i in range(70)]
STEPS = 8


@pytest.fixture(autouse=True, scope="module")
def without_compilation():
    """On a CPU, mx.compile starts a C++ compiler: seconds a function, and the models have dozens."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def greedy(model, chunked: bool = False) -> tuple[list[int], np.ndarray]:
    """The ids that are chosen after the prompt, and the logits they were chosen from."""
    cache = make_prompt_cache(model)
    start = PROMPT
    if chunked:  # as the engine does it: the prompt but for its last token first
        list(prefill(model, PROMPT[:-1], cache))
        start = PROMPT[-1:]
    logits = model(mx.array([start]), cache=cache)[0, -1]
    tokens, seen = [], [np.array(logits.astype(mx.float32))]
    for _ in range(STEPS):
        tokens.append(int(mx.argmax(logits)))
        logits = model(mx.array([tokens[-1:]]), cache=cache)[0, -1]
        seen.append(np.array(logits.astype(mx.float32)))
    return tokens, np.stack(seen)


def assert_paged_equals_stock(folder: Path) -> None:
    stock, _ = mlx_lm.utils.load_model(folder)
    stock.set_dtype(mx.float32)
    tokens, logits = greedy(stock)
    assert np.isfinite(logits).all()
    assert_paged(folder, tokens, logits)


def assert_paged(folder: Path, tokens: list[int], logits: np.ndarray) -> None:
    """At every budget the paged model gives these tokens and logits."""
    for budget in ("all", 0.5, "least"):
        model = loader.load(folder, expert_bytes=budget)
        try:
            got_tokens, got = greedy(model, chunked=budget == 0.5)
            assert model.sizes.expert_bytes > 0
            assert model.stats().expert_reads > 0
        finally:
            model.close()
        apart = np.abs(got - logits).max() / np.abs(logits).max()
        assert apart <= 1e-4, f"at {budget}"
        assert got_tokens == tokens, f"at {budget}"


RUN_HERE = [name for name in architectures() if name not in NEEDS_METAL or mx.metal.is_available()]


@pytest.mark.parametrize("architecture", RUN_HERE)
def test_a_float_checkpoint_pages_exactly(architecture, tmp_path):
    model, config = tiny_model(architecture, mx.bfloat16)
    assert_paged_equals_stock(save(tmp_path, model, config))


@pytest.mark.parametrize("architecture", RUN_HERE)
def test_a_4_bit_checkpoint_pages_exactly(architecture, tmp_path):
    model, config = tiny_model(architecture)
    assert_paged_equals_stock(save(tmp_path, model, config, {"group_size": 32, "bits": 4}))


def test_every_architecture_with_experts_has_a_tiny_config():
    assert len(RUN_HERE) > 50
    assert [name for name in architectures() if name not in OVERRIDES] == []


@pytest.mark.parametrize("architecture", [name for name in NEEDS_METAL if name not in RUN_HERE])
def test_what_mlx_lm_cannot_run_here_is_at_least_understood(architecture, tmp_path):
    model, config = tiny_model(architecture)
    with pytest.raises(RuntimeError, match=NEEDS_METAL[architecture]):
        greedy(model)
    opened = loader.open_model(save(tmp_path, model, config, {"group_size": 32, "bits": 4}))
    assert len(opened.experts) == 2
    assert opened.top_k == 2
    assert any("post_expert_norm" in name for name, _ in opened.trunk)
