"""Reads arrive whole, by whichever way this system offers, or say which file, byte and expert failed."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import disk as disk_module
from engine import memory
from engine.checkpoint import Extent, identity_of
from engine.disk import Disk
from engine.errors import DiskError
from engine.file_access import OpenFile
from engine.runs import RUN_BYTES, Read, runs_of
from engine.slot_memory import PAGE

WAYS = {
    "the system's queue": {"cache": False},
    "threads, past the page cache": {"cache": False, "asynchronous": False},
    "threads, from the page cache": {"asynchronous": False},
    "all at once from the page cache": {},
}
SIZE = 3 * RUN_BYTES + 5000


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("disk") / "f"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes())
    return path


@pytest.fixture(params=WAYS)
def disk(request):
    disk = Disk(**WAYS[request.param])
    yield disk
    disk.close()


def page_aligned(nbytes: int) -> np.ndarray:
    room = np.zeros(nbytes + PAGE, np.uint8)
    skipped = -room.ctypes.data % PAGE
    return room[skipped : skipped + nbytes]


def a_read(disk: Disk, file: Path, offset: int, target: np.ndarray, expert: int = 7) -> Read:
    origin = Extent("w", file, offset - expert * target.nbytes, 100 * target.nbytes, "U8", (100, target.nbytes))
    return Read(disk.number(file), offset, target.nbytes, target.ctypes.data, origin, expert)


def read(disk: Disk, file: Path, places: list[tuple[int, np.ndarray]]) -> None:
    reading = disk.read([a_read(disk, file, offset, target) for offset, target in places], owner=places)
    assert reading.wait(60)
    assert reading.landed
    assert reading.arrived_bytes == reading.nbytes


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(0, PAGE), (0, RUN_BYTES), (8, 3 * PAGE), (PAGE, 1), (5, 1), (PAGE - 1, 2), (77, SIZE - 77), (SIZE - 3, 3)],
)
@pytest.mark.parametrize("residue", [0, 8, 77])
def test_bytes_land_where_they_belong_however_they_lie(disk, file, offset, nbytes, residue):
    room = page_aligned(nbytes + 2 * PAGE)
    target = room[residue : residue + nbytes]
    read(disk, file, [(offset, target)])
    assert target.tobytes() == file.read_bytes()[offset : offset + nbytes]
    assert not room[:residue].any()
    assert not room[residue + nbytes :].any()


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.one_of(st.integers(1, 3 * PAGE), st.sampled_from([PAGE, 8 * PAGE, RUN_BYTES])), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    start=st.sampled_from([0, 8, PAGE, 100]),
    way=st.sampled_from(list(WAYS)),
    apart=st.booleans(),
    order=st.randoms(),
)
def test_neighbours_are_read_together_and_taken_apart_rightly(file, pieces, start, way, apart, order):
    at, places = start, []
    for nbytes, gap in pieces:
        nbytes = min(nbytes, SIZE - at)
        if nbytes <= 0:
            break
        room = page_aligned(nbytes + PAGE)
        places.append((at, room[at % PAGE :][:nbytes] if not apart else room[:nbytes]))
        at += nbytes + gap * 1000
    order.shuffle(places)
    disk = Disk(**WAYS[way])
    read(disk, file, places)
    disk.close()
    data = file.read_bytes()
    assert all(target.tobytes() == data[at : at + target.nbytes] for at, target in places)


def test_pieces_of_one_expert_that_lie_together_are_one_read():
    target = page_aligned(20 * PAGE)
    reads = [Read(0, at * PAGE, PAGE, target.ctypes.data + (19 - at) * PAGE, None, 0) for at in range(20)]
    [run] = runs_of(reads)
    assert (run.offset, run.nbytes, len(run.parts)) == (0, 20 * PAGE, 20)


def test_the_page_cache_is_left_as_it_was(file, tmp_path, monkeypatch):
    mine = tmp_path / "cold"
    mine.write_bytes(file.read_bytes())
    descriptor = os.open(mine, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    looked = OpenFile(mine)
    monkeypatch.setattr(memory, "unused_bytes", lambda: 0)
    for way in WAYS.values():
        disk = Disk(**way)
        read(disk, mine, [(0, page_aligned(1 << 20))])
        disk.close()
        assert not looked.is_cached(0, 1 << 20)
    monkeypatch.setattr(memory, "unused_bytes", lambda: 1 << 60)
    disk = Disk()
    read(disk, mine, [(0, page_aligned(1 << 20))])
    disk.close()
    assert looked.is_cached(0, 1 << 20), "memory that holds nothing may as well hold this"
    os.close(descriptor)
    looked.close()


def test_what_the_page_cache_has_is_taken_from_it(file, monkeypatch):
    file.read_bytes()
    disk = Disk()
    monkeypatch.setattr(disk._aio, "submit", None)
    target = page_aligned(1 << 20)
    read(disk, file, [(0, target)])
    disk.close()
    assert target.tobytes() == file.read_bytes()[: 1 << 20]


def test_a_file_system_without_direct_reads_is_read_all_the_same(file, monkeypatch):
    monkeypatch.setattr("engine.file_access.open_direct", lambda path: None)
    disk = Disk(cache=False)
    target = page_aligned(1 << 20)
    read(disk, file, [(8, target)])
    assert target.tobytes() == file.read_bytes()[8 : 8 + (1 << 20)]
    disk.close()


def test_a_file_system_that_refuses_a_direct_read_later_is_not_asked_again(file, monkeypatch):
    disk = Disk(cache=False)
    disk.open({file: identity_of(file)})
    monkeypatch.setattr(disk._aio, "submit", lambda *_: (_ for _ in ()).throw(OSError(22, "Invalid argument")))
    target = page_aligned(1 << 20)
    read(disk, file, [(0, target)])
    assert target.tobytes() == file.read_bytes()[: 1 << 20]
    assert disk._files[0].direct is None
    disk.close()


def test_memory_without_a_disk_behind_it_is_read_too(file):
    with open("/dev/shm/pagoda-test-disk", "wb") as copy:
        copy.write(file.read_bytes())
    try:
        disk = Disk(cache=False)
        target = page_aligned(SIZE)
        read(disk, Path(copy.name), [(0, target)])
        disk.close()
        assert target.tobytes() == file.read_bytes()
    finally:
        Path(copy.name).unlink()


def test_a_file_that_became_shorter_is_reported_with_file_offset_and_expert(disk, tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 50)
    target = np.zeros(100, np.uint8)
    reading = disk.read([a_read(disk, tmp_path / "f", 10, target)], target)
    with pytest.raises(DiskError, match=r"expert 7.*byte 50"):
        reading.wait(60)


def test_a_file_that_vanished_is_reported(disk, tmp_path):
    target = np.zeros(10, np.uint8)
    reading = disk.read([a_read(disk, tmp_path / "gone", 0, target)], target)
    with pytest.raises(DiskError, match="gone"):
        reading.wait(60)


def test_an_input_output_error_is_tried_again_before_it_is_reported(file, monkeypatch):
    tries = []

    def failing(descriptor, vectors, offset):
        tries.append(offset)
        disk_module.ctypes.set_errno(5)
        return -1 if len(tries) < limit else real(descriptor, vectors, offset)

    real, limit = disk_module._preadv, 3
    monkeypatch.setattr(disk_module, "_preadv", failing)
    monkeypatch.setattr(disk_module, "_native_reads", lambda: None)
    disk = Disk(asynchronous=False)
    file.read_bytes()
    target = page_aligned(PAGE)
    read(disk, file, [(0, target)])
    assert target.tobytes() == file.read_bytes()[:PAGE]
    limit = 1 << 30
    with pytest.raises(DiskError, match=r"expert 7.*Input/output error"):
        disk.read([a_read(disk, file, 0, target)]).wait(60)
    disk.close()


@pytest.mark.parametrize("result", [-5, PAGE], ids=["input/output error", "a part only"])
def test_what_fails_in_the_systems_queue_is_tried_again_another_way(file, monkeypatch, result):
    disk = Disk(cache=False)
    if disk._aio is None:
        pytest.skip("the system has no queue here")
    ended, failed = disk._aio.ended, []

    def failing(seconds: float) -> list[tuple[int, int]]:
        done = ended(seconds)
        failed.extend(number for number, _ in done)
        return [(number, result) for number, _ in done]

    monkeypatch.setattr(disk._aio, "ended", failing)
    target = page_aligned(1 << 20)
    read(disk, file, [(PAGE, target)])
    assert failed
    assert target.tobytes() == file.read_bytes()[PAGE : PAGE + (1 << 20)]
    assert disk._files[0].direct is not None
    disk.close()


@pytest.mark.skipif(disk_module._native_reads() is None, reason="no Numba here")
def test_a_file_that_is_cached_as_a_whole_is_not_asked_about_read_by_read(file, monkeypatch):
    file.read_bytes()
    asked, is_cached = [], OpenFile.is_cached
    monkeypatch.setattr(OpenFile, "is_cached", lambda *a: asked.append(a) or is_cached(*a))
    disk = Disk()
    parts = [(at * 9000, page_aligned(PAGE + at)) for at in range(20)]
    read(disk, file, parts)
    assert len(asked) == 1
    assert all(part.tobytes() == file.read_bytes()[at : at + part.nbytes] for at, part in parts)
    # What fails on that way is tried on the other, which knows what to say of it.
    monkeypatch.setattr(disk_module, "_native_reads", lambda: lambda table: 0)
    again = [(at, np.zeros_like(part)) for at, part in parts]
    read(disk, file, again)
    assert all(one.tobytes() == other.tobytes() for (_, one), (_, other) in zip(parts, again, strict=True))
    disk.close()


@pytest.mark.skipif(disk_module._native_reads() is None, reason="no Numba here")
def test_a_file_that_leaves_the_page_cache_is_noticed_at_the_next_read(file, tmp_path):
    mine = tmp_path / "f"
    mine.write_bytes(file.read_bytes())
    disk, target = Disk(), page_aligned(1 << 20)
    read(disk, mine, [(0, target)])
    assert disk._files[0]._all_cached
    descriptor = os.open(mine, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    target[:] = 0
    read(disk, mine, [(0, target)])
    assert not disk._files[0]._all_cached
    assert target.tobytes() == file.read_bytes()[: 1 << 20]
    disk.close()


def test_closing_does_not_wait_for_a_read_that_hangs(file, monkeypatch):
    monkeypatch.setattr(disk_module, "_LAST_WAIT_S", 0.05)
    monkeypatch.setattr(disk_module, "_native_reads", lambda: None)
    released = threading.Event()
    real = disk_module._preadv
    monkeypatch.setattr(disk_module, "_preadv", lambda *a: released.wait() and real(*a))
    disk = Disk(readers=2, asynchronous=False)
    room = page_aligned(3 * PAGE).reshape(3, PAGE)
    reading = disk.read([a_read(disk, file, at * RUN_BYTES, room[at]) for at in range(3)], room)
    disk.close()
    assert disk in disk_module._never_ended
    assert not reading.landed
    released.set()


def test_reads_nobody_waits_for_let_the_others_go_first(file):
    disk = Disk(cache=False)
    room = page_aligned(41 * PAGE).reshape(41, PAGE)
    later = disk.read([a_read(disk, file, at * 2 * PAGE, room[at]) for at in range(40)], room, idle=True)
    assert disk._flying_idle == 4
    assert disk.is_idle
    now = disk.read([a_read(disk, file, RUN_BYTES, room[40])])
    assert disk._flying_idle == 4
    assert now.wait(60)
    later.cancel()
    while not later.landed:
        disk.pump(1)
    assert later.arrived_bytes < later.nbytes
    disk.close()
