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


def test_among_equals_the_one_used_longest_ago_goes():
    residency = Residency(2)
    residency.admit((0, 1))
    residency.admit((0, 2))
    residency.admit((0, 3))
    assert residency.use((0, 1)) is None
    assert residency.use((0, 2)) is not None


def test_what_was_popular_once_grows_old():
    residency = Residency(2)
    residency.admit((0, 0))
    for _ in range(20):
        residency.use((0, 0))
    for expert in range(1, 60):
        residency.admit((0, expert))
        residency.use((0, expert))
    assert residency.use((0, 0)) is None


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
