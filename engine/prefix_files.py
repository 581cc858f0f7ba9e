"""States of the model on disk, by the tokens they are of: written aside by a thread, then renamed; bounded; private.

A file's name ends with the digest of its content, and it lies in a folder named after all that the numbers depend on:
what is damaged, unfinished or of another model is never read as a state.
"""

import hashlib
import importlib.metadata
import json
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache
from safetensors import SafetensorError, safe_open

from engine import kv

log = logging.getLogger("pagoda.engine")

MOST_BYTES = 8 << 30
MOST_OF_FREE = 0.1  # of the disk, so that conversations never fill it
_DIGEST_CHARS = 32
# Libraries whose version may change the numbers, or what they mean.
_LIBRARIES = ("mlx", "mlx-lm", "numpy", "numba", "transformers", "pagoda")


@dataclass
class Filed:
    """A state on disk. `used` is seconds since the epoch."""

    tokens: np.ndarray
    path: Path
    nbytes: int
    used: float
    cuttable: bool
    liked: Sequence[int]


@dataclass
class Waiting:
    """A state that is to be written."""

    tokens: np.ndarray
    state: kv.State
    cuttable: bool
    liked: Sequence[int]


class PrefixFiles:
    """The states of one model in `folder`/`fingerprint`; the bound is over all models in `folder`."""

    def __init__(self, folder: Path, fingerprint: str, most_bytes: int | None = None):
        self._all, self._folder = folder, folder / fingerprint
        self._most_bytes = most_bytes
        self._filed: list[Filed] = []
        self._lock = threading.Lock()
        self._waiting: list[Waiting] = []
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()  # whether to go on after what waits
        self._last_s = 0.0  # how long the last file took
        self._told = False
        self._open()
        self._thread = threading.Thread(target=self._write_all, daemon=True, name="prefixes")
        self._thread.start()

    def filed(self) -> list[Filed]:
        """What can be loaded now."""
        with self._lock:
            return list(self._filed)

    @property
    def last_write_s(self) -> float:
        """How long the newest file took to write, in seconds."""
        return self._last_s

    def load(self, filed: Filed, like: kv.State) -> kv.State | None:
        """The state, evaluated; None, and the file is gone, where it is not what was written. `like` is an empty state
        of the model."""
        try:
            if _digest(filed.path) != filed.path.stem[-_DIGEST_CHARS:]:
                raise ValueError("its content is not what was written")
            state = load_prompt_cache(str(filed.path))
            state = kv.restored(state, like)
            if not kv.same_kind(state, like):
                raise ValueError("it is of other layers")
            state = kv.compact(state)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            log.warning("%s is ignored: %s", filed.path, error)
            self._remove(filed)
            return None
        filed.used = time.time()
        with suppress(OSError):  # replaced by a newer one meanwhile: what was read is good all the same
            os.utime(filed.path)
        return state

    def write(self, tokens: Sequence[int], state: kv.State, liked: Sequence[int] = ()) -> None:
        """Have a state written down soon, and which experts it likes; it takes the place of those that it goes on
        from, where it can be cut."""
        if not kv.can_store(state):
            return
        new = Waiting(np.array(tokens, np.int32), kv.compact(state), kv.can_cut(state), liked)
        with self._lock:  # on a slow disk the older ones would pile up in memory, only to be replaced
            self._waiting = [old for old in self._waiting if not replaces(new, old)] + [new]
        self._calls.put(True)

    def close(self) -> None:
        """Return when everything is written."""
        self._calls.put(False)
        self._thread.join()

    def _open(self) -> None:
        if not self._folder.is_dir():
            return
        for path in self._folder.glob("*.safetensors"):
            try:
                with safe_open(str(path), "np") as file:
                    about = json.loads((file.metadata() or {})["0.about"])
                known = path.stat()
                tokens = np.array(about["tokens"], np.int32)
            except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
                log.warning("%s is ignored: %s", path, error)
                path.unlink(missing_ok=True)
                continue
            cuttable, liked = about["cuttable"] is True, about.get("liked")
            liked = liked if isinstance(liked, list) else ()
            self._filed.append(Filed(tokens, path, known.st_size, known.st_mtime, cuttable, liked))

    def _write_all(self) -> None:
        while self._calls.get():
            with self._lock:
                job = self._waiting.pop(0) if self._waiting else None
            if job is None:
                continue
            started = time.perf_counter()
            try:
                self._write(job)
            except (OSError, RuntimeError) as error:
                # Not worth more than a line: the conversation is whole without it.
                log.log(logging.DEBUG if self._told else logging.WARNING, "a state could not be written: %s", error)
                self._told = True
            self._last_s = time.perf_counter() - started
            del job  # not kept until the next one comes

    def _write(self, job: Waiting) -> None:
        tokens, state = job.tokens, job.state
        for folder in (self._all, self._folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        size, cuttable = kv.nbytes(state), kv.can_cut(state)
        if size > self._make_room(size):
            return
        aside = self._folder / f"{threading.get_native_id()}.writing.safetensors"
        aside.unlink(missing_ok=True)
        try:
            os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            about = json.dumps({"tokens": tokens.tolist(), "cuttable": cuttable, "liked": list(job.liked)})
            save_prompt_cache(str(aside), kv.stored(state), {"about": about})
            key = hashlib.blake2b(tokens.tobytes(), digest_size=8).hexdigest()
            path = self._folder / f"{key}-{_digest(aside)}.safetensors"
            aside.rename(path)
        finally:
            aside.unlink(missing_ok=True)
        new = Filed(tokens, path, path.stat().st_size, time.time(), cuttable, job.liked)
        with self._lock:
            older = [f for f in self._filed if f.path != path and replaces(new, f)]
            self._filed = [f for f in self._filed if f.path != path] + [new]
        for filed in older:
            self._remove(filed)

    def _make_room(self, size: int) -> int:
        """Remove what was used longest ago until `size` more bytes fit; how many bytes there may be in all."""
        files = [(path.stat(), path) for path in self._all.glob("*/*.safetensors") if "writing" not in path.name]
        used = sum(known.st_size for known, _ in files)
        free = shutil.disk_usage(self._all).free
        most = self._most_bytes or min(MOST_BYTES, int((free + used) * MOST_OF_FREE))
        for known, path in sorted(files, key=lambda one: one[0].st_mtime):
            if used + size <= most:
                break
            path.unlink(missing_ok=True)
            used -= known.st_size
            with self._lock:
                self._filed = [f for f in self._filed if f.path != path]
        return most

    def _remove(self, filed: Filed) -> None:
        with self._lock:
            self._filed = [f for f in self._filed if f is not filed]
        filed.path.unlink(missing_ok=True)


class OfTokens(Protocol):
    """A state by its tokens, and whether it can be cut back to fewer of them."""

    tokens: np.ndarray
    cuttable: bool


def replaces(new: OfTokens, old: OfTokens) -> bool:
    """Whether all that the old one is good for the new one is good for too."""
    if len(new.tokens) < len(old.tokens) or not np.array_equal(new.tokens[: len(old.tokens)], old.tokens):
        return False
    return new.cuttable or len(new.tokens) == len(old.tokens)


def usable(held: OfTokens, wanted: np.ndarray) -> int:
    """How many of the wanted tokens, from the first one on, the state can be started from with."""
    common = min(len(held.tokens), len(wanted))
    apart = np.flatnonzero(held.tokens[:common] != wanted[:common])
    same = int(apart[0]) if len(apart) else common
    return same if held.cuttable or same == len(held.tokens) else 0


def _digest(path: Path) -> str:
    """Of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST_CHARS // 2)).hexdigest()


def fingerprint(folder: Path, *more: Any) -> str:
    """Of a model: its files, as far as names, sizes, times and small contents tell, the libraries' versions, and
    whatever `more` the numbers depend on."""
    found = hashlib.blake2b(digest_size=12)
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        known = path.stat()
        found.update(repr((path.name, known.st_size, known.st_mtime_ns)).encode())
        if known.st_size < 1 << 20:
            found.update(path.read_bytes())
    for library in _LIBRARIES:
        try:
            found.update(f"{library} {importlib.metadata.version(library)}".encode())
        except importlib.metadata.PackageNotFoundError:
            found.update(f"{library} none".encode())
    found.update(repr(more).encode())
    return found.hexdigest()
