"""Compiles the CPU's kernels ahead, in a process of its own: the engine then only loads what Numba has in its cache.

Compiling takes some 60 MB and ten seconds, once for a machine and a version. In the engine's process that memory would
come out of the budget at the moment when a first message needs it too (measured: 3 to 5 % beyond), and half of the time
would fall on that message.
"""

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

log = logging.getLogger("pagoda.engine")

_WITHIN = "PAGODA_COMPILING"
_SOURCES = (*Path(__file__).parent.glob("kernels/*.py"), Path(__file__).parent / "native_reads.py")
# Enough of a prompt that every kind of product, and attention over a whole block of a KV cache, comes up.
_PROMPT = 255
_TIMEOUT_S = 600


def compile_ahead(report: Callable[[str, int, int, str], None]) -> None:
    """See to it that all kernels are in Numba's cache. Where that fails they are compiled as they are needed."""
    if os.environ.get(_WITHIN):
        return
    try:
        note = _note()
    except ImportError:  # no Numba, so there is nothing to compile
        return
    if _still_holds(note):
        return
    report("compile", 0, 1, "steps")
    try:
        with _one_at_a_time(note):
            if not _still_holds(note):
                command = [sys.executable, "-m", "engine.compiling", str(note)]
                log.info("compiling the kernels for this machine (once)")
                environment = {**os.environ, _WITHIN: "1"}
                subprocess.run(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=2, check=True, timeout=_TIMEOUT_S
                )
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("the kernels could not be compiled ahead, so they are compiled as they are needed: %s", error)
    report("compile", 1, 1, "steps")


def dispatchers() -> Iterator[Any]:
    """All functions of the kernels that Numba compiles for the types they are called with."""
    from numba.core.dispatcher import Dispatcher

    for name, module in list(sys.modules.items()):
        if name.startswith("engine."):
            yield from (each for each in vars(module).values() if isinstance(each, Dispatcher))


def _note() -> Path:
    """Where it is noted that everything was compiled: by what Numba's own cache depends on."""
    from llvmlite import binding

    stamps = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(_SOURCES)]
    machine = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    versions = sys.version, version("numba"), version("llvmlite")
    said = repr((stamps, machine, versions, os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("NUMBA_CPU_NAME")))
    name = hashlib.sha256(said.encode()).hexdigest()[:16]
    return user_cache_path("pagoda", appauthor=False) / "kernels" / f"{name}.json"


def _still_holds(note: Path) -> bool:
    """Whether everything was compiled, and nobody has cleared Numba's cache since."""
    try:
        return all(Path(file).exists() for file in json.loads(note.read_text()))
    except (OSError, ValueError):
        return False


@contextmanager
def _one_at_a_time(note: Path) -> Iterator[None]:
    import fcntl

    note.parent.mkdir(parents=True, exist_ok=True)
    with open(note.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run_everything() -> None:
    """Every way a token and a prompt can take through the kernels, in a model small enough to be nothing."""
    import mlx.core as mx
    import numpy as np
    from mlx_lm.models.cache import make_prompt_cache

    from engine.loader import load
    from engine.native_reads import read_all
    from engine.synth import synthesise

    read_all(np.empty((0, 4), np.int64))  # the model below uses it only if the page cache has its files whole
    shape: dict[str, Any] = {"layers": 2, "experts": 16, "hidden": 256, "expert_hidden": 128, "top_k": 4, "vocab": 1024}
    with tempfile.TemporaryDirectory() as scratch:
        model = load(synthesise(Path(scratch) / "tiny", "olmoe", **shape), expert_bytes=0.5)
        prompt, cache = [5 + n % 900 for n in range(_PROMPT)], make_prompt_cache(model)
        model(mx.array([prompt[:6]]), cache=make_prompt_cache(model))  # few rows for an expert
        model.fill(mx.array([prompt]), cache)
        for token in range(3):
            model(mx.array([[token]]), cache=cache)
        model.next_logits([5, 6], [cache, make_prompt_cache(model)])
        model.close()


def main() -> None:
    """Entry point of `python -m engine.compiling NOTE`."""
    from numba.core.compiler_lock import global_compiler_lock

    _run_everything()
    with global_compiler_lock:  # a thread of the crew may still be at it
        folders = {Path(each.stats.cache_path) for each in dispatchers()}
    indexes = sorted(str(file) for folder in folders for file in folder.glob("*.nbi"))
    note = Path(sys.argv[1])
    aside = note.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps(indexes))
    os.replace(aside, note)


if __name__ == "__main__":
    main()
