"""The disk with the model goes while its experts are read from it: reads fail as they do when a plug is pulled."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.synth import synthesise
from tests.browser.running_pagoda import RunningPagoda, until
from tests.chaos.ledger import Ledger
from tests.chaos.reader import Reader

MEMORY = "440MB"  # the process and few experts, so that even a reply that repeats itself reads on
TOKENS = 300


class Disk:
    """A file system of its own in a file: cut the file short, and the kernel answers every read with EIO."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self._image, self._copy, self.folder = folder / "image", folder / "copy", folder / "mounted"
        with self._image.open("wb") as image:
            image.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        self._device = _run("losetup", "-f", "--show", str(self._image))
        self.folder.mkdir()
        try:
            _run("mount", self._device, str(self.folder))
        except subprocess.CalledProcessError:
            self.close()
            raise

    def freeze(self) -> None:
        """Nothing is written from here on, and what is on it can be brought back."""
        _run("mount", "-o", "remount,ro", str(self.folder))
        os.sync()
        shutil.copyfile(self._image, self._copy)

    def unplug(self) -> None:
        files = [os.open(path, os.O_RDONLY) for path in self.folder.rglob("*.safetensors")]
        os.truncate(self._image, 4096)
        for file in files:  # what the page cache has is not read from the disk
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)

    def plug_in(self) -> None:
        with self._copy.open("rb") as copy, self._image.open("r+b") as image:
            shutil.copyfileobj(copy, image)
            image.flush()
            os.fsync(image.fileno())

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True)
        subprocess.run(["losetup", "-d", self._device], capture_output=True)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a file as a disk")
    try:
        made = Disk(tmp_path, 550)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a file can't be mounted as a disk here: {error}")
    yield made
    made.close()


def test_a_disk_that_is_unplugged_is_named_and_the_reply_goes_on_when_it_is_back(
    disk: Disk, tmp_path: Path, ledger: Ledger
):
    draw = ledger.draw("unplugged")
    model = disk.folder / "model"
    synthesise(model, "qwen3-moe", layers=4, experts=128, hidden=512, expert_hidden=768, top_k=8, vocab=2000)
    disk.freeze()
    (data := tmp_path / "data").mkdir()
    pagoda = RunningPagoda(data, "--model", str(model), "--memory", MEMORY)
    try:
        pagoda.wait_until_ready()

        def said(text: str) -> Reader:
            conversation = pagoda.new_conversation(max_tokens=TOKENS)
            return Reader(pagoda.url, conversation, pagoda.send(conversation, text, conversation)["attempt_id"])

        for number in range(ledger.rounds):
            question = f"What happens now? {number}"
            (undisturbed := said(question)).finish()
            reader = said(question)
            reader.wait_for(draw.randrange(1, 60))
            with pagoda.engine_held():  # on a fast machine the reply would be over before the disk is
                disk.unplug()
            reader.finish()
            [attempt] = pagoda.attempts(reader.conversation)
            assert attempt["state"] == "failed" and attempt["text"] == reader.text(), attempt
            assert str(model) in attempt["detail"] and "expert" in attempt["detail"], attempt
            assert pagoda.get("/healthz")["status"] == "ok"

            disk.plug_in()
            pagoda.post("/api/model/retry")
            pagoda.wait_until_ready()
            [_, reply] = pagoda.conversation(reader.conversation)["messages"]
            on = pagoda.post(f"/api/messages/{reply['id']}/continue", {})
            rest = Reader(pagoda.url, reader.conversation, on["attempt_id"])
            rest.finish()
            whole = pagoda.conversation(reader.conversation)["messages"][-1]["text"]
            assert whole.startswith(undisturbed.text()), "the reply that was never disturbed"
            until(lambda: pagoda.get("/healthz")["model"]["state"] == "ready", "the model is there")
            ledger.survived("disk of the model unplugged", "the reply ends and names file and expert", "every chunk")
    finally:
        pagoda.stop()
