"""The data folder: for its owner only, and for one Pagoda at a time."""

import contextlib
import fcntl
import os
from pathlib import Path

from backend.errors import CannotStart, FolderInUse


class FolderLock:
    """Holds the data folder. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(PermissionError):  # a folder of another owner that we may still write to
                folder.chmod(0o700)
            self._file = os.open(folder / "pagoda.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CannotStart(
                f"The data folder {folder} cannot be used: {error.strerror or error}. "
                "Make it writable, or choose another one with --data."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise FolderInUse(
                f"Another Pagoda (process {pid}) is using the data folder {folder}. "
                "Open its page, end it first, or start this one with another folder: --data DIR."
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the next Pagoda in; harmless when repeated."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
