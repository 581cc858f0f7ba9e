"""What is made of a person's text before it is stored: nothing is changed in it but what no file could hold."""

from collections.abc import Sequence
from typing import Protocol

TITLE_LENGTH = 60
MESSAGE_LIMIT = 200_000  # characters; more than any context here holds, and far below what a POST can carry
NEW_TITLE = "New chat"


def sound(text: str) -> str:
    """JavaScript can hand over half a surrogate pair, which no UTF-8 can carry: such halves become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def title_of(text: str) -> str:
    """The first line of the first prompt; a model is never asked for one."""
    line = text.strip().splitlines()[0].strip()
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1].rstrip() + "…"


class Piece(Protocol):
    """A part of a message that is text."""

    text: str


def words_of(content: str | Sequence[Piece]) -> str:
    """A message's text, which may come in parts."""
    return sound(content if isinstance(content, str) else "\n".join(part.text for part in content))
