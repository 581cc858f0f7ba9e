"""The crew: every piece of a job is done once, whoever asks, however often it fell asleep in between."""

from threading import Thread

import numpy as np
import pytest
from numba import cfunc, njit, types
from numba.np.numpy_support import carray

from engine.kernels import crew
from engine.kernels.atomics import atomic_add, pointer

PIECES = 1000


@cfunc(types.void(types.int64, types.int64))
def count(job, piece):
    """Add one to the number at place `piece` of the array at this address."""
    atomic_add(carray(pointer(job), (PIECES,), np.int64), piece, 1)


@njit(nogil=True)
def _ask(board, function, done):
    crew.work(board, function, done.ctypes.data, len(done))


def ask(weights: int = 10**9) -> np.ndarray:
    """How often each piece of a job was done."""
    done = np.zeros(PIECES, np.int64)
    with crew.board(weights) as board:
        _ask(board, count.address, done)
    return done


@pytest.fixture
def three_helpers(monkeypatch):
    """A crew of three, whatever this machine has; they sleep until the process ends."""
    monkeypatch.setattr(crew, "cores", lambda: 4)
    monkeypatch.setattr(crew, "_board", crew._alone)
    monkeypatch.setattr(crew, "_bell", type(crew._bell)(0))


def test_every_piece_is_done_once(three_helpers):
    for _ in range(300):
        assert (ask() == 1).all()


def test_a_job_too_small_for_a_crew_is_done_by_who_asks():
    with crew.board(1) as board:
        assert len(board) == 0
    assert (ask(1) == 1).all()


def test_threads_that_ask_at_once_each_get_their_own_job_done(three_helpers):
    wrong = []

    def ask_often() -> None:
        for _ in range(200):
            if not (ask() == 1).all():
                wrong.append(1)

    threads = [Thread(target=ask_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_crew_that_fell_asleep_is_woken(three_helpers, monkeypatch):
    monkeypatch.setattr(crew, "PATIENCE", 1)
    for _ in range(200):
        assert (ask() == 1).all()
