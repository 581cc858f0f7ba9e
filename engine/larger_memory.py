"""What more memory would buy: measured time a token, less the disk waits that experts kept in memory would save."""

from collections.abc import Sequence

from engine.slots import SlotStore

# Budgets for experts that are looked at, as multiples of the present one; and all of them.
_STEPS = (1.5, 2.0, 3.0, 4.0)


def larger_budgets(
    stores: Sequence[SlotStore], budget_bytes: int, token_s: float, disk_s: float
) -> tuple[tuple[int, float], ...]:
    """(budget in bytes, tokens/s) for larger budgets, the last one for all experts in memory; none where all are.

    `token_s` is what a token takes now, `disk_s` of it waits for reads. With more slots the least used experts among
    those in memory are rarer, and waits shrink as reads do.
    """
    now = sum(store.slots * store.one_bytes for store in stores)
    every = sum(store.experts * store.one_bytes for store in stores)
    misses = sum(store.expected_misses(store.slots) * store.one_bytes for store in stores)
    if not now or now >= every or misses <= 0 or token_s <= 0:
        return ()
    found = []
    for nbytes in [*(int(now * step) for step in _STEPS if now * step < every), every]:
        left = sum(store.expected_misses(store.slots * nbytes // now) * store.one_bytes for store in stores)
        share = 0.0 if nbytes == every else left / misses
        found.append((budget_bytes + nbytes - now, 1 / (token_s - disk_s * (1 - share))))
    return tuple(found)
