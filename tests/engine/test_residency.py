"""Which expert is in which slot, and which one goes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.residency import Residency


def one(*experts: int) -> np.ndarray:
    return np.array(experts)


def use(residency: Residency, module: int, *experts: int) -> int:
    """A token passes a module: how many of its experts had to be read."""
    residency.note(module, one(*experts)[None])
    slots = residency.slots_of(module, one(*experts))
    missing = one(*experts)[slots < 0]
    if len(missing):
        residency.admit(module, missing, one(*experts))
    return len(missing)


def test_what_is_used_often_stays():
    residency = Residency(2, 1, 8)
    for _ in range(5):
        use(residency, 0, 1)
    use(residency, 0, 2)
    use(residency, 0, 3)
    assert use(residency, 0, 1) == 0
    assert use(residency, 0, 2) == 1


def test_a_cycle_longer_than_memory_still_hits():
    """Least-recently-used would evict each expert just before it is needed again."""
    residency = Residency(6, 10, 1)
    reads = [sum(use(residency, module, 0) for module in range(10)) for _ in range(50)]
    assert sum(reads) < 50 * 10 * 0.6


def test_what_was_popular_once_grows_old():
    residency = Residency(2, 1, 8)
    for _ in range(8):
        use(residency, 0, 0)
    for _ in range(600):
        use(residency, 0, 1)
        use(residency, 0, 2)
    assert use(residency, 0, 0) == 1


def test_what_was_used_before_it_was_evicted_is_remembered():
    residency = Residency(1, 1, 8)
    for _ in range(6):
        use(residency, 0, 1)
    use(residency, 0, 2)
    assert residency._uses[0, 1] > residency._uses[0, 2]


def test_routers_that_repeat_their_last_choice_are_noticed():
    rng = np.random.default_rng(0)
    sticky, fickle, choice = Residency(16, 1, 64), Residency(16, 1, 64), one(0, 1, 2, 3)
    for _ in range(400):
        fresh = rng.choice(64, 4, replace=False)
        use(fickle, 0, *fresh)
        choice = choice if rng.random() < 0.7 else fresh
        use(sticky, 0, *choice)
    assert fickle.stickiness < 0.1
    assert sticky.stickiness > 0.4


def test_a_prompt_counts_by_the_share_of_its_tokens():
    residency = Residency(2, 1, 8)
    residency.note(0, np.array([[1, 2], [1, 3], [1, 4], [1, 2]]))
    assert residency._uses[0, 1] == 1
    assert residency._uses[0, 2] == 0.5
    assert residency.stickiness == 0


def test_what_is_needed_now_is_never_evicted():
    residency = Residency(2, 1, 8)
    residency.admit(0, one(1, 2), one(1, 2, 3))
    with pytest.raises(EngineError):
        residency.admit(0, one(3), one(1, 2, 3))


def test_a_slot_that_may_still_be_written_stays_out_of_use():
    residency = Residency(1, 1, 8)
    [slot] = residency.admit(0, one(1), one(1))
    residency.withhold(0, one(1))
    assert residency.slots_of(0, one(1)) == [-1]
    with pytest.raises(EngineError):
        residency.admit(0, one(2), one(2))
    residency.release(np.array([slot]))
    assert residency.admit(0, one(2), one(2)) == [slot]


@given(
    st.integers(3, 6),
    st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 5), min_size=1, max_size=3), st.booleans())),
)
def test_a_slot_never_holds_two_experts(slots, steps):
    residency = Residency(slots, 4, 6)
    for module, chosen, forget in steps:
        experts = np.array(sorted(chosen))
        use(residency, module, *experts)
        held = residency._slot[residency._slot >= 0].tolist()
        assert len(held) == len(set(held)) <= slots
        assert set(held) | set(residency._free) == set(range(slots))
        assert (residency.slots_of(module, experts) >= 0).all()
        if forget:
            given_up = residency.slots_of(module, experts)
            residency.withhold(module, experts)
            assert (residency.slots_of(module, experts) < 0).all()
            residency.release(given_up)
