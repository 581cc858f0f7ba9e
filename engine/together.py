"""Several forward passes at once that meet wherever experts are needed, so that each expert is read once for all.

Each pass is the one it would be alone, in a greenlet of its own: whatever a model's layers do (windows, recurrences,
latent attention), a sequence's numbers don't depend on who else is there. Only reading experts is common.
"""

from collections.abc import Callable
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet


class Experts(Protocol):
    """What passes meet at: the experts of one layer."""

    layer: int

    def for_each(self, parts: list[tuple[Any, Any]]) -> list[Any]:
        """The result for each (activation, chosen experts)."""
        ...


class Meeting:
    """Holds passes together. `attend` is what a module of experts calls instead of computing."""

    def __init__(self) -> None:
        self._host = getcurrent()

    def attend(self, experts: Experts, x: Any, indices: Any) -> Any:
        """In a pass: wait for the others, then get what the experts made of `x`."""
        return self._host.switch((experts, x, indices))

    def hold(self, passes: list[Callable[[], Any]]) -> list[Any]:
        """Run the passes; their results. What goes wrong in one ends all, and is raised."""
        going = [greenlet(one) for one in passes]
        results: list[Any] = [None] * len(passes)
        there: dict[int, tuple[Experts, Any, Any]] = {}

        def go_on(index: int, *result: Any) -> None:
            came = going[index].switch(*result)
            if going[index].dead:
                results[index] = came
            else:
                there[index] = came

        try:
            for index in range(len(passes)):
                go_on(index)
            while there:
                # All passes come by all layers; should one skip a layer, the others don't wait for it there.
                next_one = min((experts for experts, _, _ in there.values()), key=lambda experts: experts.layer)
                group = [index for index, (experts, _, _) in there.items() if experts is next_one]
                parts = [there.pop(index)[1:] for index in group]
                for index, result in zip(group, next_one.for_each(parts), strict=True):
                    go_on(index, result)
        finally:
            for one in going:
                if one:  # begun, and not over
                    one.throw(GreenletExit)
        return results
