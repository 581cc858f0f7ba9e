"""A second, smaller model whose words are guesses of what the first one will say (`--draft`).

It is wholly in memory, greedy, and follows one sequence at a time. What it says is tried like any other guess: it never
changes a token, and how long it takes counts against it (engine/speculation.py).
"""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engine import kv, loader
from engine.errors import EngineError
from engine.loader import PagedModel

_CHUNK = 256
# A prompt is read in chunks, and a token costs far less there than it does alone: measured so, or reading one would
# seem too dear for ever.
_WARM_UP = 64
# Newest measurements count so much.
_NEW = 0.3


class Draft:
    """Guesses with `model`, which it owns."""

    def __init__(self, model: PagedModel):
        self._model = model
        self._state = make_prompt_cache(model)
        self._fed: list[int] = []
        self._read_s = self._write_s = 0.0
        some = [number % 8 for number in range(_WARM_UP)]
        self.guess(some, 2)  # compiles what has to be, so that the second time tells the speed
        self._fed, self._read_s, self._write_s = [], 0.0, 0.0
        self.guess([8, *some], 2)

    @property
    def name(self) -> str:
        """Which model it is."""
        return self._model.path.name

    def seconds(self, tokens: Sequence[int], count: int) -> float:
        """How long so many guesses after these tokens will take, as far as is known."""
        unread = len(tokens) - self._common(tokens)
        return unread * self._read_s + count * self._write_s

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """What it would say after all these tokens."""
        common = self._common(tokens)
        kv.cut(self._state, common)
        self._fed = list(tokens[:common])
        unread = tokens[common:-1]
        started = perf_counter()
        for at in range(0, len(unread), _CHUNK):
            self._model.fill(mx.array([unread[at : at + _CHUNK]]), self._state)
        if unread:
            self._read_s = _mixed(self._read_s, (perf_counter() - started) / len(unread))
        self._fed += unread
        said, started = [tokens[-1]], perf_counter()
        for _ in range(count):
            logits = self._model(mx.array([said[-1:]]), cache=self._state)
            self._fed.append(said[-1])
            said.append(int(mx.argmax(logits[0, -1])))
        if count:
            self._write_s = _mixed(self._write_s, (perf_counter() - started) / count)
        return said[1:]

    def close(self) -> None:
        """Nothing can be guessed afterwards."""
        self._model.close()

    def _common(self, tokens: Sequence[int]) -> int:
        """How many of the tokens it has read already; never the last one, whose logits are wanted."""
        most = min(len(self._fed), len(tokens) - 1)
        return next((at for at in range(most) if self._fed[at] != tokens[at]), most)


def load_draft(folder: Path) -> Draft:
    """Load the model in `folder` for guessing. Raises EngineError when it can't serve for that."""
    model = loader.load(folder, expert_bytes="all", lookahead=False)
    if not kv.always_cuttable(make_prompt_cache(model)):
        model.close()
        raise EngineError(f"{folder.name} can't be a draft: what it has read can't be taken back. Choose another.")
    return Draft(model)


def speaks_like(draft: Draft, model: PagedModel) -> bool:
    """Whether both have the same tokens: else one's numbers mean nothing to the other."""
    return draft._model.tokenizer.get_vocab() == model.tokenizer.get_vocab()


def _mixed(old: float, new: float) -> float:
    return new if not old else (1 - _NEW) * old + _NEW * new
