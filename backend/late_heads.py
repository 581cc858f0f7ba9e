"""A limit on how long the head of a request may take to come (a body's stands in bodies.py; a reply has none).

uvicorn limits only the silence between two requests, and forgets that at their first byte: a client that never ends its
headers would keep its connection, and a file descriptor of ours, for good.
"""

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _HttpProtocol = asyncio.Protocol
else:
    from uvicorn.protocols.http.auto import AutoHTTPProtocol as _HttpProtocol

HEAD_S = 60.0  # from the connection, or from the first byte after an answer; a head is one packet or two
_WORDS = b"The request's headers did not end in time. Send it again."
_ANSWER = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_WORDS), _WORDS)
)


class LateHeads(_HttpProtocol):
    """uvicorn's own protocol (`uvicorn.Config(http=LateHeads)`) that closes connections whose request never begins."""

    head_s = HEAD_S
    transport: Any
    cycle: Any  # uvicorn's word for the request that is being answered, or was last; new as soon as a head is complete
    _late: asyncio.TimerHandle | None = None
    _begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._begun, before = True, self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._end_wait()
        elif self._late is None and (before is None or before.response_complete):
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._late = asyncio.get_running_loop().call_later(self.head_s, self._close)

    def _end_wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late, self._begun = None, False

    def _close(self) -> None:
        # A websocket has taken the connection over by then, or somebody closes it already.
        if self.transport.get_protocol() is not self or self.transport.is_closing():
            return
        if self._begun:
            self.transport.write(_ANSWER)
        self.transport.close()
