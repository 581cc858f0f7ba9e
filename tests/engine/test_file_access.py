"""What is asked of macOS, seen by a stand-in for its system call."""

import fcntl
import os
import struct

import pytest

from engine import file_access, memory
from engine.disk import Disk
from tests.engine.test_disk import a_read, page_aligned


@pytest.fixture
def calls(monkeypatch) -> list:
    made = []
    monkeypatch.setattr(memory, "unused_bytes", lambda: 0)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command, argument: made.append((command, argument)))
    monkeypatch.setattr(file_access.sys, "platform", "darwin")
    monkeypatch.delattr(os, "O_DIRECT")
    monkeypatch.delattr(os, "posix_fadvise")
    return made


def test_on_a_mac_files_are_read_past_the_cache_and_waiting_reads_are_announced(calls, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(256)) * 64)
    disk = Disk(readers=1)
    target = page_aligned(1000)
    assert disk.read([a_read(disk, path, 2000, target)]).wait(60)
    disk.close()
    assert target.tobytes() == path.read_bytes()[2000:3000]
    # struct radvisory { off_t ra_offset; int ra_count; }, as <sys/fcntl.h> has it
    assert calls == [(48, 1), (44, struct.pack("=qii", 2000, 1000, 0))]
