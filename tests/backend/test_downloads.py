"""A model of the hub comes into this computer's cache: whole and checked, or not at all; nothing that came is lost."""

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from backend import hub_file
from backend.downloads import Downloads
from backend.hub import DownloadFailed, name_in
from backend.kept import Kept
from backend.local_models import LocalModel, local_models
from tests.backend.hub_server import COMMIT, HubServer, hub_server

WEIGHTS = os.urandom(3_000_000)
MODEL = {
    "config.json": b'{"model_type": "olmoe"}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "run.py": b"x",
}


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HubServer]:
    async with hub_server() as server:
        server.models["org/tiny"] = dict(MODEL)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(hub_file, "BACKOFF_S", (0.0,) * 3)
        yield server


class Desk:
    """Downloads, and all that they told."""

    def __init__(self, folder: Path) -> None:
        self.kept = Kept(folder / "settings.json")
        self.told: list[list[dict]] = []
        self.changed = asyncio.Event()
        self.downloads = Downloads(self.kept, self._hear)

    def _hear(self, rows: list[dict]) -> None:
        self.told.append(rows)
        self.changed.set()

    async def until(self, condition, patience_s: float = 20) -> dict:
        async with asyncio.timeout(patience_s):
            while not (self.downloads.rows() and condition(self.downloads.rows()[-1])):
                self.changed.clear()
                await self.changed.wait()
        return self.downloads.rows()[-1]

    async def until_over(self) -> dict:
        return await self.until(lambda row: row["state"] in ("done", "failed"))


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    await desk.downloads.close()


def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub" / "models--org--tiny"


def part(tmp_path: Path) -> Path:
    return next((cache(tmp_path) / "blobs").glob("*.incomplete"))


async def test_a_model_comes_whole_and_other_programs_find_it(hub: HubServer, desk: Desk, tmp_path: Path):
    assert desk.downloads.start("https://huggingface.co/org/tiny/tree/main") == "org/tiny"
    row = await desk.until_over()
    assert (row["state"], row["done"], row["total"]) == ("done", row["total"], row["total"])
    folder = Path(snapshot_download("org/tiny", local_files_only=True, cache_dir=tmp_path / "hub"))
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert folder.name == COMMIT
    assert LocalModel("org/tiny", row["total"]) in local_models("default", tmp_path, tmp_path / "hub")
    assert not any("run.py" in path for path, _ in hub.asked), "code of a model is never fetched"


async def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: HubServer, desk: Desk, tmp_path: Path):
    hub.cut_after = 700_001
    desk.downloads.start("org/tiny")
    assert (await desk.until_over())["state"] == "done"
    begins = hub.begins()
    assert begins[0] == 0 and begins == sorted(set(begins)) and len(begins) == 5
    assert next((cache(tmp_path) / "snapshots" / COMMIT).glob("model*")).read_bytes() == WEIGHTS


async def test_a_paused_download_goes_on_after_a_restart_from_the_bytes_it_has(
    hub: HubServer, desk: Desk, tmp_path: Path
):
    hub.held = asyncio.Event()
    desk.downloads.start("org/tiny")
    await desk.until(lambda row: row["done"] > len(WEIGHTS) // 3)
    await desk.downloads.close()
    assert LocalModel("org/tiny", None) not in local_models("default", tmp_path, tmp_path / "hub")
    assert not (cache(tmp_path) / "refs").exists(), "half a model is not shown to anybody"
    hub.held = None
    again = Desk(tmp_path)
    assert [row["state"] for row in again.downloads.rows()] == ["paused"]
    again.downloads.start("org/tiny")
    assert (await again.until_over())["state"] == "done"
    assert hub.begins()[0] == 0 < hub.begins()[1]
    assert Desk(tmp_path).downloads.rows() == [], "what is done is forgotten"


async def test_bytes_of_an_earlier_try_are_checked_too(hub: HubServer, desk: Desk, tmp_path: Path):
    hub.held = asyncio.Event()
    desk.downloads.start("org/tiny")
    await desk.until(lambda row: row["done"] >= 1_000_000)
    await desk.downloads.pause("org/tiny")
    kept = part(tmp_path)
    kept.write_bytes(b"\0" + kept.read_bytes()[1:])
    hub.held = None
    desk.downloads.start("org/tiny")
    row = await desk.until_over()
    assert row["state"] == "failed" and "checksum" in row["detail"]
    assert not kept.exists()
    desk.downloads.start("org/tiny")
    assert (await desk.until_over())["state"] == "done"


async def test_altered_bytes_are_thrown_away_and_said(hub: HubServer, desk: Desk, tmp_path: Path):
    hub.altered = True
    desk.downloads.start("org/tiny")
    row = await desk.until_over()
    assert row["state"] == "failed" and "altered" in row["detail"]
    assert not (cache(tmp_path) / "snapshots").exists()


async def test_a_hub_that_knows_no_ranges_sends_all_again_and_it_is_still_right(
    hub: HubServer, desk: Desk, tmp_path: Path
):
    hub.ranges, hub.cut_after = False, None
    blob = cache(tmp_path) / "blobs"
    blob.mkdir(parents=True)
    (blob / f"{hashlib.sha256(WEIGHTS).hexdigest()}.incomplete").write_bytes(WEIGHTS[:1_234_567])
    desk.downloads.start("org/tiny")
    assert (await desk.until_over())["state"] == "done"
    assert next((cache(tmp_path) / "snapshots" / COMMIT).glob("model*")).read_bytes() == WEIGHTS


async def test_cancelling_leaves_nothing_behind(hub: HubServer, desk: Desk, tmp_path: Path):
    hub.held = asyncio.Event()
    desk.downloads.start("org/tiny")
    await desk.until(lambda row: row["done"] > len(WEIGHTS) // 3)
    await desk.downloads.cancel("org/tiny")
    assert desk.downloads.rows() == []
    assert not cache(tmp_path).exists()
    assert desk.kept.get("downloads") is None


@pytest.mark.parametrize(
    ("name", "words"),
    [("org/nothing", "knows no model"), ("org/gated", "accept terms"), ("org/gguf", "GGUF")],
)
async def test_what_cannot_be_had_is_said_in_words(hub: HubServer, desk: Desk, name: str, words: str):
    hub.models["org/gated"] = dict(MODEL)
    hub.gated.add("org/gated")
    hub.models["org/gguf"] = {"model.gguf": WEIGHTS, "config.json": b"{}"}
    desk.downloads.start(name)
    row = await desk.until_over()
    assert row["state"] == "failed" and words in row["detail"]


async def test_a_hub_out_of_reach_is_said(hub: HubServer, desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    desk.downloads.start("org/tiny")
    assert "cannot be reached" in (await desk.until_over())["detail"]


async def test_too_little_room_is_said_before_anything_is_fetched(
    hub: HubServer, desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hub_file, "SPARE_BYTES", 1 << 60)
    desk.downloads.start("org/tiny")
    row = await desk.until_over()
    assert "Make room" in row["detail"] and hub.begins() == []


async def test_a_disk_that_becomes_full_is_said_and_what_came_is_kept(
    hub: HubServer, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keep, writes = hub_file._keep, iter(range(100))

    def until_full(out, digest, piece) -> None:
        if out.tell() + len(piece) > 1_500_000 and next(writes) >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        keep(out, digest, piece)

    monkeypatch.setattr(hub_file, "_keep", until_full)
    desk.downloads.start("org/tiny")
    row = await desk.until_over()
    assert row["state"] == "failed" and "is full" in row["detail"]
    assert part(tmp_path).stat().st_size > 0
    monkeypatch.setattr(hub_file, "_keep", keep)
    desk.downloads.start("org/tiny")
    assert (await desk.until_over())["state"] == "done"


@pytest.mark.parametrize("text", ["", "one", "../../etc/passwd", "a/..", "org/na me", "/abs/path", "org/.."])
def test_what_is_no_name_of_a_model_is_refused(text: str):
    with pytest.raises(DownloadFailed):
        name_in(text)


@pytest.mark.parametrize(
    "text", ["org/tiny", " org/tiny ", "https://huggingface.co/org/tiny", "hf.co/org/tiny?x=1", "org/tiny/tree/main"]
)
def test_a_name_is_found_in_what_was_pasted(text: str):
    assert name_in(text) == "org/tiny"
