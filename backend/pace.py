"""How fast a reply really goes, and when it may be there: ranges from measured rates, or nothing at all.

Every figure is units of work over seconds in which they were done. Where nothing was measured there is no estimate.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from backend.chunks import Chunk, Progress
from backend.journal import Journal

MEASURED_S = 1.0  # seconds of work before its rate is worth telling; a shorter stretch is mostly noise
SPREAD = 0.1  # what is added to both ends: two rates that happen to agree are not a promise
REMEMBERED = 5  # replies whose rates an estimate may lean on
POINTS = 240  # of a reply's course; more than a plot of that width can show


class Track:
    """Work done against time: marks of (seconds, units), both only growing."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float]] = []

    def mark(self, seconds: float, units: float) -> None:
        """So much was done by then. What does not go forward is no news."""
        if not self._marks or units > self._marks[-1][1]:
            self._marks.append((seconds, units))
            if len(self._marks) > 400:
                del self._marks[1:-1:2]  # thinner in the middle; the first and the newest stay

    @property
    def units(self) -> float:
        return self._marks[-1][1] if self._marks else 0.0

    def rate(self, since: int = 0) -> float | None:
        """Units a second from the mark `since` to the newest one; None when that is too short to tell."""
        if len(self._marks) - since < 2:
            return None
        (begin, first), (end, last) = self._marks[since], self._marks[-1]
        return (last - first) / (end - begin) if end - begin >= MEASURED_S else None

    def rates(self) -> list[float]:
        """The rate over all of it, and that of its last third."""
        return [rate for rate in (self.rate(), self.rate(2 * len(self._marks) // 3)) if rate]


@dataclass
class Range:
    """Seconds, from the fastest to the slowest measured rate."""

    low: float
    high: float


class Pace:
    """What earlier replies of one source measured: the rates an estimate leans on until a reply has its own."""

    def __init__(self, earlier: Iterable[dict[str, Any] | None] = ()) -> None:
        self.prefill: deque[float] = deque(maxlen=REMEMBERED)
        self.decode: deque[float] = deque(maxlen=REMEMBERED)
        for timings in earlier:
            self.learn(timings)

    def learn(self, timings: dict[str, Any] | None) -> None:
        """Take note of a reply that has ended."""
        if rate := (timings or {}).get("prefill_tokens_per_s"):
            self.prefill.append(rate)
        if rate := (timings or {}).get("tokens_per_s"):
            self.decode.append(rate)


class Paces:
    """The pace of every model, beginning with what the newest conversations on disk say of it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known: dict[str, Pace] = {}

    def of(self, model: str) -> Pace:
        if model not in self._known:
            newest = [self._journal.attempts(row.id) for row in self._journal.summaries()[:3]]
            attempts = [attempt for replies in reversed(newest) for reply in replies.values() for attempt in reply]
            self._known[model] = Pace(attempt.timings for attempt in attempts if attempt.model == model)
        return self._known[model]


def remaining(units: float, own: list[float], earlier: Iterable[float]) -> Range | None:
    """How long `units` of work will take; the reply's own rates count as soon as there are some."""
    rates = own or list(earlier)
    if units < 0 or not rates:
        return None
    return Range((1 - SPREAD) * units / max(rates), (1 + SPREAD) * units / min(rates))


def course(chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    """How a reply went, as it was journalled: for each token that progress told of, the newest of its counters."""
    told: dict[tuple[str, int | None], Progress] = {}
    for chunk in chunks:
        if isinstance(chunk.data, Progress) and chunk.data.stage in ("prefill", "decode"):
            told[chunk.data.stage, chunk.data.tokens_done] = chunk.data
    points = list(told.values())
    step = max(1, -(-len(points) // POINTS))
    kept = points[step - 1 :: step]
    if points and kept[-1:] != points[-1:]:
        kept.append(points[-1])
    names = ("stage", "elapsed_s", "tokens_done", "expert_hits", "expert_reads", "bytes_read")
    return [{name: getattr(point, name) for name in names} for point in kept]
