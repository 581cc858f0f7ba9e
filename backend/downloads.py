"""Models on their way from the hub into this computer's cache: begun, watched, cancelled, gone on with.

A download belongs to Pagoda, not to a page. One that a restart interrupted is there again, with what has come of it.
"""

import asyncio
import logging
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from backend.errors import CannotWrite
from backend.hub import DownloadFailed, HubModel, cache_folder, look_up, name_in, new_client
from backend.hub_file import fetch, room_for
from backend.kept import Kept

log = logging.getLogger("pagoda.downloads")

TELL_EVERY_S = 0.5
RATE_OVER_S = 10.0  # the rate is that of the last ten seconds: a network's speed changes
KEPT = "downloads"


@dataclass
class Download:
    """`done` of `total` bytes are here, `fetched` of them over the network by this try. `bytes_per_s` is measured; None
    while there is nothing to measure. `detail` says why it failed."""

    name: str
    state: Literal["asking", "loading", "failed", "paused", "done"] = "asking"
    done: int = 0
    total: int | None = None
    fetched: int = 0
    bytes_per_s: float | None = None
    detail: str | None = None


class Downloads:
    """`tell` is called with `rows()` whenever something changed, twice a second at most while bytes come."""

    def __init__(self, kept: Kept, tell: Callable[[list[dict[str, Any]]], None]) -> None:
        self._kept, self._tell = kept, tell
        self._all = {name: Download(name, "paused") for name in kept.get(KEPT, []) if isinstance(name, str)}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """All that are not forgotten, as JSON."""
        return [asdict(download) for download in self._all.values()]

    def start(self, text: str) -> str:
        """Begin, or go on with, the model that a person named; returns its name. Raises DownloadFailed."""
        name = name_in(text)
        if name not in self._tasks:
            before = self._all.get(name)
            self._all[name] = Download(name, done=before.done if before else 0, total=before.total if before else None)
            self._keep()
            task = asyncio.get_running_loop().create_task(self._run(self._all[name]), name=f"download of {name}")
            self._tasks[name] = task
        self._tell(self.rows())
        return name

    async def pause(self, name: str) -> None:
        """Stop it and keep what has come. Harmless for one that does not run."""
        if task := self._tasks.get(name):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._all[name].state, self._all[name].bytes_per_s = "paused", None
            self._tell(self.rows())

    async def cancel(self, name: str) -> None:
        """Stop it and remove what has come of it; a model that is whole stays."""
        await self.pause(name)
        if (download := self._all.pop(name, None)) and download.state != "done":
            await asyncio.to_thread(_remove_parts, _folder(name))
        self._keep()
        self._tell(self.rows())

    async def close(self) -> None:
        """Stop all; what has come is kept, and the next Pagoda offers to go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _keep(self) -> None:
        self._kept.set(KEPT, [d.name for d in self._all.values() if d.state != "done"] or None)

    async def _run(self, download: Download) -> None:
        watching = asyncio.get_running_loop().create_task(self._watch(download))
        try:
            async with new_client() as client:
                await self._load(client, download)
            download.state, download.detail = "done", None
        except DownloadFailed as error:
            download.state, download.detail = "failed", str(error)
        except OSError as error:
            download.state, download.detail = "failed", f"The cache cannot be used: {error}."
        except Exception as error:
            log.exception("the download of %s failed", download.name)
            download.state, download.detail = "failed", f"Something unexpected went wrong ({error!r}). Try again."
        finally:
            watching.cancel()
            self._tasks.pop(download.name, None)
        download.bytes_per_s = None
        with suppress(CannotWrite):  # a full disk: the list of downloads can wait
            self._keep()
        self._tell(self.rows())

    async def _load(self, client: httpx.AsyncClient, download: Download) -> None:
        model = await look_up(client, download.name)
        folder = _folder(download.name)
        blobs = folder / "blobs"
        await asyncio.to_thread(blobs.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(room_for, model, blobs)
        download.state, download.total = "loading", model.size
        before = 0
        for file in model.files:

            def came(count: int, fetched: int, before: int = before) -> None:
                download.done = before + count
                download.fetched += fetched

            await fetch(client, model, file, blobs, came)
            before += file.size
        await asyncio.to_thread(_let_in, model, folder)

    async def _watch(self, download: Download) -> None:
        """Measure the rate of what comes over the network, and tell; when nothing comes, that shows too."""
        marks = deque([(time.monotonic(), 0)])
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            marks.append((time.monotonic(), download.fetched))
            while marks[-1][0] - marks[1][0] > RATE_OVER_S:
                marks.popleft()
            (since, begun), (until, done) = marks[0], marks[-1]
            download.bytes_per_s = (done - begun) / (until - since) if done else None
            self._tell(self.rows())


def _folder(name: str) -> Path:
    return cache_folder() / f"models--{name.replace('/', '--')}"


def _let_in(model: HubModel, folder: Path) -> None:
    """Only when every file is there does the cache show the model: no program ever finds half of it."""
    snapshot = folder / "snapshots" / model.commit
    snapshot.mkdir(parents=True, exist_ok=True)
    for file in model.files:
        link = snapshot / file.path
        if not link.exists():
            link.unlink(missing_ok=True)  # a link that leads nowhere
            try:
                link.symlink_to(os.path.join("..", "..", "blobs", file.etag))
            except OSError:  # a file system without links
                shutil.copyfile(folder / "blobs" / file.etag, link)
    refs = folder / "refs"
    refs.mkdir(exist_ok=True)
    (refs / "main").write_text(model.commit)


def _remove_parts(folder: Path) -> None:
    """Parts, and blobs that no snapshot uses. Parts of another program have longer names and stay."""
    used = {os.path.realpath(link) for link in (folder / "snapshots").rglob("*")}
    for path in (folder / "blobs").glob("*"):
        if re.fullmatch(r"[0-9a-f]{40,64}(\.incomplete)?", path.name) and os.path.realpath(path) not in used:
            path.unlink(missing_ok=True)
    if not used:  # nothing of it was ever whole
        shutil.rmtree(folder, ignore_errors=True)
