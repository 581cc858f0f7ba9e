"""A disk that is really full, a small one of the test's own: under a reply, a conversion, a download."""

import sqlite3
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import constants

from backend import hub_file
from engine.convert import convert
from engine.errors import EngineError
from tests.backend.hub_server import hub_server
from tests.backend.test_downloads import Desk
from tests.browser.running_pagoda import RunningPagoda, until
from tests.chaos.conftest import Disk
from tests.chaos.invariant import check
from tests.chaos.ledger import Ledger
from tests.chaos.reader import Reader
from tests.engine.originals import NEEDS_CONVERSION
from tests.engine.tiny_checkpoints import publish

PIECE = 1 << 16


def fill(disk: Path) -> Path:
    """To the last byte."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(PIECE))
        except OSError:
            pass
        try:
            while True:
                file.write(bytes(1))
        except OSError:
            pass
    return filler


def ending_is_written(pagoda: RunningPagoda, reader: Reader) -> bool:
    database = sqlite3.connect(f"file:{pagoda.data_dir}/pagoda.db?mode=ro", uri=True)
    try:
        [state] = database.execute("SELECT state FROM attempts WHERE id = ?", (reader.attempt,)).fetchone()
        return state not in ("sending", "streaming")
    finally:
        database.close()


def test_a_reply_on_a_full_disk_ends_in_words_and_goes_on_when_there_is_room(
    small_disk: Disk, tmp_path: Path, model: Path, ledger: Ledger
):
    """The journal and what the model has read lie on the same disk: neither harms the other."""
    draw = ledger.draw("full disk")
    disk = small_disk(24)
    pagoda = RunningPagoda(disk, "--model", str(model), log=tmp_path / "serve.log")
    try:
        pagoda.wait_until_ready()
        conversation = pagoda.new_conversation(max_tokens=3000, temperature=1.0)
        said: list[str] = []
        for number in range(ledger.rounds):
            said.append(f"Fill {number}")
            reader = Reader(pagoda.url, conversation, pagoda.send(conversation, said[-1])["attempt_id"])
            reader.wait_for(draw.randrange(1, 200))
            filler = fill(disk)
            reader.finish()
            attempt = pagoda.attempts(conversation)[-1]
            assert attempt["state"] in ("failed", "complete"), attempt
            if attempt["state"] == "failed":
                assert "Make room" in attempt["detail"] or "full" in attempt["detail"], attempt
            assert pagoda.get("/healthz")["status"] == "ok"
            filler.unlink()
            until(partial(ending_is_written, pagoda, reader), "the ending, which had to wait, is written")
            until(lambda: pagoda.new_conversation(max_tokens=1), "there is room")
            ledger.chunks += check(pagoda, [reader], {conversation: said}, tmp_path / "check")
            ledger.survived("disk full while a reply is written", "the reply ends and says so", "every chunk")
    finally:
        pagoda.stop()


def test_a_conversion_that_finds_the_disk_full_says_so_and_goes_on_when_there_is_room(
    small_disk: Disk, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    original = publish(tmp_path / "published", "deepseek_v3", NEEDS_CONVERSION["deepseek_v3"])
    disk = small_disk(1)
    filler = fill(disk)
    with pytest.raises((EngineError, OSError), match=r"room|space"):
        convert(original, disk / "out")
    assert not (disk / "out").exists()
    filler.unlink()
    small = sum(path.stat().st_size for path in original.iterdir())
    roomy = small_disk(8 + 4 * small // 1_000_000)
    assert convert(original, roomy / "out").is_dir()
    ledger.survived("disk full while a model is converted", "it says so, before it writes where it can", "the original")


async def test_a_download_that_fills_the_disk_says_so_and_goes_on_from_there(
    small_disk: Disk, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    disk = small_disk(4)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(disk / "hub"))
    monkeypatch.setattr(hub_file, "SPARE_BYTES", -(1 << 40))  # somebody else fills the disk after the look at it
    async with hub_server() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        hub.models["org/tiny"] = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 4096 * 3}  # 3 MiB
        filler = disk / "filler"
        filler.write_bytes(bytes(2_000_000))
        desk = Desk(tmp_path)
        desk.downloads.start("org/tiny")
        row = await desk.until_over()
        assert row["state"] == "failed" and "is full" in row["detail"], row
        part = next((disk / "hub" / "models--org--tiny" / "blobs").glob("*.incomplete"))
        assert (came := part.stat().st_size) > 1 << 20, "what came is kept"
        filler.unlink()
        desk.downloads.start("org/tiny")
        assert (await desk.until_over())["state"] == "done"
        assert hub.begins()[-1] >= came, "and not asked for again"
        await desk.downloads.close()
    ledger.survived("disk full while a model is downloaded", "it says so; press to go on", "what has come")
