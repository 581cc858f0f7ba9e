"""Which expert is in which slot, and which one goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.residency import Residency


def test_what_is_used_often_stays():
    residency = Residency(2)
    residency.admit((0, 1))
    residency.admit((0, 2))
    residency.use((0, 1))
    residency.admit((0, 3))
    assert residency.use((0, 1)) is not None
    assert residency.use((0, 2)) is None


def test_among_equals_the_newest_goes_for_its_layer_comes_round_last():
    residency = Residency(2)
    residency.admit((0, 1))
    residency.admit((1, 1))
    residency.admit((2, 1))
    assert residency.use((0, 1)) is not None
    assert residency.use((1, 1)) is None


def test_a_cycle_longer_than_memory_still_hits():
    """Least-recently-used would evict each key just before it is needed again."""
    residency, hits = Residency(6), 0
    for _ in range(50):
        residency.next_pass()
        for key in [(layer, 0) for layer in range(10)]:
            if residency.use(key) is None:
                residency.admit(key)
            else:
                hits += 1
    assert hits > 50 * 10 * 0.4


def test_what_was_popular_once_grows_old():
    residency = Residency(2)
    residency.admit((0, 0))
    for _ in range(8):
        residency.use((0, 0))
    for _ in range(400):
        residency.next_pass()
        for expert in (1, 2):
            if residency.use((0, expert)) is None:
                residency.admit((0, expert))
    assert residency.use((0, 0)) is None


def test_what_was_used_before_it_was_evicted_is_remembered():
    residency = Residency(1)
    for _ in range(3):
        residency.admit((0, 1))
        residency.forget((0, 1))
    residency.admit((0, 2))
    residency.admit((0, 1))
    residency.admit((0, 2))
    assert residency.use((0, 1)) is None
    assert residency.use((0, 2)) is not None


def test_worth_survives_any_number_of_passes():
    residency = Residency(2)
    residency.admit((0, 1))
    for _ in range(30_000):
        residency.next_pass()
    residency.admit((0, 2))
    residency.use((0, 2))
    residency.admit((0, 3))
    assert residency.use((0, 2)) is not None


def test_what_is_needed_now_is_never_evicted():
    residency = Residency(2)
    residency.admit((0, 1))
    residency.admit((0, 2))
    with pytest.raises(LookupError):
        residency.admit((0, 3), keep=[(0, 1), (0, 2)])


def test_a_forgotten_key_gives_its_slot_back():
    residency = Residency(1)
    slot = residency.admit((0, 1))
    residency.forget((0, 1))
    assert residency.use((0, 1)) is None
    assert residency.admit((0, 2), keep=[]) == slot


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=200))
def test_a_slot_never_holds_two_keys(slots, steps):
    residency = Residency(slots)
    where: dict[tuple[int, int], int] = {}
    for layer, expert, forget in steps:
        key = (layer, expert)
        if forget:
            residency.forget(key)
            where.pop(key, None)
            continue
        slot = residency.use(key)
        if slot is None:
            assert key not in where or len(residency) <= slots
            slot = residency.admit(key)
            where = {k: s for k, s in where.items() if s != slot}
            where[key] = slot
        assert where[key] == slot
        assert len(residency) == len(where) <= slots
