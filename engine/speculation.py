"""Tokens guessed from what was written before, tried in one pass in which each expert is read once.

A guess is what followed the last few tokens when they came before: in the prompt, in the reply, in earlier versions of
it. Each guessed token passes through the model exactly as it would alone, and is kept only if it is the one that would
have been drawn. So tokens never change; only time may be lost, and that is bounded by what was measured.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Protocol

# What came after as many tokens before is likely to come again: three tell a phrase from a coincidence.
SEEN = 3
LONGEST = 8
# The part of a reply's time that guesses may have cost in all. Beyond it there are none until time has made up for it.
MAY_COST = 0.02
# How fast it goes without guesses is measured in stretches of passes. The first ones of a stretch don't count: a pass
# of many tokens leaves other experts in memory than one of a single token.
MEASURE, SETTLE = 12, 4
# Passes with guesses until that is measured again.
AGAIN = 64
# Gains beyond so many tokens' time are no licence to lose as much later.
CREDIT = LONGEST
# Time without guesses is taken to be this much shorter than measured: a gain must stand out from noise.
DOUBT = 0.97
# The part of a guess that is likely to be lost, when the one before it was right; else all of it is.
RISK = 0.25
_NOTHING = -1  # stands between texts; no token


class Drafter(Protocol):
    """A model that guesses: see engine/draft.py."""

    def seconds(self, tokens: Sequence[int], count: int) -> float: ...

    def guess(self, tokens: Sequence[int], count: int) -> list[int]: ...


class Speculation:
    """The guesses for one reply, and whether they pay."""

    def __init__(self, earlier: Iterable[Sequence[int]] = (), draft: Drafter | None = None):
        """`earlier` are the tokens of other versions of the same reply; `draft` is asked where they say nothing."""
        self._draft = draft
        self._known: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        for version in earlier:
            self._learn([*version, _NOTHING])
        self._own = len(self._known)
        self._length = 1
        self._pays = Pays()
        self.guessed = self.right = 0  # tokens, of the whole reply

    def guess(self, tokens: Sequence[int]) -> list[int]:
        """What may follow all these tokens; nothing where nobody knows, or where guesses have not paid."""
        self._learn(tokens[len(self._known) - self._own :])
        at = self._after.get(tuple(tokens[-SEEN:]))
        if at is None and self._draft is not None:
            extra = self._draft.seconds(tokens, self._length)
            return self._draft.guess(tokens, self._length) if self._pays.may_try(self._length, extra) else []
        if at is None or not self._pays.may_try(self._length):
            return []
        following = self._known[at : at + self._length]
        return following[: following.index(_NOTHING)] if _NOTHING in following else following

    def passed(self, guessed: int, kept: int, seconds: float) -> None:
        """A pass with so many guessed tokens, of which so many were right, took so long."""
        self._pays.passed(guessed, 1 + kept, seconds)
        self.guessed, self.right = self.guessed + guessed, self.right + kept
        if guessed:
            self._length = min(2 * self._length, LONGEST) if kept == guessed else max(kept, 1)

    def _learn(self, tokens: Sequence[int]) -> None:
        """Note what followed which tokens: the newest place counts."""
        for token in tokens:
            key = tuple(self._known[-SEEN:])
            if len(key) == SEEN and _NOTHING not in key:
                self._after[key] = len(self._known)
            self._known.append(token)


class Pays:
    """Weighs passes with guesses, and those between them, against stretches without any."""

    def __init__(self) -> None:
        self._without: deque[float] = deque(maxlen=MEASURE)
        self._settled = self._since = 0  # passes since the last guess; since the last measurement
        self._spent = self._cost = 0.0
        self._right = False

    def may_try(self, length: int, extra_s: float = 0.0) -> bool:
        """Whether a guess of so many tokens may be tried now; making it takes `extra_s`."""
        if len(self._without) < MEASURE or self._since >= AGAIN:
            return False
        risk = length * self._token_s * (RISK if self._right else 1) + extra_s
        return self._cost + risk <= MAY_COST * self._spent

    def passed(self, guessed: int, tokens: int, seconds: float) -> None:
        """A pass gave so many tokens."""
        self._spent += seconds
        if guessed:
            self._settled, self._right = 0, tokens == 1 + guessed
        if len(self._without) < MEASURE or self._since >= AGAIN:
            self._measure(seconds)
            return
        self._since += 1
        self._settled += not guessed
        if self._settled <= SETTLE:  # what follows a guess soon is slower or faster because of it
            self._cost = max(self._cost + seconds - tokens * self._token_s, -CREDIT * self._token_s)

    @property
    def _token_s(self) -> float:
        return DOUBT * min(fmean(self._without), median(self._without))

    def _measure(self, seconds: float) -> None:
        self._settled += 1
        if self._settled <= SETTLE:
            return
        if self._since >= AGAIN and self._settled == SETTLE + 1:
            self._without.clear()
        self._without.append(seconds)
        if len(self._without) == MEASURE:
            self._since = 0
