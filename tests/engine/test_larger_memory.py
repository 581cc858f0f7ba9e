"""Where a reply's time went, and what more memory would have bought it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine
from engine.larger_memory import larger_budgets
from tests.engine.replies import ask, batch, end_of, reply


class Store:
    """Experts of one size whose use falls off from one to the next, some of them in `slots`."""

    one_bytes = 1000

    def __init__(self, slots: int, uses: list[float]):
        self.slots, self.experts, self._uses = slots, len(uses), sorted(uses, reverse=True)

    def expected_misses(self, slots: int) -> float:
        return sum(self._uses[slots:])


def test_a_reply_tells_its_time_apart_and_what_more_memory_would_buy(tiny_model):
    model = engine.load(tiny_model, expert_bytes="least")
    end = end_of(reply(batch(model), ask(max_tokens=12)))
    model.close()
    assert end.disk_s > 0 and end.compute_s > 0 and end.router_s >= 0
    # Passes are what the prompt took and all tokens but their drawing.
    assert end.disk_s + end.router_s + end.compute_s <= end.prefill_s + end.ttft_s + end.decode_s
    budgets, speeds = zip(*end.larger, strict=True)
    assert list(budgets) == sorted(budgets) and budgets[-1] - model.sizes.budget_bytes > 0
    assert list(speeds) == sorted(speeds) and speeds[0] >= 1 / end.tpot_s * 0.999


def test_with_all_experts_in_memory_nothing_more_is_offered(tiny_model):
    model = engine.load(tiny_model, expert_bytes="all")
    assert end_of(reply(batch(model), ask())).larger == ()
    model.close()


@given(
    st.lists(st.floats(0.001, 1), min_size=2, max_size=40), st.integers(1, 39), st.floats(0.01, 10), st.floats(0, 0.99)
)
def test_more_memory_never_promises_less_and_at_most_no_disk_at_all(uses, slots, token_s, waiting):
    store = Store(min(slots, len(uses) - 1), uses)
    found = larger_budgets([store], 10**6, token_s, token_s * waiting)
    speeds = [speed for _, speed in found]
    assert speeds == sorted(speeds)
    assert speeds[0] >= 1 / token_s * 0.999
    assert speeds[-1] == pytest.approx(1 / (token_s * (1 - waiting)))
    assert found[-1][0] == 10**6 + (store.experts - store.slots) * store.one_bytes
