"""What the model has read once it does not read again: its states, kept by their tokens, in memory and on disk.

A prompt starts from the state with the longest common beginning. Where states can be cut back, that is any beginning
of any state; where they can't (windows, recurrences) it is a whole state, so they are kept at the turns' boundaries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import mlx.core as mx
import numpy as np

from engine import kv
from engine.prefix_files import PrefixFiles, replaces, usable

# A file is worth reading only for so many tokens more than what is in memory.
WORTH_A_FILE = 16


@dataclass
class Kept:
    """A state in memory. `used` is a monotonic time in seconds."""

    tokens: np.ndarray
    state: kv.State
    nbytes: int
    cuttable: bool
    used: float
    liked: Sequence[int] = ()  # the experts that were used most when it was made, as PagedModel.liked tells them


class Prefixes:
    """`room()` says how many bytes of memory all states together may take now; `empty()` makes a state of nothing."""

    def __init__(
        self,
        empty: Callable[[], kv.State],
        room: Callable[[], int],
        files: PrefixFiles | None = None,
        liked: Callable[[], Sequence[int]] = tuple,
    ):
        self._empty, self._room, self._files, self._liked = empty, room, files, liked
        self._kept: list[Kept] = []

    @property
    def nbytes(self) -> int:
        """The memory that states take which no reply is working on."""
        return sum(kept.nbytes for kept in self._kept)

    def start(self, prompt: Sequence[int]) -> tuple[kv.State, int]:
        """A state to go on from, and how many of the prompt's tokens it holds: never the last one, whose logits are
        wanted."""
        best, held = self._best(prompt)
        if best is None:
            return self._empty(), 0
        best.used = monotonic()
        return kv.copied(best.state, len(best.tokens), len(best.tokens) - held), held

    def warm(self, prompt: Sequence[int]) -> Sequence[int]:
        """Have in memory what this prompt would start from; the experts that were liked when that was made."""
        best, _ = self._best(prompt)
        return best.liked if best else ()

    def _best(self, prompt: Sequence[int]) -> tuple[Kept | None, int]:
        wanted = np.array(prompt[:-1], np.int32)
        best, held = None, 0
        for kept in self._kept:
            if (tokens := usable(kept, wanted)) > held:
                best, held = kept, tokens
        for filed in self._files.filed() if self._files else ():
            tokens = usable(filed, wanted)
            if tokens >= held + WORTH_A_FILE and self._files and (state := self._files.load(filed, self._empty())):
                best, held = self.keep(filed.tokens, state, filed.liked), tokens
        return best, held

    def keep(self, tokens: Sequence[int] | np.ndarray, state: kv.State, liked: Sequence[int] | None = None) -> Kept:
        """Keep a copy of the state of these tokens in memory, as long as there is room and others are older."""
        mine = kv.copied(state, len(tokens))
        mx.eval(kv.arrays_of(mine))
        # The copy holds on to the original's memory, with the room that had to grow.
        new = Kept(np.array(tokens, np.int32), mine, kv.nbytes(state), kv.can_cut(mine), monotonic())
        new.liked = self._liked() if liked is None else liked
        self._kept = [kept for kept in self._kept if not replaces(new, kept)] + [new]
        self.shrink()
        return new

    def write(self, tokens: Sequence[int], state: kv.State) -> None:
        """Have the state written to disk soon."""
        if self._files and len(tokens) >= WORTH_A_FILE:
            self._files.write(tokens, state, self._liked())

    @property
    def write_s(self) -> float:
        """How long writing one took, last time."""
        return self._files.last_write_s if self._files else 0.0

    def shrink(self) -> None:
        """Let go of what was used longest ago until all fits."""
        self._kept.sort(key=lambda kept: kept.used)
        while self._kept and self.nbytes > self._room():
            self._kept.pop(0)

    def close(self) -> None:
        """Return when what is to be written is written."""
        if self._files:
            self._files.close()
