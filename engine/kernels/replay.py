"""Single tokens of one sequence without a model's Python code: one token's way is recorded, the next ones repeat it.

Of the time that a token took on the host, a quarter was Python's (on the qwen3-moe shape of bench.engine; 20 ms a token
then, 15 now). What is repeated is native code in one call from one layer's experts to the next's; what can't be, the
experts above all, is a call of Python in between.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from engine.kernels import kv_store, steps
from engine.kernels.addresses import BOARD, BOARD_SIZE, CACHE_FIELDS, CACHES, POSITION
from engine.kernels.crew import WORTH_A_CREW, board
from engine.kernels.host_array import HostArray
from engine.kernels.tape import CannotRecord, Native, Position, Step, Tape


def ready(caches: Sequence[Any]) -> bool:
    """Whether one more token may be recorded or replayed with these caches."""
    return len({c.offset for c in caches}) == 1 and all(kv_store.has_room(c) for c in caches)


def record(forward: Callable[..., Any], tokens: mx.array, caches: list[Any]) -> tuple["Replay", HostArray]:
    """forward(tokens, cache=caches) on the host for one token: how to repeat it, and the logits [1, 1, V].

    The caches are `ready`. Raises CannotRecord, among others, and leaves the offsets of the caches as they were.
    """
    position = caches[0].offset
    tape = Tape(HostArray, steps.of_ufunc, caches)
    for cache in caches:
        cache.offset = Position(position)
    ended = position
    try:
        with tape.running():
            logits = forward(tokens, cache=caches)
            tape.reads(logits)
        if any(int(cache.offset) != position + 1 for cache in caches):
            raise CannotRecord("a cache that took no token")
        ended = position + 1
    finally:
        for cache in caches:
            cache.offset = ended
    return Replay(tape, logits), logits


class Replay:
    """What was recorded, with the memory that it works in. One token at a time, of any sequence that is `ready`."""

    def __init__(self, tape: Tape, logits: HostArray):
        self._tape = tape  # steps know addresses only: this keeps what lies there
        self._logits = logits
        self._by_python: dict[int, Callable[[], None]] = {}
        self._steps = np.zeros((len(tape.steps), 2), np.int64)
        for number, step in enumerate(tape.steps):
            self._add(number, step)
        self._moment = np.zeros(CACHES + CACHE_FIELDS * tape.caches, np.int64)

    def _add(self, number: int, step: Step) -> None:
        if isinstance(step, Native):
            self._steps[number] = step.function, step.arguments.ctypes.data
            if step.otherwise is not None:
                self._by_python[number] = step.otherwise
        else:
            self._by_python[number] = step

    def run(self, token: int, caches: Sequence[Any]) -> HostArray:
        """The logits [1, 1, V] of a token, which the next call overwrites; the token is in the caches afterwards.

        Whatever a step raises leaves the offsets of the caches as they were.
        """
        position, moment = caches[0].offset, self._moment
        moment[POSITION] = position
        moment[CACHES:] = [number for cache in caches for number in kv_store.where(cache)]
        for fill in self._tape.starts:
            fill(token, position)
        number, last = 0, len(self._steps)
        with np.errstate(all="ignore"):
            while True:
                with board(WORTH_A_CREW) as crew:
                    moment[BOARD], moment[BOARD_SIZE] = crew.ctypes.data, len(crew)
                    number = steps.run(self._steps, number, moment)
                if number == last:
                    break
                self._by_python[number]()
                number += 1
        for cache in caches:
            cache.offset = position + 1
        return self._logits
