"""Matrices that a model multiplies with the same activation, one after the other: of queries, keys and values, say.

For one token each product is so short that handing a part of it to another thread costs as much as it gives. Which
products share their activation is not known from a model's structure but learnt by watching one pass of it.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from engine.kernels.threads import split


class Rows(Protocol):
    """A matrix [O, I] of which some rows can be multiplied."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def part(self, x: np.ndarray, out: np.ndarray, lo: int, hi: int) -> None:
        """out[:, lo:hi] of x [n, I] times the transposed matrix, on the calling thread."""
        ...


class Siblings:
    """All products of some matrices with an activation, computed when the first of them is asked for."""

    def __init__(self, matrices: Sequence[Rows]):
        self._matrices = list(matrices)
        self._starts = np.cumsum([0, *(m.shape[0] for m in matrices)]).tolist()
        self._weights = sum(m.shape[0] * m.shape[1] for m in matrices)
        self._x: Any = None
        self._products: dict[int, np.ndarray] = {}

    def times(self, matrix: Rows, x: Any, rows: np.ndarray) -> np.ndarray:
        """x, whose rows are `rows` [n, I], times the transposed `matrix`: [n, O]."""
        if self._x is not x or id(matrix) not in self._products:
            self._compute(rows)
            self._x = x
        product = self._products.pop(id(matrix))
        if not self._products:
            self._x = None
        return product

    def _compute(self, rows: np.ndarray) -> None:
        outs = [np.empty((len(rows), m.shape[0]), np.float32) for m in self._matrices]

        def some(lo: int, hi: int) -> None:
            for matrix, out, start in zip(self._matrices, outs, self._starts, strict=False):
                first, last = max(lo - start, 0), min(hi - start, matrix.shape[0])
                if first < last:
                    matrix.part(rows, out, first, last)

        split(some, self._starts[-1], self._weights * len(rows))
        self._products = {id(m): out for m, out in zip(self._matrices, outs, strict=True)}


class Watcher:
    """Notes which products are asked for with the same activation, while it is watching."""

    def __init__(self) -> None:
        self.watching = False
        self._runs: list[tuple[Any, list[Any]]] = []

    def saw(self, asker: Any, x: Any) -> None:
        """`asker` multiplies x."""
        if self._runs and self._runs[-1][0] is x:
            self._runs[-1][1].append(asker)
        else:
            self._runs.append((x, [asker]))

    def families(self) -> list[list[Any]]:
        """Those who asked with the same activation, each in one family at most. Forgets what it saw."""
        runs, self._runs = self._runs, []
        families, known = [], set()
        for _, askers in runs:
            if len(askers) > 1 and len({id(a) for a in askers}) == len(askers) and not known & {id(a) for a in askers}:
                families.append(askers)
                known |= {id(a) for a in askers}
        return families
