"""How many slots a budget has room for, and what stands where the experts were."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn
from mlx.utils import tree_unflatten

from engine.budget import Budget
from engine.disk import Disk
from engine.errors import BudgetError
from engine.experts import Experts, grouped
from engine.fetch import Counters
from engine.paged import Kernel, PagedExperts
from engine.slots import SlotStore
from engine.watch import Watch

# What compiled kernels, activations and the KV cache of a first question take beyond what is there before; measured on
# the default model and the qwen3-moe shape: 80-160 MB. What needs more later gets it from the slots.
WORKING_BYTES = 168 << 20
# What the program itself takes differs by so much from start to start; a least that is told has to work the next time.
_SLACK_BYTES = 4 << 20


@dataclass(frozen=True)
class SlotPlan:
    """For the experts of one model; `total` and `least` are bytes of slots for all and for one token's of a layer."""

    experts: list[Experts]
    top_k: int
    total: int
    least: int

    def slot_bytes(self, budget: int, expert_bytes: int | float | str | None, taken: int) -> int:
        """Bytes for slots under the budget beside `taken`. Raises BudgetError when not even the least fits."""
        total, least = self.total, self.least
        if not self.experts:
            return 0
        if expert_bytes is not None:
            named: dict[Any, int] = {"least": least, "all": total}
            wish = named.get(expert_bytes, expert_bytes)
            wish = wish * total if isinstance(wish, float) else wish
            if not isinstance(wish, int | float):
                raise BudgetError(
                    f"{expert_bytes!r} is not a budget for experts: give bytes, a fraction, least or all."
                )
            return min(max(int(wish), least), total)
        fixed = taken + WORKING_BYTES
        if fixed + least > budget:
            raise BudgetError(
                f"A memory budget of {_mb(budget)} is too small for this model: its always-used part, the program and "
                f"room to work take {_mb(fixed)}, and one token needs {_mb(least)} of experts. "
                f"The least that works is --memory {-(-(fixed + least + _SLACK_BYTES) // 1_000_000)}MB."
            )
        return min(budget - fixed, total)

    def stores(self, slot_bytes: int, disk: Disk, counters: Counters) -> list[SlotStore]:
        """The slots of each group of layers that can share them: what a token needs, and its part of the rest."""
        groups = grouped(self.experts)
        least = [least_bytes(group, self.top_k) for group in groups]
        spare, beyond = max(slot_bytes - sum(least), 0), max(self.total - sum(least), 1)
        stores = []
        for group, need in zip(groups, least, strict=True):
            share = need + spare * (sum(e.nbytes for e in group) - need) // beyond
            most, one = sum(e.count for e in group), group[0].one_bytes
            slots = min(max(share // one, 1), most)
            origins = {index: e.origins for index, e in enumerate(group)}
            experts = max(e.count for e in group)
            stores.append(SlotStore(group[0].pieces, slots, origins, experts, disk, counters, least=need // one))
        return stores

    def install(
        self,
        model: nn.Module,
        stores: list[SlotStore],
        watch: Watch,
        budget: Budget,
        kernel_of: Callable[[nn.Module], Kernel | None] | None,
    ) -> list[tuple[str, PagedExperts]]:
        """Put each module of experts back, behind its group's slots: (path, module) of each in layer order."""
        modules: list[tuple[str, PagedExperts]] = []
        for group, store in zip(grouped(self.experts), stores, strict=True):
            for index, experts in enumerate(group):
                experts.put_back(store.arrays)
                kernel = kernel_of(experts.module) if kernel_of else None
                paged = PagedExperts(experts.module, experts.layer, index, experts.count, store, watch, budget, kernel)
                modules.append((experts.path, paged))
        model.update_modules(tree_unflatten(modules))
        return sorted(modules, key=lambda module: (module[1].layer, module[0]))


def least_bytes(group: list[Experts], top_k: int) -> int:
    """The experts of one token in one layer of the group."""
    return min(top_k, min(e.count for e in group)) * group[0].one_bytes


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"
