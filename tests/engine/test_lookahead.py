"""Reading ahead never changes what comes out, evicts nothing, and stops by itself when it doesn't pay."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.utils import load_model

from engine import loader
from engine.lookahead import LONGEST_REST, REST, TURN, Payoff
from engine.synth import synthesise
from tests.engine import test_architectures
from tests.engine.test_paging import greedy, stock
from tests.engine.tiny_checkpoints import save, tiny_model

SHAPE = {"layers": 4, "experts": 24, "hidden": 128, "expert_hidden": 64, "top_k": 2, "vocab": 600}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return synthesise(tmp_path_factory.mktemp("models") / "ahead", "qwen3-moe", **SHAPE)


@pytest.fixture(scope="module")
def reference(folder):
    return stock(folder)


@pytest.mark.parametrize("expert_bytes", ["all", 0.5, 0.3, "least"])
def test_tokens_are_those_of_stock_while_it_reads_ahead(folder, reference, expert_bytes):
    model = loader.load(folder, expert_bytes=expert_bytes, lookahead=True)
    tokens, logits = greedy(model, 8)
    model.close()
    assert tokens == reference[0]
    assert np.abs(logits - reference[1]).max() <= 1e-4 * np.abs(reference[1]).max()


@pytest.mark.parametrize("architecture", ["olmoe", "mixtral", "deepseek_v3", "gpt_oss", "llama4", "qwen3_next"])
def test_tokens_are_those_of_stock_whatever_the_router_is(architecture, tmp_path):
    model, config = tiny_model(architecture)
    folder = save(tmp_path / "m", model, config)
    right, _ = test_architectures.greedy(load_model(folder)[0])
    model = loader.load(folder, expert_bytes=0.8, lookahead=True)
    for store in model._stores:
        store.stage(1)
    assert test_architectures.greedy(model)[0] == right
    model.close()


def test_most_guesses_are_right_where_layers_change_little(folder):
    model = loader.load(folder, expert_bytes=0.4, lookahead=True)
    greedy(model, 30)
    stats = model.stats()
    assert stats.guesses > 10
    assert stats.prefetch_hit_rate is not None
    assert 0.2 < stats.prefetch_hit_rate <= 1
    model.close()


def test_a_guess_evicts_nothing_and_leaves_when_it_was_wrong(folder):
    model = loader.load(folder, expert_bytes=0.5, lookahead=False)
    greedy(model)
    [store] = model._stores
    store.stage(4)
    held = store._residency._slot.copy()
    absent = np.flatnonzero(held[2] < 0)
    store.guess(2, absent)
    assert len(store._coming) == min(4, len(absent))
    assert (store._residency._slot == held).all()
    store.guessed_wrong(2)
    while store._late:
        store._collect_late()
    assert len(store._staging) == 4
    store.stage(0)
    assert store.slots == store.planned
    model.close()


def test_a_guess_that_was_right_is_not_read_again(folder):
    model = loader.load(folder, expert_bytes=0.5, lookahead=False)
    greedy(model)
    [store] = model._stores
    store.stage(4)
    absent = np.flatnonzero(store._residency._slot[2] < 0)[:2]
    store.guess(2, absent)
    before = model.stats().bytes_read
    fetch = store.fetch(2, absent, absent)
    fetch.wait(lambda: None)
    assert model.stats().bytes_read - before == 2 * store.one_bytes
    assert model.stats().right_guesses == 2
    assert len(fetch.readings) == 2
    assert len(store._staging) == 4
    assert (store.slots_of(2, absent) >= 0).all()
    model.close()


def test_a_model_that_is_all_in_memory_has_no_lookahead(folder):
    model = loader.load(folder, expert_bytes="all", lookahead=True)
    greedy(model, 20)
    assert model.stats().prefetch_hit_rate is None
    model.close()


def tokens(payoff: Payoff, count: int, without: float, with_it: float) -> list[bool]:
    """Whether it was on for each of so many tokens that take these times."""
    ways = []
    for _ in range(count):
        ways.append(payoff.on)
        payoff.took(with_it if payoff.on else without)
    return ways


def test_what_is_faster_goes_on():
    payoff = Payoff()
    tokens(payoff, 4 * (TURN + 1), without=1.0, with_it=0.8)
    assert all(tokens(payoff, REST - 1, without=1.0, with_it=0.8))


def test_what_is_slower_is_off_and_tried_ever_more_rarely():
    payoff = Payoff()
    ways = tokens(payoff, 20_000, without=1.0, with_it=1.1)
    assert np.mean(ways[:100]) > 0
    assert np.mean(ways[2000:]) < 2 * 2 * (TURN + 1) / LONGEST_REST * 2
    assert not payoff.on or ways.count(True) < 300


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=400))
def test_whatever_tokens_take_it_goes_on_deciding(times):
    payoff = Payoff()
    for seconds in times:
        before = payoff.on
        assert payoff.took(seconds) == (payoff.on != before)
