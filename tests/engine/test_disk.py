"""Reads arrive whole, or say which file, byte and expert failed."""

from pathlib import Path

import pytest

from engine.checkpoint import Extent
from engine.disk import Disk, Read
from engine.errors import DiskError


def extent(file: Path, offset: int, nbytes: int) -> Extent:
    return Extent("w", file, offset, nbytes, "U8", (nbytes,))


def test_many_reads_land_where_they_belong(tmp_path):
    data = bytes(range(256)) * 64
    (tmp_path / "f").write_bytes(data)
    target = bytearray(len(data))
    disk = Disk(readers=4)
    views = memoryview(target)
    reads = [Read(extent(tmp_path / "f", at, 100), views[at : at + 100], "x") for at in range(0, len(data) - 99, 100)]
    assert sum(future.result() for future in disk.read(reads)) == 100 * len(reads)
    disk.close()
    assert bytes(target[: 100 * len(reads)]) == data[: 100 * len(reads)]


def test_a_file_that_became_shorter_is_reported_with_file_offset_and_expert(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 50)
    disk = Disk(readers=1)
    [future] = disk.read([Read(extent(tmp_path / "f", 10, 100), memoryview(bytearray(100)), "expert 7")])
    with pytest.raises(DiskError, match=r"expert 7.*byte 50"):
        future.result()
    disk.close()


def test_a_file_that_vanished_is_reported(tmp_path):
    disk = Disk(readers=1)
    [future] = disk.read([Read(extent(tmp_path / "gone", 0, 10), memoryview(bytearray(10)), "expert 1")])
    with pytest.raises(DiskError, match="gone"):
        future.result()
    disk.close()
