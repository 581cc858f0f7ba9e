"""A few long-lived threads for kernels that release the interpreter lock.

BLAS gets one thread for each call and we run several calls at once: its own threads spin while they wait for each
other, and on a busy machine a product then took four times as long.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import threadpoolctl

# Below so many weights a second thread costs more than it gives: waking it takes some 30 microseconds.
WORTH_A_THREAD = 1_000_000


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_threads = max(1, min(cores(), 16))
_pool = ThreadPoolExecutor(max(1, _threads - 1), thread_name_prefix="kernel")


def split(work: Callable[[int, int], object], count: int, weights: int) -> None:
    """Run `work(lo, hi)` over range(count), on all threads where `weights` makes it worth while."""
    parts = min(_threads, count) if weights >= WORTH_A_THREAD else 1
    if parts == 1:
        work(0, count)
        return
    # Even bounds: the kernels take rows in pairs.
    bounds = [count * part // parts & ~1 for part in range(parts)] + [count]
    others = [_pool.submit(work, bounds[part], bounds[part + 1]) for part in range(1, parts)]
    work(bounds[0], bounds[1])
    for other in others:
        other.result()


def each(work: Callable[[int], None], items: Sequence[int]) -> None:
    """Run `work(item)` for all items on all threads; who is done takes the next one."""
    left = iter(list(items))

    def take() -> None:
        for item in left:
            work(item)

    others = [_pool.submit(take) for _ in range(min(_threads, len(items)) - 1)]
    take()
    for other in others:
        other.result()


def keep_blas_to_one_thread() -> None:
    """From now on, for this process."""
    threadpoolctl.threadpool_limits(1, user_api="blas")
