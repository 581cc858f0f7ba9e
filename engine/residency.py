"""Which experts are in memory: a fixed number of slots shared by all layers, the least likely to be used next evicted.

How likely the next pass of the model uses an expert is estimated from what routers do: they have favourites, and they
stick to what they chose for the last token. So likelihood = (1 - s) * frequency + s * (chosen by the last token), where
frequency fades with a half-life of 64 passes and the stickiness s is measured as it goes along: the share of repeated
choices beyond what frequency explains. `python -m bench.residency` compares it with LRU, LFUDA, S3-FIFO, LIRS and
Belady's bound: it reads the fewest experts, or nearly, on every trace there.
"""

from collections.abc import Iterator

import numpy as np

from engine.errors import EngineError

HALF_LIFE_PASSES = 64
_FADE = 2 ** (-1 / HALF_LIFE_PASSES)
# What is taken for known before anything was seen: so many passes that used all experts alike.
_PRIOR_PASSES = 8.0
# Stickiness is learnt from so many choices of the recent past, that is from some hundred layers' worth at top-8.
_FADE_CHOICES = 1 - 1 / 128


class Residency:
    """Book-keeping only: which expert of which module lies in which of `slots` slots, and which one goes.

    Experts are numbered within their module: arrays have a row a module and a column an expert.
    """

    def __init__(self, slots: int, modules: int, experts: int):
        self.slots = slots
        self._slot = np.full((modules, experts), -1, np.int32)
        self._free = list(range(slots - 1, -1, -1))
        self._uses = np.zeros((modules, experts))
        self._passes = 0.0
        self._chosen_last = np.zeros((modules, experts), bool)
        # Sums over recent choices: how many there were, how many were repeated, how many frequency would repeat.
        self._choices = self._repeated = self._expected = 0.0
        self._module = -1
        self.passes = 0  # ever since; `_passes` fades

    @property
    def stickiness(self) -> float:
        """The measured s: 0 when routers repeat no more than frequency explains."""
        if not self._choices:
            return 0.0
        repeated, expected = self._repeated / self._choices, min(self._expected / self._choices, 0.999)
        return max(0.0, (repeated - expected) / (1 - expected))

    def note(self, module: int, chosen: np.ndarray) -> None:
        """The router of `module` has chosen [tokens, k] experts. Where layers start over, a new pass begins."""
        if module <= self._module:
            self._uses *= _FADE
            self._passes = self._passes * _FADE + 1
            self.passes += 1
        self._module = module
        if len(chosen) == 1:
            self._learn_stickiness(module, chosen[0])
        shares = np.bincount(chosen.reshape(-1), minlength=self._uses.shape[1]) / len(chosen)
        self._uses[module] += shares
        self._chosen_last[module] = False
        self._chosen_last[module, chosen[-1]] = True

    def heat(self) -> np.ndarray:
        """How likely a pass uses each expert, by frequency alone: [modules, experts]."""
        return np.clip(self._uses / (self._passes + 1), 0, 1)

    def expect(self, heat: np.ndarray, passes: float) -> None:
        """Begin as if so many passes had shown this."""
        self._uses += heat * passes
        self._passes += passes

    def expected_misses(self, slots: int) -> float:
        """Uses a pass, of late, of all experts but the `slots` that are used most.

        What a pass would read if only frequency counted. Experts that were not seen lately are taken for seen a little:
        else a short history would promise too much.
        """
        if not self._passes:
            return 0.0
        prior = _PRIOR_PASSES * self._uses.sum() / self._passes / self._uses.size
        uses = np.sort((self._uses + prior).reshape(-1))[::-1] / (self._passes + _PRIOR_PASSES)
        return float(uses[slots:].sum())

    def slots_of(self, module: int, experts: np.ndarray) -> np.ndarray:
        """The slot of each expert, -1 where it has to be read."""
        return self._slot[module, experts]

    def admit(self, module: int, missing: np.ndarray, keep: np.ndarray) -> np.ndarray:
        """Give `missing` experts slots, evicting others but none of `keep` of the same module; the new slots.

        Raises EngineError when there are fewer slots than experts needed at once.
        """
        slots = self.room(len(missing), module, keep)
        self.put(module, missing, slots)
        return slots

    def room(self, count: int, module: int, keep: np.ndarray) -> np.ndarray:
        """`count` slots that nothing lies in any more, not yet given to an expert. Raises EngineError, see `admit`."""
        lacking = count - len(self._free)
        if lacking > 0:
            self._evict(lacking, module, keep)
        return np.array([self._free.pop() for _ in range(count)], np.int32)

    def put(self, module: int, experts: np.ndarray, slots: np.ndarray) -> None:
        """The experts lie, or will lie, in these slots."""
        self._slot[module, experts] = slots

    def take_free(self, most: int, leaving: int = 0) -> list[int]:
        """Up to `most` of the slots that nothing lies in, `leaving` some."""
        return [self._free.pop() for _ in range(min(most, len(self._free) - leaving))]

    def items(self) -> Iterator[tuple[int, int, int]]:
        """(module, expert, slot) of what is in memory."""
        for module, expert in np.argwhere(self._slot >= 0).tolist():
            yield module, expert, int(self._slot[module, expert])

    def withhold(self, module: int, experts: np.ndarray) -> None:
        """Forget experts, but keep their slots out of use until `release`: something may still write into them."""
        self._slot[module, experts] = -1

    def release(self, slots: np.ndarray) -> None:
        """Slots that were withheld can be used again."""
        self._free.extend(slots.tolist())

    def retire(self, count: int) -> np.ndarray:
        """Take up to `count` slots out of use for good: free ones, then those of the least likely experts."""
        taken = [self._free.pop(0) for _ in range(min(count, len(self._free)))]
        held = int(np.count_nonzero(self._slot >= 0))
        if (lacking := min(count - len(taken), held)) > 0:
            self._evict(lacking, 0, np.empty(0, np.int32))
            taken += [self._free.pop() for _ in range(lacking)]
        self.slots -= len(taken)
        return np.array(taken, np.int32)

    def restore(self, slots: np.ndarray) -> None:
        """Slots that were retired are free again."""
        self.slots += len(slots)
        self.release(slots)

    def _learn_stickiness(self, module: int, chosen: np.ndarray) -> None:
        before = np.flatnonzero(self._chosen_last[module])
        if not len(before) or self._passes < 1:
            return
        fade = _FADE_CHOICES ** len(before)
        frequency = self._uses[module, before] / (self._passes + 1)
        self._choices = self._choices * fade + len(before)
        self._repeated = self._repeated * fade + len(set(before.tolist()).intersection(chosen.tolist()))
        self._expected = self._expected * fade + float(np.minimum(frequency, 1).sum())

    def _evict(self, count: int, module: int, keep: np.ndarray) -> None:
        s = self.stickiness
        likely = (1 - s) * self._uses / (self._passes + 1) + s * self._chosen_last
        # Among equals go those whose layer was passed last: it comes round last.
        passed = (module - 1 - np.arange(len(likely))) % len(likely)
        likely += passed[:, None] * 1e-9
        likely[self._slot < 0] = np.inf
        likely[module, keep] = np.inf
        going = np.argpartition(likely, min(count, likely.size) - 1, axis=None)[:count]
        if len(going) < count or not np.isfinite(likely.flat[going]).all():
            raise EngineError(f"{self.slots} slots are too few for the experts that are needed at once.")
        self._free.extend(self._slot.flat[going].tolist())
        self._slot.flat[going] = -1
