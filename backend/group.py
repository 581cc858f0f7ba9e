"""Chunks that come at about the same time share a transaction: one commit, and then each is told.

With many replies at once most of a chunk's cost is the commit. Nothing is shown before it: `then` is called after it.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from time import perf_counter

from backend.errors import CannotWrite

# Commits may take so much of the time. With one reply, or a few, each comes in the same turn of the loop as its chunk;
# what comes faster (200 replies at 20 chunks/s: a commit is most of what a chunk costs) waits for the next and shares
# it. So it is the disk that says how many share one, not a number of ours.
SHARE = 0.1
SAVED_S = 0.2  # of quiet time count: the first words of a reply do not wait, nor those after a commit that was slow
LATEST_S = 0.05  # nobody waits longer, however slow the disk is: nobody sees 50 ms, a page is told ten times a second
# What SQLite says -> what helps.
_ADVICE = {
    "locked": "Another program holds the database: end it, then try again.",
    "readonly": "Make the folder and its disk writable, then try again.",
    "malformed": "The database is damaged: end Pagoda, and put a backup of pagoda.db in its place.",
    "codec can't decode": "The database is damaged: end Pagoda, and put a backup of pagoda.db in its place.",
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
        self._due = 0.0  # when the next commit may come, by `perf_counter`

    def begin(self) -> sqlite3.Connection:
        """The connection, within the transaction that is open; its commit comes by itself, soon."""
        if not self._open:
            self._db.execute("BEGIN IMMEDIATE")
            self._open = True
            loop = asyncio.get_running_loop()
            if (early := self._due - perf_counter()) <= 0:
                loop.call_soon(self.commit)
            else:
                loop.call_later(early, self.commit)
        return self._db

    def add(self, then: Callable[[], None], lost: Callable[[CannotWrite], None]) -> None:
        """What was just written: `then` follows when it is on disk, `lost` when it could not be put there."""
        self._members.append((then, lost))

    def commit(self) -> None:
        """Put on disk what was written, and say so; harmless when there is nothing."""
        if not self._open:
            return
        began = perf_counter()
        try:
            self._db.execute("COMMIT")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self.fail(cannot_write(error))
            return
        now = perf_counter()
        self._due = min(max(self._due, now - SAVED_S) + (now - began) / SHARE, now + LATEST_S)
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
    if isinstance(error, UnicodeDecodeError):  # SQLite's words quoted bytes that were damaged
        return True
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def cannot_write(error: BaseException) -> CannotWrite:
    """In words."""
    words = str(error)
    what_to_do = next((advice for sign, advice in _ADVICE.items() if sign in words), _OTHERWISE)
    return CannotWrite(f"This could not be written to the data folder ({words}), so it was not done. {what_to_do}")
