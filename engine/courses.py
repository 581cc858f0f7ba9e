"""Courses that a reply can take, token by token: each step says what may come and hears what came."""

from collections.abc import Callable, Generator, Sequence

import numpy as np

from engine.grammar import Grammar

Allowed = Callable[[int], np.ndarray] | None
"""Which of so many tokens may come next; None: any."""
Course = Generator[Allowed, int, None]
"""Says what may come, and hears what came."""


def exactly(tokens: Sequence[int]) -> Course:
    """These."""
    for token in tokens:
        yield lambda size, token=token: only((token,), size)


def within(grammar: Grammar) -> Course:
    """A text of that grammar, to its end."""
    while not grammar.over:
        grammar.take((yield grammar.allowed))


def only(tokens: Sequence[int], size: int) -> np.ndarray:
    """These of `size` tokens: bool [size]."""
    found = np.zeros(size, bool)
    found[[token for token in tokens if token < size]] = True
    return found
