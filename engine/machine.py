"""What this machine can do, measured: its disk in the engine's own read pattern, its memory, its versions."""

import importlib.metadata
import os
import platform
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from engine import memory
from engine.checkpoint import Extent
from engine.disk import Disk, Read

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
    """Bytes per second of parallel random reads of 1 MiB from the disk behind `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="probe-") as file:
        block = os.urandom(1 << 20)
        for _ in range(_PROBE_FILE_BYTES >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        whole = Extent("probe", Path(file.name), 0, _PROBE_FILE_BYTES, "U8", (_PROBE_FILE_BYTES,))
        return disk_speed([whole], _TYPICAL_READ_BYTES)


def disk_speed(extents: list[Extent], read_bytes: int) -> float:
    """Bytes per second of random parallel reads of `read_bytes` within `extents`, past the page cache.

    The cache is dropped first where the system allows it (Linux); elsewhere the reads themselves avoid it.
    """
    for file in {extent.file for extent in extents}:
        _drop_cache(file)
    places = [
        Extent(extent.name, extent.file, extent.offset + at, read_bytes, "U8", (read_bytes,))
        for extent in extents
        for at in range(0, extent.nbytes - read_bytes + 1, read_bytes)
    ]
    random.Random(0).shuffle(places)
    disk, target, done = Disk(), bytearray(32 * read_bytes), 0
    view, started = memoryview(target), perf_counter()
    try:
        # Each place is read once, so that no read is answered from memory.
        for batch in range(0, len(places), 32):
            some = places[batch : batch + 32]
            reads = [Read(p, view[i * read_bytes : (i + 1) * read_bytes], "a disk probe") for i, p in enumerate(some)]
            done += sum(future.result() for future in disk.read(reads))
            if perf_counter() - started > _PROBE_SECONDS:
                break
        return done / (perf_counter() - started)
    finally:
        disk.close()


def _drop_cache(file: Path) -> None:
    if hasattr(os, "posix_fadvise"):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


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
