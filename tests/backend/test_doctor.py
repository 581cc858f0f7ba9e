"""`pagoda doctor` measures the disk as the engine reads: a real file, a few experts at once, past the page cache."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from backend.cli import main
from engine import machine
from engine.disk import Disk

PROBE_BYTES = 24 << 20
MB = 1 << 20


class Clock:
    """Each look at it is a tenth of a second later."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


class Watched(Disk):
    """The engine's own disk, with what was asked of it."""

    made: list["Watched"] = []  # noqa: RUF012

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.options, self.batches, self.wrong = options, [], 0
        self.made.append(self)

    def read(self, reads, owner):
        reading = super().read(reads, owner)
        self.batches.append([(read.offset, read.nbytes) for read in reads])
        self.file = reads[0].of.file
        wait = reading.wait

        def wait_and_compare(seconds: float) -> bool:
            whole = wait(seconds)
            slots = np.array(owner, copy=False)
            with open(self.file, "rb") as file:
                for slot, (offset, nbytes) in zip(slots, self.batches[-1], strict=False):
                    file.seek(offset)
                    self.wrong += slot[:nbytes].tobytes() != file.read(nbytes)
            return whole

        reading.wait = wait_and_compare
        return reading


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    monkeypatch.setattr(machine, "_PROBE_FILE_BYTES", PROBE_BYTES)
    monkeypatch.setattr(machine, "Disk", Watched)
    monkeypatch.setattr(Watched, "made", [])
    return Watched.made


def test_the_disk_is_read_as_the_engine_reads_experts(watched: list[Watched], tmp_path: Path, monkeypatch):
    monkeypatch.setattr(machine, "perf_counter", Clock())
    speed = machine.probe_folder(tmp_path / "data")
    (disk,) = watched
    assert disk.options == {"cache": False}, "what the page cache has says nothing of the disk"
    offsets = [offset for batch in disk.batches for offset, _ in batch]
    assert all(nbytes == MB for batch in disk.batches for _, nbytes in batch)
    assert all(len(batch) == 4 for batch in disk.batches), "as many at once as experts of a layer are missing"
    assert len(set(offsets)) == len(offsets) and max(offsets) < PROBE_BYTES, "none is answered by the disk's memory"
    assert offsets != sorted(offsets), "in no order that a disk could guess"
    assert disk.wrong == 0, "what was measured were the bytes of the file"
    assert disk.file.parent == tmp_path / "data" and not disk.file.exists(), "nothing stays behind"
    seconds = 0.1 * (len(disk.batches) + 1)  # a look at the clock after each batch, and one for the figure
    assert speed == pytest.approx(len(offsets) * MB / seconds)


def test_every_figure_is_told_with_what_it_is(watched: list[Watched], tmp_path: Path, capsys):
    data = tmp_path / "data"
    assert main(["doctor", "--json", "--data", str(data)]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("disk_bytes_per_s", "memory_bytes_per_s", "memory_bytes", "auto_budget_bytes"):
        assert 0 < found[name] < math.inf, name
    assert found["auto_budget_bytes"] < found["memory_bytes"] and found["cores"] >= 1
    assert found["disk_probed_in"] == str(data) and found["device"] in ("cpu", "gpu")
    assert main(["doctor", "--data", str(data)]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines()[:5])
    assert f"GB/s in parallel random reads of 1 MB, in {data}" in lines["Disk"]
    assert "--memory auto uses" in lines["Memory"] and "one core reads" in lines["Memory"]
    assert len(watched) == 2, "each time anew"
    assert [path for path in data.iterdir() if path.name.startswith("probe-")] == []


def test_a_folder_that_cannot_be_used_is_said_with_a_way_out(tmp_path: Path, capsys):
    file = tmp_path / "file"
    file.write_text("not a folder")
    assert main(["doctor", "--data", str(file / "data")]) == 1
    words = capsys.readouterr().err
    assert str(file / "data") in words and "Name another one with --data" in words


def test_a_disk_that_cannot_be_read_is_said_with_a_way_out(watched: list[Watched], tmp_path: Path, monkeypatch, capsys):
    read = Watched.read

    def cut_off_first(self, reads, owner):
        os.truncate(reads[0].of.file, 0)  # a real file, from which nothing can be read any more
        return read(self, reads, owner)

    monkeypatch.setattr(Watched, "read", cut_off_first)
    assert main(["doctor", "--data", str(tmp_path)]) == 1
    words = capsys.readouterr().err
    assert str(tmp_path) in words and "Name another one with --data" in words
