"""Server-sent events, the reading side: bytes in any pieces become events and comments, as the WHATWG standard says.

Lines are split as bytes and only at LF, CRLF and CR. Text splitters also split at U+2028, U+0085 or U+000B, which may
stand unescaped inside a JSON string.
"""

import re
from dataclasses import dataclass

# A reply that comes as one line of JSON is some hundred kilobytes. What is far larger is no reply.
LIMIT_BYTES = 16 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Event:
    """The `data` lines of one event joined by newlines; `name` is what `event:` said."""

    data: str
    name: str = "message"


@dataclass(frozen=True)
class Comment:
    """A line that begins with a colon: a heartbeat, or what a server says beside the events."""

    text: str


class TooLong(ValueError):
    """A line or an event without an end."""


class Decoder:
    """`feed` it bytes as they come; `end` gives what a server left without the last blank line."""

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []  # of the line that has no end yet
        self._size = 0
        self._after_cr = False
        self._first = True
        self._data: list[str] = []
        self._data_size = 0
        self._name = ""

    def feed(self, data: bytes) -> list[Event | Comment]:
        """What these bytes complete. Raises TooLong."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\n" not in data and b"\r" not in data:
            self._keep(data)
            return []
        self._after_cr = data.endswith(b"\r")
        *lines, rest = _LINE_END.split(b"".join([*self._pieces, data]))
        self._pieces, self._size = [], 0
        self._keep(rest)
        return [item for line in lines if (item := self._line(line)) is not None]

    def end(self) -> list[Event | Comment]:
        """The event under way. The standard drops it, but some servers forget the blank line after `[DONE]`."""
        last = b"".join(self._pieces)
        self._pieces = []
        return [item for line in (last, b"") if (item := self._line(line)) is not None]

    def _keep(self, rest: bytes) -> None:
        self._size += len(rest)
        if self._size > self._limit:
            raise TooLong(f"a line of more than {self._limit} bytes")
        if rest:
            self._pieces.append(rest)

    def _line(self, line: bytes) -> Event | Comment | None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        text = line.decode("utf-8", "replace")
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if not field:
            return Comment(value)
        if field == "data":
            self._data_size += len(line)
            if self._data_size > self._limit:
                raise TooLong(f"an event of more than {self._limit} bytes")
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None

    def _dispatch(self) -> Event | None:
        data, name = self._data, self._name
        self._data, self._data_size, self._name = [], 0, ""
        return Event("\n".join(data), name or "message") if data else None
