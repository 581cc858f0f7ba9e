"""A wire between a browser and Pagoda that a test can cut: a TCP proxy in a thread."""

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit


class Wire:
    """`url` leads to Pagoda while it is whole; `cut()` breaks every connection and refuses new ones."""

    def __init__(self, url: str) -> None:
        self._far = (urlsplit(url).hostname, urlsplit(url).port)
        self._near = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._near.getsockname()[1]}"
        self._whole = True
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._near.accept()
            except OSError:
                return
            if not self._whole:
                near.close()
                continue
            far = socket.create_connection(self._far)
            self._open |= {near, far}
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while True:
                ready, _, _ = select.select([near, far], [], [])
                for one in ready:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    (far if one is near else near).sendall(data)
        for one in (near, far):
            self._open.discard(one)
            one.close()

    @contextmanager
    def cut(self) -> Iterator[None]:
        self._whole = False
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            self._whole = True

    def close(self) -> None:
        self._near.close()
        with self.cut():
            pass
