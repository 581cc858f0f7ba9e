"""An end to Python code of other people's that may never come to one: a model's chat template, above all.

Jinja's sandbox keeps a template from the machine, not from looping. What runs past its time is ended by an exception
raised in its own thread, between two steps of Python.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TookTooLong(BaseException):
    """Not an Exception: a template's reader may catch those."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises TookTooLong in the block when it is not left after so long. One call into C is not interrupted."""
    thread, lock = ctypes.c_ulong(threading.get_ident()), threading.Lock()
    inside = fired = False

    def end() -> None:
        nonlocal fired
        with lock:
            if inside:
                fired = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TookTooLong))

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()  # the exception must not meet this thread in here, where it would hold locks of Python's own
    try:
        inside = True
        yield
    finally:
        with lock:
            inside = False
        if fired:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)  # it came too late to be needed
        timer.cancel()
