"""Chunks that come at about the same time share a transaction: one commit, and then each is told.

With many replies at once most of a chunk's cost is the commit. Nothing is shown before it: `then` is called after it.
"""

import asyncio
import sqlite3
from collections.abc import Callable

from backend.errors import CannotWrite

# As long as commits are no closer than this on the whole, each comes in the same turn of the loop as its chunk. What
# comes faster waits so long at most and shares a commit: nobody sees 50 ms, a page is told ten times a second, and a
# commit is most of what a chunk costs (200 replies at 20 chunks/s: 20 commits a second instead of 4,000).
EVERY_S = 0.05
AT_ONCE = 16  # so many may come closer together before that: the first words do not wait
# What SQLite says -> what helps.
_ADVICE = {
    "locked": "Another program holds the database: end it, then try again.",
    "readonly": "Make the folder and its disk writable, then try again.",
    "malformed": "The database is damaged: end Pagoda, and put a backup of pagoda.db in its place.",
    "vtable": "The database is damaged: end Pagoda, and put a backup of pagoda.db in its place.",
    "unable to open": "The folder is out of reach: bring its disk back, then try again.",
    "disk I/O": "The disk does not work as it should, or is full: look after it, then try again.",
}
_OTHERWISE = "Make room on that disk, then try again."


class Group:
    """At most one transaction is open. Whoever else uses the database must `commit` first."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._members: list[tuple[Callable[[], None], Callable[[CannotWrite], None]]] = []
        self._open = False
        self._due = 0.0  # when the next commit would be, were they evenly spread, by the loop's clock

    def begin(self) -> sqlite3.Connection:
        """The connection, within the transaction that is open; its commit comes by itself, soon."""
        if not self._open:
            self._db.execute("BEGIN IMMEDIATE")
            self._open = True
            loop = asyncio.get_running_loop()
            if (early := self._due - loop.time() - AT_ONCE * EVERY_S) <= 0:
                loop.call_soon(self._timely)
            else:
                loop.call_later(early, self._timely)
        return self._db

    def _timely(self) -> None:
        self._due = max(self._due, asyncio.get_running_loop().time()) + EVERY_S
        self.commit()

    def add(self, then: Callable[[], None], lost: Callable[[CannotWrite], None]) -> None:
        """What was just written: `then` follows when it is on disk, `lost` when it could not be put there."""
        self._members.append((then, lost))

    def commit(self) -> None:
        """Put on disk what was written, and say so; harmless when there is nothing."""
        if not self._open:
            return
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self.fail(cannot_write(error))
            return
        members, self._members, self._open = self._members, [], False
        for then, _ in members:
            then()

    def fail(self, error: CannotWrite) -> None:
        """Undo all of it, the newest first."""
        members, self._members, self._open = self._members, [], False
        if self._db.in_transaction:  # SQLite itself has rolled back after some errors, a full disk for one
            self._db.execute("ROLLBACK")
        for _, lost in reversed(members):
            lost(error)


def is_of_the_disk(error: BaseException) -> bool:
    """Whether it is the disk that failed, not the statement."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def cannot_write(error: BaseException) -> CannotWrite:
    """In words."""
    words = str(error)
    what_to_do = next((advice for sign, advice in _ADVICE.items() if sign in words), _OTHERWISE)
    return CannotWrite(f"This could not be written to the data folder ({words}), so it was not done. {what_to_do}")
