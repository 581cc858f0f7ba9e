"""What each model of this computer would need and how fast it would be: found out in another process, and remembered.

One look takes seconds, so only one goes on at a time, and its result holds until the model's files change.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from backend.local_models import folder_of

log = logging.getLogger(__name__)

# Raise it when what a forecast says, or how it is found out, changes.
VERSION = 2


class Forecasts:
    """`data_dir` is where the default model lies, and where forecasts are remembered."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._path = data_dir / "forecasts.json"
        self._one_at_a_time = asyncio.Lock()
        self._children: set[asyncio.subprocess.Process] = set()
        self._known: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            self._known = json.loads(self._path.read_text())

    async def of(self, name: str) -> dict[str, Any] | None:
        """Sizes, and what a budget buys (backend/forecast_child.py); `{problem}` for what can't be used; None where
        there is nothing to look at yet."""
        key = await asyncio.to_thread(_key, name, self._data_dir)
        if key is None:
            return None
        if key not in self._known:
            async with self._one_at_a_time:
                if key not in self._known:
                    self._known[key] = await self._look(name)
                    self._remember()
        return self._known[key]

    def close(self) -> None:
        """End what still looks."""
        for child in self._children:
            if child.returncode is None:
                child.kill()

    async def _look(self, name: str) -> dict[str, Any]:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "backend.forecast_child",
            name,
            str(self._data_dir),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._data_dir,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [_here(), os.environ.get("PYTHONPATH")]))},
        )
        self._children.add(child)
        try:
            said, complaints = await child.communicate()
        finally:
            self._children.discard(child)
        try:
            return json.loads(said.splitlines()[-1])
        except (IndexError, ValueError):
            log.warning(
                "no forecast for %s (code %s): %s", name, child.returncode, complaints[-2000:].decode(errors="replace")
            )
            return {"problem": "What this model needs could not be found out. Pagoda’s log says more."}

    def _remember(self) -> None:
        with contextlib.suppress(OSError):  # then it is found out again after a restart
            lasting = {key: said for key, said in self._known.items() if "problem" not in said}
            self._path.write_text(json.dumps(lasting))


def _here() -> str:
    return str(Path(__file__).parent.parent)


def _key(name: str, data_dir: Path) -> str | None:
    """Names a model as it lies on disk now; None where it does not."""
    folder = folder_of(name, data_dir)
    if folder is None:
        return None
    digest = hashlib.sha256(f"{VERSION} {name}".encode())
    for path in sorted(folder.glob("*")):
        if path.suffix in (".safetensors", ".json"):
            stat = path.stat()
            digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]
