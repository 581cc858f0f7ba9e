"""Threads for reads that block. A read that hangs in the kernel can't be ended, so nobody ever has to wait for one."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any


class ReaderThreads:
    """Like a ThreadPoolExecutor, but of daemon threads: the interpreter does not wait for them when it ends."""

    def __init__(self, count: int):
        self._count = count
        self._threads: list[threading.Thread] = []
        self._work: queue.SimpleQueue[tuple[Future, Callable, tuple] | None] = queue.SimpleQueue()

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future:
        """Run `work(*arguments)` as soon as a thread is free."""
        future: Future = Future()
        self._work.put((future, work, arguments))
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, daemon=True, name="expert-reader")
            self._threads.append(thread)
            thread.start()
        return future

    def close(self, seconds: float) -> bool:
        """Cancel what has not begun and end the threads; whether one is still busy after `seconds`."""
        while not self._work.empty():
            if item := self._work.get():
                item[0].cancel()
        for _ in self._threads:
            self._work.put(None)
        deadline = monotonic() + seconds
        for thread in self._threads:
            thread.join(max(deadline - monotonic(), 0))
        return any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work, arguments = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del item, future, work, arguments
