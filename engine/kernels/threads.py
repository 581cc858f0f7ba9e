"""A few long-lived threads for kernels that release the interpreter lock."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# Below so many weights a second thread costs more than it gives: waking it takes some 30 microseconds.
WORTH_A_THREAD = 1_000_000


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_threads = max(1, min(cores(), 16))
_pool = ThreadPoolExecutor(max(1, _threads - 1), thread_name_prefix="kernel")


def split(work: Callable[[int, int], None], count: int, weights: int) -> None:
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
