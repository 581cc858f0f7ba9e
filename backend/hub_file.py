"""One file of the hub into the cache: goes on where an earlier try ended, let in only when its checksum is right.

Bytes that were there already are hashed too, so a file is right as a whole or not there at all.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

import httpx

from backend.hub import DownloadFailed, HubFile, HubModel, address, check, unreachable

PIECE_BYTES = 1 << 20
SPARE_BYTES = 200_000_000  # of the disk, for conversations and everybody else
BACKOFF_S = (1.0, 2.0, 5.0, 10.0, 20.0)  # between tries that brought nothing; one that brought something starts afresh

Came = Callable[[int, int], None]
"""(how many bytes of the file are here, how many of them came just now over the network)"""


async def fetch(client: httpx.AsyncClient, model: HubModel, file: HubFile, blobs: Path, came: Came) -> None:
    """Have the file's blob in `blobs`.

    Raises DownloadFailed. Cancelling keeps what has come.
    """
    target = blobs / file.etag
    if target.is_file() and target.stat().st_size == file.size:
        came(file.size, 0)
        return
    part = blobs / f"{file.etag}.incomplete"
    try:
        with open(part, "ab+") as out:
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DownloadFailed("Another program on this computer is downloading this model already.") from error
            await _fill(client, model, file, out, came)
            os.fsync(out.fileno())
        os.replace(part, target)
    except _Altered as error:
        part.unlink(missing_ok=True)
        raise DownloadFailed(
            f"{file.path} came altered: its checksum is not the hub's, so it was thrown away. Try again; if that "
            "repeats, something between the hub and this computer changes what it passes on."
        ) from error
    except OSError as error:
        raise DownloadFailed(_why(error, blobs)) from error


def room_for(model: HubModel, blobs: Path) -> None:
    """Raises DownloadFailed when the disk cannot take what is missing."""
    sizes = {file.etag: file.size for file in model.files}
    missing = sum(size - _here(blobs, etag) for etag, size in sizes.items())
    free = shutil.disk_usage(blobs).free
    if missing + SPARE_BYTES > free:
        raise DownloadFailed(
            f"{model.name} needs {missing / 1e9:.1f} GB more, and the disk with {blobs.parent.parent} has "
            f"{free / 1e9:.1f} GB free. Make room, or set HF_HOME to a folder on another disk."
        )


def _here(blobs: Path, etag: str) -> int:
    for path in (blobs / etag, blobs / f"{etag}.incomplete"):
        if path.is_file():
            return path.stat().st_size
    return 0


class _Altered(Exception):
    """What came is not what the hub has."""


async def _fill(client: httpx.AsyncClient, model: HubModel, file: HubFile, out: BinaryIO, came: Came) -> None:
    digest = hashlib.sha256() if file.large else hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    have = await _hash_what_is_here(out, file, digest, came)
    waits = list(BACKOFF_S)
    while have < file.size:
        before, broken = have, None
        try:
            async for piece in _pieces(client, model, file, have):
                await asyncio.to_thread(_keep, out, digest, piece)
                have += len(piece)
                came(have, len(piece))
        except DownloadFailed as error:
            if not error.passing:
                raise
            broken = error
        if have > before:
            waits = list(BACKOFF_S)
        elif not waits:
            raise broken or DownloadFailed(f"The hub keeps sending nothing of {file.path}. Try again later.", True)
        if have < file.size:
            await asyncio.sleep(waits.pop(0))
    if have != file.size or digest.hexdigest() != file.etag:
        raise _Altered


async def _hash_what_is_here(out: BinaryIO, file: HubFile, digest: "hashlib._Hash", came: Came) -> int:
    have = out.seek(0, os.SEEK_END)
    if have > file.size:
        out.truncate(0)
        return 0
    out.seek(0)
    done = 0
    while done < have:
        piece = await asyncio.to_thread(out.read, 8 * PIECE_BYTES)
        await asyncio.to_thread(digest.update, piece)
        done += len(piece)
        came(done, 0)
    return have


def _keep(out: BinaryIO, digest: "hashlib._Hash", piece: bytes) -> None:
    out.write(piece)
    out.flush()  # what the disk cannot take is told now, and what has come outlives the process
    digest.update(piece)


async def _pieces(client: httpx.AsyncClient, model: HubModel, file: HubFile, begin: int) -> AsyncIterator[bytes]:
    """The file from byte `begin` on, to its end or to where the connection breaks. Raises DownloadFailed."""
    headers = {"Range": f"bytes={begin}-"} if begin else {}
    gathered, broken = bytearray(), None
    try:
        async with client.stream("GET", address(model.name, model.commit, file.path), headers=headers) as answer:
            check(answer, model.name)
            if begin and answer.status_code == 206:
                if not answer.headers.get("content-range", "").startswith(f"bytes {begin}-"):
                    raise _Altered
                begin = 0
            async for bit in answer.aiter_bytes():
                gathered += bit
                if begin >= len(gathered):  # a server that knows no ranges sends again what is here
                    begin -= len(gathered)
                    gathered.clear()
                elif len(gathered) - begin >= PIECE_BYTES:
                    yield bytes(gathered[begin:])
                    gathered.clear()
                    begin = 0
    except httpx.HTTPError as error:
        broken = error
    if len(gathered) > begin:
        yield bytes(gathered[begin:])
    if broken is not None:
        raise DownloadFailed(unreachable(broken), passing=True) from broken


def _why(error: OSError, blobs: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk with {blobs.parent.parent} is full. What has come is kept: make room, then go on."
    return f"The model cannot be written to {blobs.parent.parent}: {error.strerror or error}."
