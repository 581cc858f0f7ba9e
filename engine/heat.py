"""What a model's routers liked, kept from one start to the next, and the favourites read before anybody asks.

A small file per model in the data folder. Each session moves what is kept only part of the way to what it saw, so that
no single conversation decides what the next start begins with; and what was read is thrown out as soon as this
session's own choices say otherwise. A file that is damaged or of another model is as good as none.
"""

import io
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from engine.slots import SlotStore

# A session of so many passes or more counts three tenths of what is kept, a shorter one in proportion.
FULL_SESSION_PASSES = 64
SHARE = 0.3
# What was kept weighs as much as so many passes of this session.
WEIGHT_PASSES = 16
_AT_ONCE = 4
_WAIT_S = 0.02  # so much later a command may be heard that comes meanwhile
_MOST_BYTES = 64 << 20
# Of what a conversation liked, no more is told.
_MOST_LIKED = 4096


def load(file: Path, stores: Sequence[SlotStore]) -> list[np.ndarray] | None:
    """How likely a pass uses each expert, [modules, experts] a store; None without a file that fits this model."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            return None
        with np.load(file, allow_pickle=False) as kept:
            found = [np.asarray(kept[f"store{number}"], np.float64) for number in range(len(stores))]
    except Exception:  # whatever is wrong with it
        return None
    fits = all(
        heat.shape == store.heat().shape and np.isfinite(heat).all() and heat.min() >= 0 and heat.max() <= 1.001
        for heat, store in zip(found, stores, strict=True)
    )
    return found if fits else None


def save(file: Path, kept: Sequence[np.ndarray] | None, stores: Sequence[SlotStore], passes: float) -> list[np.ndarray]:
    """Move what is kept towards what `stores` have seen in `passes` passes, and write it; what is kept now.

    Raises OSError.
    """
    seen = [store.heat() for store in stores]
    share = SHARE * min(passes / FULL_SESSION_PASSES, 1)
    now = seen if kept is None else [(1 - share) * old + share * new for old, new in zip(kept, seen, strict=True)]
    now = [np.clip(heat, 0, 1) for heat in now]
    text = io.BytesIO()
    arrays: dict[str, Any] = {f"store{number}": heat.astype(np.float32) for number, heat in enumerate(now)}
    np.savez_compressed(text, **arrays)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(text.getvalue())
            out.flush()
            os.fsync(out.fileno())
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)
    return now


class Warmth:
    """Of a loaded model: warms its slots while nobody asks for anything, and remembers what was liked."""

    def __init__(self, file: Path, stores: Sequence[SlotStore]):
        self._file, self._stores = file, list(stores)
        self._kept = load(file, stores)
        self._saved_at = 0.0
        self._waiting = deque(self._order())
        self._wanted: deque[tuple[SlotStore, int, int]] = deque()
        for store, heat in zip(self._stores, self._kept or [], strict=False):
            store.expect(heat, WEIGHT_PASSES)

    def step(self) -> bool:
        """Do a little of what there is to do while the engine is idle; whether there is more to do soon."""
        coming = sum(store.settle(_WAIT_S) for store in self._stores)
        while self._wanted and coming < _AT_ONCE:
            store, place, expert = self._wanted.popleft()
            store.warm(place, expert, instead=True)
            coming = sum(store.settle() for store in self._stores)
        while self._waiting and coming < _AT_ONCE:
            store, place, expert = self._waiting[0]
            if not store.warm(place, expert):
                self._waiting.clear()
                break
            self._waiting.popleft()
            coming = sum(store.settle() for store in self._stores)
        if not coming and not self._waiting and not self._wanted:
            self._remember()
        return bool(coming or self._waiting or self._wanted)

    def liked(self) -> list[int]:
        """The experts that were used most of late, the likeliest first, as many as fit in memory: by their number among
        all of all stores."""
        found, first = [], 0
        for store in self._stores:
            heat = store.heat().reshape(-1)
            if not store.fits_all:
                best = np.argsort(-heat, kind="stable")[: store.slots]
                found += [(float(heat[one]), first + one) for one in best.tolist() if heat[one] > 0]
            first += heat.size
        return [number for _, number in sorted(found, key=lambda each: -each[0])[:_MOST_LIKED]]

    def want(self, liked: Sequence[int]) -> None:
        """Read these first. They are taken for liked again, so that they stay until other choices say otherwise."""
        self._wanted.clear()
        first = 0
        for store in self._stores:
            modules, experts = store.heat().shape
            heat = np.zeros((modules, experts))
            mine = [one - first for one in liked if isinstance(one, int) and first <= one < first + heat.size]
            mine = mine[: store.slots]
            first += heat.size
            if not mine or store.fits_all:
                continue
            heat.flat[mine] = 1.0
            store.expect(heat, WEIGHT_PASSES)
            known = set(store.each_expert())
            where = [divmod(one, experts) for one in mine]
            self._wanted.extend((store, *one) for one in where if one in known)

    def _order(self) -> list[tuple[SlotStore, int, int]]:
        """What to read, the likeliest first; where all fit and nothing is known, all."""
        order: list[tuple[float, SlotStore, int, int]] = []
        for number, store in enumerate(self._stores):
            heat = self._kept[number] if self._kept else store.heat()
            least = 0.0 if store.fits_all else 1e-3
            for place, expert in store.each_expert():
                if heat[place, expert] >= least:
                    order.append((-float(heat[place, expert]), store, place, expert))
        order.sort(key=lambda each: each[0])
        return [each[1:] for each in order]

    def _remember(self) -> None:
        passes = max((store.passes for store in self._stores), default=0.0)
        if passes - self._saved_at < 8:
            return
        with suppress(OSError):  # a full disk costs a cold start, no more
            self._kept = save(self._file, self._kept, self._stores, passes - self._saved_at)
        self._saved_at = passes
