"""Runs a program, if wished within limits of memory and disk speed and with its files out of the page cache.

The limit is a cgroup's, so it counts mapped files and page cache too, as a machine with so little memory would.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
_BLKIO = Path("/sys/fs/cgroup/blkio")
TIMEOUT_S = 1800


def run(command: Sequence[str], limit_bytes: int | None = None, disk: tuple[Path, int] | None = None) -> dict:
    """What the program printed as the last line, a JSON object; `error` where it failed.

    `disk`: a file on it, and the bytes a second that may be read from it. Raises PermissionError where this machine
    lets us make no cgroup.
    """
    with _limits(limit_bytes, disk) if limit_bytes or disk else nullcontext() as joining:
        done = subprocess.run(
            list(command), capture_output=True, text=True, timeout=TIMEOUT_S, preexec_fn=joining, check=False
        )
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    if done.returncode == -9:
        return {"error": "killed: out of memory"}
    return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}


def forget(folders: Sequence[Path]) -> None:
    """Take all files of these folders out of the page cache."""
    os.sync()
    for folder in folders:
        for file in [f for f in ([folder] if folder.is_file() else folder.rglob("*")) if f.is_file()]:
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


@contextmanager
def _limits(memory: int | None, disk: tuple[Path, int] | None) -> Iterator[Callable[[], None]]:
    """Cgroups (version 1 or 2) with these limits; gives the function with which a child process joins them."""
    wanted: list[tuple[Path, str, str]] = []
    if memory:
        v1 = (_V1 / "memory.limit_in_bytes").exists()
        wanted.append((_V1 if v1 else _V2, "memory.limit_in_bytes" if v1 else "memory.max", str(memory)))
    if disk:
        v1 = (_BLKIO / "blkio.throttle.read_bps_device").exists()
        limit = f"{_disk_of(disk[0])} {'' if v1 else 'rbps='}{disk[1]}"
        wanted.append((_BLKIO if v1 else _V2, "blkio.throttle.read_bps_device" if v1 else "io.max", limit))
    groups = {base / f"pagoda-bench-{os.getpid()}" for base, _, _ in wanted}  # one where both are of version 2
    try:
        for group in groups:
            group.mkdir()
        for base, name, limit in wanted:
            (base / f"pagoda-bench-{os.getpid()}" / name).write_text(limit)

        def join() -> None:
            for group in groups:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        yield join
    finally:
        for group in groups:
            try:
                group.rmdir()
            except OSError as error:
                print(f"{group} is still there: {error}", file=sys.stderr)


def _disk_of(file: Path) -> str:
    """The number of the whole disk that a file lies on: a partition can't be limited on its own."""
    device = os.stat(file).st_dev
    here = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    return ((here.parent if (here / "partition").exists() else here) / "dev").read_text().strip()
