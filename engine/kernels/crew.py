"""Threads that help with the products of a token without ever holding Python's lock.

A token is some fifty products of 50 to 500 microseconds each. Waking a Python thread for one takes 30 to 100, so the
crew stays awake between them: it looks at a board in shared memory and goes to sleep when nothing came for some
milliseconds. Whoever puts up a job does pieces of it too, and waits only for pieces that were begun.
"""

from threading import Lock, Semaphore, Thread

import numpy as np
from numba import njit

from engine.kernels.atomics import atomic_add, atomic_load, atomic_store, call_at, give_way, pause
from engine.kernels.threads import cores

# Looks at the board before a thread goes to sleep, each of about a microsecond.
PATIENCE = 3_000
# Below so many weights a job is not put up: a microsecond is lost by it.
WORTH_A_CREW = 40_000

# Places on the board, each in a cache line of its own.
_OPEN, _INSIDE, _NEXT, _PIECES, _FUNCTION, _ARGUMENT, _ASLEEP = (8 * n for n in range(1, 8))
_NATIVE = {"nogil": True, "error_model": "numpy", "cache": True}


@njit(**_NATIVE)
def _take_pieces(board, function, argument, pieces):
    piece = atomic_add(board, _NEXT, 1)
    while piece < pieces:
        call_at(function, argument, piece)
        piece = atomic_add(board, _NEXT, 1)


@njit(**_NATIVE)
def _serve(board, patience):
    """Help with every job until none came for a while."""
    idle = 0
    while idle < patience:
        if atomic_load(board, _OPEN) == 0 or atomic_load(board, _NEXT) >= atomic_load(board, _PIECES):
            for _ in range(8):
                pause()
            if idle % 16 == 15:
                give_way()
            idle += 1
            continue
        # Who is inside sees no job change: the next one is put up when this one is closed and nobody is inside.
        atomic_add(board, _INSIDE, 1)
        if atomic_load(board, _OPEN) != 0:
            function, argument = atomic_load(board, _FUNCTION), atomic_load(board, _ARGUMENT)
            _take_pieces(board, function, argument, atomic_load(board, _PIECES))
            idle = 0
        atomic_add(board, _INSIDE, -1)
    atomic_add(board, _ASLEEP, 1)


@njit(**_NATIVE)
def work(board, function, argument, pieces):
    """Call function(argument, piece) for every piece, together with the crew at the board."""
    if pieces == 1 or board.size == 0:
        for piece in range(pieces):
            call_at(function, argument, piece)
        return
    atomic_store(board, _FUNCTION, function)
    atomic_store(board, _ARGUMENT, argument)
    atomic_store(board, _PIECES, pieces)
    atomic_store(board, _NEXT, 0)
    atomic_store(board, _OPEN, 1)
    _take_pieces(board, function, argument, pieces)
    atomic_store(board, _OPEN, 0)
    while atomic_load(board, _INSIDE) != 0:
        pause()


_alone = np.zeros(0, np.int64)
_board = _alone
_bell = Semaphore(0)
_busy = Lock()


def _attend(board: np.ndarray, bell: Semaphore) -> None:
    while True:
        bell.acquire()
        _serve(board, PATIENCE)


@njit(**_NATIVE)
def _wake_all(board):
    """How many were asleep; whoever reads it wakes them."""
    asleep = atomic_load(board, _ASLEEP)
    atomic_add(board, _ASLEEP, -asleep)
    return asleep


def _hire() -> np.ndarray:
    global _board
    helpers = min(cores(), 16) - 1
    if helpers and not len(_board):
        _board = np.zeros(8 * 9, np.int64)
        _board[_ASLEEP] = helpers
        for number in range(helpers):
            Thread(target=_attend, args=(_board, _bell), daemon=True, name=f"crew-{number + 1}").start()
    return _board


class board:
    """`with board(weights) as b`: the board to give to `work`, empty where a job of so many weights needs no crew.

    One job is up at a time: who comes while another thread's is up does its own alone.
    """

    def __init__(self, weights: int):
        self._worth = weights >= WORTH_A_CREW
        self._mine = False

    def __enter__(self) -> np.ndarray:
        self._mine = self._worth and _busy.acquire(blocking=False)
        if not self._mine:
            return _alone
        up = _board if len(_board) else _hire()
        if len(up) and up[_ASLEEP]:
            _bell.release(_wake_all(up))
        return up

    def __exit__(self, *_: object) -> None:
        if self._mine:
            _busy.release()
