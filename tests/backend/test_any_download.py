"""Whatever a hub, a network or a disk makes of a download: the file is the hub's as a whole, or not there at all."""

import asyncio
import hashlib
import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from huggingface_hub import constants
from hypothesis import given, settings
from hypothesis import strategies as st

from backend import hub_file
from tests.backend.hub_server import LARGE, HubServer, _head, _send, hub_server
from tests.backend.test_downloads import Desk, cache

PIECE = 700  # so that a file of some thousand bytes comes in several


@dataclass
class Accident:
    """What goes wrong with one transfer, at a byte of it."""

    kind: str
    at: int


KINDS = ("cut", "altered", "short", "long", "no ranges", "other range", "busy", "empty")


@dataclass
class Unreliable(HubServer):
    """Each transfer of a large file has the next accident, until none is left."""

    accidents: list[Accident] = field(default_factory=list)

    async def _file(self, content: bytes, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        if len(content) < LARGE or not self.accidents:
            await super()._file(content, headers, writer)
            return
        accident = self.accidents.pop(0)
        begin = int(headers["range"].removeprefix("bytes=").rstrip("-")) if "range" in headers else 0
        if accident.kind == "no ranges":
            begin = 0
        body = content[begin:]
        at = accident.at % max(len(body), 1)
        said = 0 if accident.kind == "other range" else begin
        more = {"Content-Range": f"bytes {said}-{len(content) - 1}/{len(content)}"} if begin else {}
        match accident.kind:
            case "busy":
                await _send(writer, 503, b"{}", {})
                return
            case "altered":
                body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
            case "short":
                body = body[:at]
            case "long":
                body += bytes(at + 1)
            case "empty":
                body = b""
        await _head(writer, 206 if begin else 200, len(body), more)
        writer.write(body[:at] if accident.kind == "cut" else body)
        await writer.drain()


async def download(folder: Path, content: bytes, here: bytes, accidents: list[Accident], pauses: list[int]) -> None:
    async with hub_server(Unreliable(accidents=list(accidents))) as hub:
        hub.models["org/tiny"] = {"config.json": b"{}", "model.safetensors": content}
        blobs = cache(folder) / "blobs"
        if here:
            blobs.mkdir(parents=True)
            (blobs / f"{hashlib.sha256(content).hexdigest()}.incomplete").write_bytes(here)
        with patch.object(constants, "ENDPOINT", hub.url):
            for tries in range(len(accidents) + 3):
                desk = Desk(folder)  # each try is a new start of Pagoda
                desk.downloads.start("org/tiny")
                if tries < len(pauses):
                    least = pauses[tries]
                    await desk.until(lambda row, least=least: row["state"] != "asking" or row["done"] >= least)
                    await desk.downloads.pause("org/tiny")
                else:
                    await desk.until_over()
                row = desk.downloads.rows()[-1]
                await desk.downloads.close()
                found = list((cache(folder) / "snapshots").glob("*/model.safetensors"))
                assert [path.read_bytes() for path in found] in ([], [content]), row
                whole = [path for path in blobs.glob("*") if path.suffix != ".incomplete" and path.stat().st_size > 2]
                assert [path.read_bytes() for path in whole] in ([], [content]), row
                if row["state"] == "done":
                    assert found and not list(blobs.glob("*.incomplete"))
                    return
                assert row["state"] == "paused" or row["detail"], row
        raise AssertionError(f"the hub is sound again, and still: {row}")


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(LARGE, 6 * PIECE),
    seed=st.integers(0, 9),
    here=st.tuples(st.sampled_from(["right", "wrong", "nothing"]), st.integers(1, 8 * PIECE)),
    accidents=st.lists(st.builds(Accident, st.sampled_from(KINDS), st.integers(0, 6 * PIECE)), max_size=6),
    pauses=st.lists(st.integers(0, 6 * PIECE), max_size=2),
)
def test_whatever_happens_the_file_is_the_hubs_or_not_there(size, seed, here, accidents, pauses):
    content = random.Random(seed).randbytes(size)
    kind, length = here
    there = {"right": (content + bytes(length))[:length], "wrong": bytes(length), "nothing": b""}[kind]
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(constants, "HF_HUB_CACHE", str(Path(folder) / "hub")),
        patch.multiple(hub_file, BACKOFF_S=(0.0,) * 3, PIECE_BYTES=PIECE),
    ):
        asyncio.run(download(Path(folder), content, there, accidents, pauses))
