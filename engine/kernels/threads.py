"""A few long-lived threads for kernels that release the interpreter lock.

BLAS gets one thread for each call and we run several calls at once: its own threads spin while they wait for each
other, and on a busy machine a product then took four times as long. Work is cut into more pieces than there are
threads, so that one that the machine keeps from running holds up a piece, not a half.
"""

import os
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

import threadpoolctl

# Below so many weights a second thread costs more than it gives: waking it takes some 30 microseconds.
WORTH_A_THREAD = 500_000
# A piece of so many weights takes about 50 microseconds, ten times as long as handing it out.
PIECE = 500_000


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_threads = max(1, min(cores(), 16))


class _Job:
    """`take` run on another thread, unless it is called off before that thread gets to it."""

    def __init__(self, take: Callable[[], object]):
        self._take = take
        self._begun = Lock()
        self._running = Lock()
        self._error: BaseException | None = None
        self._running.acquire()

    def run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._take()
        except BaseException as error:  # it is the waiting thread's to raise
            self._error = error
        self._running.release()

    def finish(self) -> None:
        """Wait until it has run, or see to it that it never will. Raises what it raised."""
        if self._begun.acquire(blocking=False):
            return
        self._running.acquire()
        if self._error is not None:
            raise self._error


def _serve(jobs: "SimpleQueue[_Job]") -> None:
    while True:
        jobs.get().run()


_inboxes: list["SimpleQueue[_Job]"] = []


def _hand_out(take: Callable[[], object], helpers: int) -> list[_Job]:
    while len(_inboxes) < helpers:
        _inboxes.append(SimpleQueue())
        Thread(target=_serve, args=(_inboxes[-1],), daemon=True, name=f"kernel-{len(_inboxes)}").start()
    jobs = [_Job(take) for _ in range(helpers)]
    for job, inbox in zip(jobs, _inboxes, strict=False):
        inbox.put(job)
    return jobs


def split(work: Callable[[int, int], object], count: int, weights: int) -> None:
    """Run `work(lo, hi)` over range(count), on all threads where `weights` makes it worth while."""
    if weights < WORTH_A_THREAD or _threads == 1 or count == 1:
        work(0, count)
        return
    parts = min(count, max(_threads, min(4 * _threads, weights // PIECE)))
    bounds = [count * part // parts for part in range(parts + 1)]
    each(lambda part: work(bounds[part], bounds[part + 1]), range(parts))


def each(work: Callable[[Any], object], items: Iterable[Any]) -> None:
    """Run `work(item)` for all items on all threads; who is done takes the next one."""
    todo = list(items)
    left = iter(todo)

    def take() -> None:
        for item in left:
            work(item)

    jobs = _hand_out(take, min(_threads, len(todo)) - 1)
    try:
        take()
    finally:
        for job in jobs:
            job.finish()


def keep_blas_to_one_thread() -> None:
    """From now on, for this process."""
    threadpoolctl.threadpool_limits(1, user_api="blas")
