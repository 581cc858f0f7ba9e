"""What this machine can do, measured: its disk in the engine's own read pattern, its memory, its versions."""

import importlib.metadata
import os
import platform
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import mlx.core as mx
import numpy as np

from engine import memory, slot_memory
from engine.checkpoint import Extent
from engine.disk import Disk
from engine.provenance import Origin
from engine.runs import Read
from engine.slots import places

_PROBE_FILE_BYTES = 256 << 20
_PROBE_SECONDS = 1.0
_TYPICAL_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Machine:
    """What `pagoda doctor` reports. Bytes and bytes per second."""

    device: str
    system: str
    cores: int
    memory_bytes: int
    auto_budget_bytes: int
    memory_bytes_per_s: float
    disk_bytes_per_s: float
    disk_probed_in: str
    kernels: str
    versions: dict[str, str]


def examine(folder: Path) -> Machine:
    """Measure this machine; the disk is probed with a temporary file in `folder`. Takes a few seconds."""
    return Machine(
        device=device_name(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=memory.physical_bytes(),
        auto_budget_bytes=memory.auto_budget(),
        memory_bytes_per_s=memory_speed(),
        disk_bytes_per_s=probe_folder(folder),
        disk_probed_in=str(folder),
        kernels=_kernels(),
        versions={name: _version(name) for name in ("pagoda", "mlx", "mlx-lm", "numpy", "numba", "nicegui")},
    )


def device_name() -> str:
    """Where MLX computes: cpu or gpu."""
    import mlx.core as mx

    return "cpu" if mx.default_device() == mx.cpu else "gpu"


def memory_speed(nbytes: int = 256 << 20) -> float:
    """Bytes per second that one thread reads from memory (the best of three)."""
    block = np.ones(nbytes // 8, np.int64)
    times = []
    for _ in range(3):
        started = perf_counter()
        block.sum()
        times.append(perf_counter() - started)
    return nbytes / min(times)


def probe_folder(folder: Path) -> float:
    """Bytes per second of the engine's reads from the disk behind `folder`, a batch of 1 MiB pieces at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="probe-") as file:
        block = os.urandom(1 << 20)
        for _ in range(_PROBE_FILE_BYTES >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        rows = _PROBE_FILE_BYTES // _TYPICAL_READ_BYTES
        whole = Extent("probe", Path(file.name), 0, _PROBE_FILE_BYTES, "U8", (rows, _TYPICAL_READ_BYTES))
        return disk_speed([[whole]], experts_at_once=4)


def disk_speed(modules: Sequence[Sequence[Origin]], experts_at_once: int) -> float:
    """Bytes per second at which the engine reads experts it does not have, past the page cache.

    `modules` gives the pieces of each layer's experts. As in a reply, a few random ones of a layer are read at once,
    all their pieces, and waited for before the next layer's.
    """
    disk = Disk(cache=False)
    layers = [[(*places(origin, disk), _row_bytes(origin), origin) for origin in pieces] for pieces in modules]
    one = max(sum(size for *_, size, _ in pieces) for pieces in layers)
    target = slot_memory.allocate((experts_at_once, -(-one // slot_memory.PAGE) * slot_memory.PAGE), mx.uint8)
    first, width = slot_memory.address_of(target), target.shape[1]
    chosen, done, started = random.Random(0), 0, perf_counter()
    # Each expert is read once, so that no read is answered by the disk's own memory.
    left = [chosen.sample(range(len(pieces[0][1])), len(pieces[0][1])) for pieces in layers]
    try:
        while any(left):
            for pieces, rows in zip(layers, left, strict=True):
                some, rows[:] = rows[:experts_at_once], rows[experts_at_once:]
                reads = []
                for slot, row in enumerate(some):
                    address = first + slot * width
                    for files, offsets, size, origin in pieces:
                        reads.append(Read(int(files[row]), int(offsets[row]), size, address, origin, row))
                        address += size
                reading = disk.read(reads, target)
                if not reading.wait(_PROBE_SECONDS * 10):
                    return done / (perf_counter() - started)
                done += reading.nbytes
                if perf_counter() - started > _PROBE_SECONDS:
                    return done / (perf_counter() - started)
        return done / (perf_counter() - started)
    finally:
        disk.close()


def _row_bytes(origin: Origin) -> int:
    return origin.nbytes // max(origin.shape[0], 1)


def _kernels() -> str:
    if device_name() != "cpu":
        return "MLX"
    try:
        import numba
    except ImportError:
        return "MLX alone (Numba is not installed: replies are several times slower)"
    return f"Numba {numba.__version__} and NumPy"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
