"""A small model hub on a real port: speaks the routes that a download needs, and misbehaves on demand."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

LARGE = 1000  # bytes from which on a file has a SHA-256, as with Git LFS
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubServer:
    """`models` by name: file name -> content. `asked` has (path, headers) of each request.

    `cut_after` ends each transfer of a large file after so many bytes; `altered` sends other bytes than promised;
    `ranges` False knows no Range; `held` keeps large files waiting after their first half until it is set.
    """

    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    cut_after: int | None = None
    altered: bool = False
    ranges: bool = True
    held: asyncio.Event | None = None
    url: str = ""

    def begins(self) -> list[int]:
        """The bytes at which transfers of large files were asked to begin."""
        ranges = [headers.get("range", "bytes=0-") for path, headers in self.asked if path.endswith(".safetensors")]
        return [int(one.removeprefix("bytes=").rstrip("-")) for one in ranges]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            path = head[0].split(" ")[1].split("?")[0]
            self.asked.append((path, headers))
            await self._answer(path, headers, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # the test is over
        finally:
            writer.close()

    async def _answer(self, path: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        parts = path.strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if name not in self.models:
            await _send(writer, 401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif parts[0] == "api":
            await _send(writer, 200, self._listing(name).encode(), {"Content-Type": "application/json"})
        elif name in self.gated:
            await _send(writer, 401, b"{}", {"X-Error-Code": "GatedRepo"})
        elif parts[2] == "resolve":
            await self._file(self.models[name][parts[4]], headers, writer)

    def _listing(self, name: str) -> str:
        rows = []
        for path, content in self.models[name].items():
            row = {"rfilename": path, "size": len(content), "blobId": _git_hash(content)}
            if len(content) >= LARGE:
                row["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            rows.append(row)
        return json.dumps({"id": name, "sha": COMMIT, "gated": name in self.gated, "siblings": rows})

    async def _file(self, content: bytes, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        begin = int(headers["range"].removeprefix("bytes=").rstrip("-")) if "range" in headers and self.ranges else 0
        body, large = content[begin:], len(content) >= LARGE
        if large and self.altered:
            body = bytes(len(body))
        more = {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"} if begin else {}
        await _head(writer, 206 if begin else 200, len(body), more)
        if large and self.cut_after is not None:
            writer.write(body[: self.cut_after])
            await writer.drain()
        elif large and self.held is not None:
            writer.write(body[: len(body) // 2])
            await writer.drain()
            await self.held.wait()
            writer.write(body[len(body) // 2 :])
        else:
            writer.write(body)
        await writer.drain()


@asynccontextmanager
async def hub_server(hub: HubServer | None = None) -> AsyncIterator[HubServer]:
    hub = hub or HubServer()
    server = await asyncio.start_server(hub.serve, "127.0.0.1", 0)
    hub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield hub
    finally:
        server.close()


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


async def _head(writer: asyncio.StreamWriter, status: int, length: int, more: dict[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {length}", "Connection: close"]
    lines += [f"{key}: {value}" for key, value in more.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    await writer.drain()


async def _send(writer: asyncio.StreamWriter, status: int, body: bytes, more: dict[str, str]) -> None:
    await _head(writer, status, len(body), more)
    writer.write(body)
    await writer.drain()
