"""Matrices that a model multiplies with the same activation, one after the other: of queries, keys and values, say.

For one token each product is so short that handing a part of it to another thread costs as much as it gives. Which
products share their activation is not known from a model's structure but learnt by watching one pass of it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.kernels.products import Products, Quantised


class Siblings:
    """All products of some matrices with an activation, computed when the first of them is asked for."""

    def __init__(self, matrices: Sequence[Quantised]):
        self._matrices = list(matrices)
        self._together = Products(matrices)
        self._x: Any = None
        self._products: dict[int, np.ndarray] = {}

    def times(self, matrix: object, x: Any, rows: np.ndarray) -> np.ndarray:
        """x, whose rows are `rows` [n, I], times the transposed `matrix`, one of these: [n, O]."""
        if self._x is not x or id(matrix) not in self._products:
            products = self._together.times(rows)
            self._products = {id(m): out for m, out in zip(self._matrices, products, strict=True)}
            self._x = x
        product = self._products.pop(id(matrix))
        if not self._products:
            self._x = None
        return product


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
