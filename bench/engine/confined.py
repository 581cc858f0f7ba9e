"""Runs a program, if wished within a memory limit and with its files out of the page cache, and watches its memory.

The limit is a cgroup's, so it counts mapped files and page cache too, as a machine with so little memory would.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
TIMEOUT_S = 1800


def run(command: Sequence[str], limit_bytes: int | None = None) -> dict:
    """What the program printed as the last line, a JSON object; `error` where it failed.

    Raises PermissionError where this machine lets us make no cgroup.
    """
    with _limit(limit_bytes) if limit_bytes else nullcontext() as joining:
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
def _limit(nbytes: int):
    """A cgroup (version 1 or 2) with a memory limit; gives the function with which a child process joins it."""
    v1 = (_V1 / "memory.limit_in_bytes").exists()
    group = (_V1 if v1 else _V2) / f"pagoda-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(nbytes))
        members = str(group / "cgroup.procs")

        def join() -> None:
            with open(members, "w") as file:
                file.write(str(os.getpid()))

        yield join
    finally:
        try:
            group.rmdir()
        except OSError as error:
            print(f"{group} is still there: {error}", file=sys.stderr)
