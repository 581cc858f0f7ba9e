"""One budget over everything: what grows takes its bytes from the slots, and gives them back."""

import mlx.core as mx
import numpy as np
import pytest

from engine import loader, memory, slot_memory
from engine.budget import Budget
from engine.errors import BudgetError
from engine.slot_memory import PAGE, address_of, allocate, forget, view
from tests.engine.test_paging import greedy, stock

MB = 1_000_000


@pytest.fixture
def roomy(tiny_model):
    """The tiny model under a budget of what the process takes anyway and a bit."""
    model = loader.load(tiny_model, memory_bytes=memory.rss_bytes() + 400 * MB)
    yield model
    model.close()


def slot_bytes(model) -> int:
    return sum(store.slots * store.one_bytes for store in model._stores)


def test_what_is_reserved_comes_from_the_slots_and_goes_back(roomy):
    greedy(roomy)
    whole = slot_bytes(roomy)
    roomy.reserve(whole // 2)
    assert slot_bytes(roomy) <= whole - whole // 2
    roomy.release(whole // 2)
    roomy.budget.hold()
    assert slot_bytes(roomy) == whole


def test_tokens_do_not_depend_on_what_was_reserved(tiny_model, roomy):
    right, _ = stock(tiny_model)
    assert greedy(roomy)[0] == right
    roomy.reserve(slot_bytes(roomy) // 2)
    assert greedy(roomy)[0] == right
    roomy.release(1 << 40)
    assert greedy(roomy)[0] == right


def test_more_than_the_experts_can_give_is_refused_and_changes_nothing(roomy):
    whole = slot_bytes(roomy)
    with pytest.raises(BudgetError, match=r"experts need the rest"):
        roomy.reserve(whole)
    assert slot_bytes(roomy) == whole
    roomy.reserve(roomy.budget.available_bytes)
    [store] = roomy._stores
    assert store.slots == store.least
    assert len(greedy(roomy)[0]) == 8


def test_when_the_rest_of_the_process_grows_experts_leave_until_it_fits(roomy, monkeypatch):
    greedy(roomy)
    [store] = roomy._stores
    taken, whole = memory.rss_bytes(), store.slots
    monkeypatch.setattr(memory, "rss_bytes", lambda: roomy.budget.limit + 4 * store.one_bytes - _spare())

    def _spare() -> int:
        return (whole - int(store._written.sum())) * store.one_bytes

    roomy.budget.hold()
    assert whole - 6 <= store.slots <= whole - 3
    monkeypatch.setattr(memory, "rss_bytes", lambda: taken)
    roomy.budget.hold()
    assert store.slots == whole


def test_slots_that_were_given_back_take_no_memory(roomy):
    greedy(roomy)
    [store] = roomy._stores
    held = store.filled_bytes
    store.resize(store.least)
    assert store.filled_bytes <= store.least * store.one_bytes < held


def test_without_a_limit_slots_stay_as_they_are(tiny_model):
    model = loader.load(tiny_model, expert_bytes=0.5)
    before = slot_bytes(model)
    model.reserve(1 << 40)
    model.budget.hold()
    assert slot_bytes(model) == before
    assert isinstance(model.budget, Budget)
    model.close()


@pytest.mark.parametrize("residue", [0, 8, 4000])
def test_memory_for_slots_begins_where_it_is_wished_and_is_as_good_as_any(residue):
    array = allocate((3, 700), mx.float32, residue)
    assert address_of(array) % PAGE == residue
    view(array)[...] = np.arange(2100).reshape(3, 700)
    assert (array + 1).sum().item() == np.arange(1, 2101).sum()


def test_memory_that_is_forgotten_leaves_the_process_and_its_neighbours_stay():
    array = allocate((64, 1 << 18), mx.uint32)
    numbers = view(array)
    numbers[...] = 7
    before = memory.rss_bytes()
    forget(numbers[1:-1].ctypes.data, numbers[1:-1].nbytes)
    assert memory.rss_bytes() < before - 50 * MB
    assert (numbers[0] == 7).all() and (numbers[-1] == 7).all()
    slot_memory.give_back_freed()
