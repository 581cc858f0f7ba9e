"""Paged models against stock mlx-lm with all weights in memory: the same tokens, the same logits."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load as load_stock
from mlx_lm.models.cache import make_prompt_cache

import engine
from engine.errors import BudgetError
from engine.fetch import Fetch
from engine.slots import SlotStore

PROMPT = [(7 * i) % 500 + 5 for i in range(70)]


def greedy(model, steps: int = 8) -> tuple[list[int], np.ndarray]:
    """Token ids and the logits they were chosen from, for a prompt of 70 tokens."""
    cache = make_prompt_cache(model)
    logits = model(mx.array([PROMPT]), cache=cache)[0, -1]
    tokens, seen = [], [np.array(logits)]
    for _ in range(steps):
        tokens.append(int(mx.argmax(logits)))
        logits = model(mx.array([tokens[-1:]]), cache=cache)[0, -1]
        seen.append(np.array(logits))
    return tokens, np.stack(seen)


def stock(path: Path) -> tuple[list[int], np.ndarray]:
    model, _ = load_stock(str(path))
    model.set_dtype(mx.float32)
    return greedy(model)


def assert_equal(path: Path, reference: tuple[list[int], np.ndarray], **budget) -> None:
    model = engine.load(path, **budget)
    try:
        tokens, logits = greedy(model)
    finally:
        model.close()
    assert tokens == reference[0]
    assert np.abs(logits - reference[1]).max() <= 1e-4 * np.abs(reference[1]).max()


@pytest.fixture(scope="module")
def tiny_reference(tiny_model: Path):
    return stock(tiny_model)


@pytest.mark.parametrize("expert_bytes", ["all", 0.5, 0.2, "least"])
def test_a_paged_model_gives_the_tokens_of_stock_mlx_lm(tiny_model, tiny_reference, expert_bytes):
    assert_equal(tiny_model, tiny_reference, expert_bytes=expert_bytes)


def test_one_layers_worth_of_experts_is_enough(tiny_model, tiny_reference):
    model = engine.load(tiny_model, expert_bytes="least")
    one_layer = model.sizes.expert_bytes // model.sizes.layers
    model.close()
    assert_equal(tiny_model, tiny_reference, expert_bytes=one_layer)


def test_sixteen_bit_scales_are_widened_exactly(tiny_bf16_scales):
    assert_equal(tiny_bf16_scales, stock(tiny_bf16_scales), expert_bytes=0.5)


@pytest.mark.parametrize("expert_bytes", ["all", 0.5, "least"])
def test_the_default_model_gives_the_tokens_of_stock_mlx_lm(default_model_dir, default_reference, expert_bytes):
    assert_equal(default_model_dir, default_reference, expert_bytes=expert_bytes)


@pytest.fixture(scope="module")
def default_reference(default_model_dir: Path):
    return stock(default_model_dir)


def test_with_room_for_all_each_expert_is_read_once(tiny_model):
    model = engine.load(tiny_model, expert_bytes="all")
    greedy(model)
    reads = model.stats().expert_reads
    greedy(model)
    assert reads <= 3 * 8
    assert model.stats().expert_reads == reads
    assert model.stats().bytes_read == reads * (model.sizes.expert_bytes // (3 * 8))
    model.close()


def test_with_little_room_experts_are_read_again(tiny_model):
    model = engine.load(tiny_model, expert_bytes="least")
    greedy(model)
    assert model.stats().expert_reads > 3 * 8
    model.close()


@pytest.mark.parametrize("tokens", [40, 400])
def test_a_chunk_of_a_prompt_reads_each_expert_at_most_once_in_the_order_of_the_file(tiny_model, tokens, monkeypatch):
    model = engine.load(tiny_model, expert_bytes="least")
    asked: dict[int, list[int]] = {}
    fetch = SlotStore.fetch

    def watched(store: SlotStore, place: int, missing: np.ndarray, keep: np.ndarray) -> Fetch:
        asked.setdefault(place, []).extend(missing.tolist())
        return fetch(store, place, missing, keep)

    monkeypatch.setattr(SlotStore, "fetch", watched)
    prompt = [(7 * i) % 500 + 5 for i in range(tokens)]
    model.fill(mx.array([prompt]), make_prompt_cache(model))
    assert sorted(asked) == [0, 1, 2]
    assert all(experts == sorted(set(experts)) for experts in asked.values())
    assert sum(map(len, asked.values())) > 12
    model.close()


def test_an_impossible_budget_names_the_least_that_works(tiny_model):
    with pytest.raises(BudgetError, match=r"least that works is --memory (\d+)MB") as refused:
        engine.load(tiny_model, memory_bytes=50_000_000)
    least = int(str(refused.value).rsplit("--memory ", 1)[1].removesuffix("MB.")) * 1_000_000
    # The process may have grown a little meanwhile.
    engine.load(tiny_model, memory_bytes=least + 50_000_000).close()
