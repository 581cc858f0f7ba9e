"""The journal: conversations, messages, attempts and every chunk, in SQLite. It is the truth; all else is a view.

One connection, plain calls in the event loop's thread. Write-ahead log: what was committed survives this process.
"""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend import migrations, placing
from backend.branches import choose
from backend.chunks import Chunk, StateChange
from backend.columns import as_json, columns_of, damage_told, insert, insert_chunk, progress_of, row_of, text_of
from backend.endings import Endings
from backend.errors import CannotWrite
from backend.folder import FolderLock
from backend.group import Group, cannot_write, is_of_the_disk
from backend.purge import purge
from backend.rows import Attempt, Conversation, Message, Summary, percent_of
from backend.states import State
from backend.transfer import Incoming, said_at_once

_ALIVE = "('sending', 'streaming')"
NEVER = 9e15  # a `deleted_at` that no purge but the one at the start reaches
_KEPT = "conversation_id IN (SELECT id FROM conversations WHERE deleted_at IS NULL)"
# Deleting takes a conversation's messages along: only damage leaves some.
_ORPHANS = """SELECT 1 FROM messages WHERE conversation_id = ?1
    AND NOT EXISTS (SELECT 1 FROM conversations WHERE id = ?1)"""


class Journal:
    """Opens (and creates, and migrates) `folder/pagoda.db`, and holds the folder until `close`."""

    def __init__(self, folder: Path) -> None:
        self._lock = FolderLock(folder)
        self._endings = Endings()
        try:
            self.path = path = folder / "pagoda.db"
            migrations.refuse_foreign(path)
            # Created by us with the right mode; SQLite gives the -wal and -shm files the mode of the database.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            path.chmod(0o600)
            self._connection = sqlite3.connect(path, isolation_level=None)
            self._connection.row_factory = sqlite3.Row
            self._connection.text_factory = migrations.readable
            self._group = Group(self._connection)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("PRAGMA foreign_keys=ON")
            migrations.migrate(self._db)
            self.alive()  # what a start reads has to be readable
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            self._lock.release()
            raise migrations.damaged(path, error) from error
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Close the database and let go of the folder; harmless when repeated."""
        self._group.commit()
        self._connection.close()
        self._lock.release()

    @property
    def _db(self) -> sqlite3.Connection:
        """For all but `append_soon`: nothing is seen before it is on disk."""
        self._group.commit()
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing. Raises CannotWrite, in words, when the disk does not take it."""
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")
        except BaseException as error:
            if db.in_transaction:  # SQLite itself has rolled back after some errors, a full disk for one
                db.execute("ROLLBACK")
            if is_of_the_disk(error):
                raise cannot_write(error) from error
            raise

    # --- conversations ---------------------------------------------------------------------------

    def add_conversation(self, row: Conversation) -> None:
        with self.transaction() as db:
            insert(db, "conversations", columns_of(row))

    def conversation(self, id: str) -> Conversation | None:
        """None when it is deleted. Raises sqlite3.DatabaseError when only its messages are left."""
        found = self._conversation("id", id)
        if found is None and self._db.execute(_ORPHANS, (id,)).fetchone():
            raise sqlite3.DatabaseError("messages are there whose conversation cannot be found")
        return found

    def conversation_of_request(self, request_id: str) -> Conversation | None:
        return self._conversation("request_id", request_id)

    def _conversation(self, column: str, value: str) -> Conversation | None:
        found = self._db.execute(
            f"SELECT * FROM conversations WHERE {column} = ? AND deleted_at IS NULL", (value,)
        ).fetchone()
        return row_of(Conversation, found) if found else None

    def change_conversation(self, id: str, **columns: Any) -> None:
        """Set the named columns; `sampling` as a dict."""
        if "sampling" in columns:
            columns["sampling"] = as_json(columns["sampling"])
        names = ", ".join(f"{name} = ?" for name in columns)
        with self.transaction() as db:
            db.execute(f"UPDATE conversations SET {names} WHERE id = ?", (*columns.values(), id))

    def delete_conversation(self, id: str) -> None:
        """Out of sight at once; `purge` removes it for good, until then `restore_conversation` brings it back."""
        with self.transaction() as db:
            db.execute("UPDATE conversations SET deleted_at = ? WHERE id = ?", (time.time(), id))

    def restore_conversation(self, id: str) -> bool:
        """False when it is gone for good."""
        with self.transaction() as db:
            return db.execute("UPDATE conversations SET deleted_at = NULL WHERE id = ?", (id,)).rowcount > 0

    def summaries(self, id: str | None = None) -> list[Summary]:
        """The rows of the sidebar, the most recently used first; with `id` only that one."""
        rows = self._db.execute(
            f"""SELECT c.*,
                EXISTS (SELECT 1 FROM attempts a WHERE a.conversation_id = c.id AND a.state IN {_ALIVE}) AS running,
                (SELECT a.progress FROM attempts a WHERE a.conversation_id = c.id AND a.state IN {_ALIVE}
                 ORDER BY a.rowid LIMIT 1) AS progress,
                (SELECT a.state FROM messages m JOIN attempts a ON a.id = m.current_attempt
                 WHERE m.conversation_id = c.id AND m.deleted_at IS NULL
                 ORDER BY m.position DESC LIMIT 1) AS newest
            FROM conversations c WHERE c.deleted_at IS NULL {"" if id is None else "AND c.id = ?"}
            ORDER BY c.updated_at DESC, c.rowid DESC""",
            () if id is None else (id,),
        )
        return [self._summary(row) for row in rows]

    @damage_told()
    def _summary(self, row: sqlite3.Row) -> Summary:
        progress, running = progress_of(row["progress"]), bool(row["running"])
        if running and self._endings.any_of(row["id"]):
            running = bool(self.alive(row["id"]))
        return Summary(
            id=row["id"],
            title=row["title"],
            model=row["model"],
            created_at=row["created_at"],
            updated_at=row["updated_at"],
            running=running,
            queued=running and progress is not None and progress.stage == "queued",
            percent=percent_of(progress, "max_tokens" in json.loads(row["sampling"])),
            unread=bool(row["unread"]),
            failed=row["newest"] in (State.FAILED, State.INTERRUPTED) or self._endings.failed(row["id"]),
            pinned=bool(row["pinned"]),
            archived=bool(row["archived"]),
        )

    def purge(self, before: float) -> None:
        """Remove for good what was deleted earlier than that."""
        with self.transaction() as db:
            purge(db, before)

    # --- messages and attempts -------------------------------------------------------------------

    def message(self, id: str) -> Message | None:
        """One that is neither deleted itself nor in a conversation that is."""
        found = self._db.execute(
            f"SELECT * FROM messages WHERE id = ? AND deleted_at IS NULL AND {_KEPT}", (id,)
        ).fetchone()
        return row_of(Message, found) if found else None

    def deleted_message(self, id: str) -> Message | None:
        """A message that may be deleted, as long as it is not purged."""
        found = self._db.execute("SELECT * FROM messages WHERE id = ?", (id,)).fetchone()
        return row_of(Message, found) if found else None

    def message_of_request(self, request_id: str) -> Message | None:
        found = self._db.execute("SELECT * FROM messages WHERE request_id = ?", (request_id,)).fetchone()
        return row_of(Message, found) if found else None

    def messages(self, conversation_id: str) -> list[Message]:
        """In the order they were made, those of deleted turns too: backend/branches.py says what is on screen."""
        found = self._db.execute(
            "SELECT * FROM messages WHERE conversation_id = ? ORDER BY position", (conversation_id,)
        )
        return [row_of(Message, row) for row in found]

    def reply_to(self, user: Message) -> Message:
        """The assistant message of a user message: they are written together, one after the other."""
        found = self._db.execute(
            "SELECT * FROM messages WHERE conversation_id = ? AND position = ?",
            (user.conversation_id, user.position + 1),
        ).fetchone()
        return row_of(Message, found)

    def attempt(self, id: str) -> Attempt | None:
        found = self._db.execute(f"SELECT * FROM attempts WHERE id = ? AND {_KEPT}", (id,)).fetchone()
        return self._attempt(found) if found else None

    @damage_told()
    def place_of(self, attempt_id: str) -> tuple[str, bool] | None:
        """The conversation of an attempt, and whether it has ended: without its text, which costs the most."""
        found = self._db.execute(
            f"SELECT conversation_id, state FROM attempts WHERE id = ? AND {_KEPT}", (attempt_id,)
        ).fetchone()
        if found is None:
            return None
        return found["conversation_id"], State(found["state"]).terminal or attempt_id in self._endings

    def attempt_of_request(self, request_id: str) -> Attempt | None:
        found = self._db.execute("SELECT * FROM attempts WHERE request_id = ?", (request_id,)).fetchone()
        return self._attempt(found) if found else None

    def attempts(self, conversation_id: str, messages: Sequence[str] | None = None) -> dict[str, list[Attempt]]:
        """The attempts of every message of a conversation, or of these messages alone; oldest first, by message id."""
        result: dict[str, list[Attempt]] = {}
        where, value = "conversation_id = ?", conversation_id
        if messages is not None:
            where, value = "message_id IN (SELECT value FROM json_each(?))", json.dumps(messages)
        found = self._db.execute(f"SELECT * FROM attempts WHERE {where} ORDER BY message_id, number", (value,))
        for row in found.fetchall():
            result.setdefault(row["message_id"], []).append(self._attempt(row))
        return result

    def attempts_of(self, message_id: str) -> list[Attempt]:
        """The attempts of one message, oldest first."""
        found = self._db.execute("SELECT * FROM attempts WHERE message_id = ? ORDER BY number", (message_id,))
        return [self._attempt(row) for row in found.fetchall()]

    def alive(self, conversation_id: str | None = None) -> list[Attempt]:
        """The attempts that have not ended, oldest first."""
        where, values = ("", ()) if conversation_id is None else ("AND conversation_id = ?", (conversation_id,))
        found = self._db.execute(f"SELECT * FROM attempts WHERE state IN {_ALIVE} {where} ORDER BY rowid", values)
        return [a for a in map(self._attempt, found.fetchall()) if not a.state.terminal]

    def next_position(self, conversation_id: str) -> int:
        """The place of the next message in the order they are made."""
        return self._db.execute(
            "SELECT coalesce(max(position), -1) + 1 FROM messages WHERE conversation_id = ?", (conversation_id,)
        ).fetchone()[0]

    def add_turn(self, user: Message, reply: Message, attempt: Attempt, title: str, way: Sequence[str] = ()) -> None:
        """A user message, its assistant message and the first attempt, with the conversation's title and time.

        It is chosen among the messages in its place; `way` are the user messages before it, to be chosen as well.
        """
        with self.transaction() as db:
            insert(db, "messages", columns_of(user))
            insert(db, "messages", columns_of(replace(reply, parent=user.id)))
            insert(db, "attempts", columns_of(attempt))
            choose(db, (*way, user.id))
            db.execute(
                "UPDATE conversations SET title = ?, updated_at = ? WHERE id = ?",
                (title, attempt.created_at, user.conversation_id),
            )

    def choose(self, way: Sequence[str]) -> None:
        """Put the branch of these user messages on screen, each before the next."""
        with self.transaction() as db:
            choose(db, way)

    def mark_turn(self, user_id: str, deleted_at: float | None, way: Sequence[str]) -> None:
        """Delete a turn, or bring it back, and put the branch of these user messages on screen."""
        with self.transaction() as db:
            db.execute("UPDATE messages SET deleted_at = ? WHERE id = ? OR parent = ?", (deleted_at, user_id, user_id))
            choose(db, way)

    def add_attempt(self, attempt: Attempt, seed: Chunk | None = None) -> None:
        """A new version of a message: it becomes the current and the selected one. `seed` is its chunk 0."""
        with self.transaction() as db:
            insert(db, "attempts", columns_of(attempt))
            db.execute(
                "UPDATE messages SET current_attempt = ?, selected_attempt = ? WHERE id = ?",
                (attempt.id, attempt.id, attempt.message_id),
            )
            db.execute(
                "UPDATE conversations SET updated_at = ? WHERE id = ?", (attempt.created_at, attempt.conversation_id)
            )
            if seed is not None:
                placing.write(db, seed)

    def select_attempt(self, message_id: str, attempt_id: str) -> None:
        with self.transaction() as db:
            db.execute("UPDATE messages SET selected_attempt = ? WHERE id = ?", (attempt_id, message_id))

    def bring_back(self, ids: Iterable[str]) -> list[str]:
        """Of these conversations, those that were deleted and could be restored: they are now."""
        restore = "UPDATE conversations SET deleted_at = NULL WHERE id = ? AND deleted_at < ?"
        with self.transaction() as db:
            return [id for id in ids if db.execute(restore, (id, NEVER)).rowcount > 0]

    def add_hidden(self, items: Iterable[Incoming]) -> list[str]:
        """Write conversations from a file out of sight, but those that are here already; the ids of the new ones.
        `reveal` shows them all at once. What never is, because Pagoda died in between, is purged at the next start."""
        added = []
        with self.transaction() as db:
            for item in items:
                if db.execute("SELECT 1 FROM conversations WHERE id = ?", (item.conversation.id,)).fetchone():
                    continue
                insert(db, "conversations", columns_of(replace(item.conversation, deleted_at=NEVER)))
                for row in item.messages:
                    insert(db, "messages", columns_of(row))
                for attempt in item.attempts:
                    insert(db, "attempts", columns_of(replace(attempt, last_seq=1)))
                    for chunk in said_at_once(attempt):
                        insert_chunk(db, chunk)
                added.append(item.conversation.id)
        return added

    def reveal(self, ids: Sequence[str]) -> None:
        """Show what `add_hidden` wrote."""
        with self.transaction() as db:
            db.executemany("UPDATE conversations SET deleted_at = NULL WHERE id = ?", [(id,) for id in ids])

    def drop(self, ids: Sequence[str]) -> None:
        """Remove for good what `add_hidden` wrote."""
        with self.transaction() as db:
            db.executemany("DELETE FROM conversations WHERE id = ?", [(id,) for id in ids])

    # --- chunks ----------------------------------------------------------------------------------

    def append(self, chunk: Chunk) -> bool:
        """Write a chunk and what it changes about its attempt, in one transaction; False when it has no place.

        A late, duplicate or foreign chunk has no place (backend/placing.py) and changes nothing.

        An ending that the disk does not take is kept and shown all the same, until `write_endings` can write it.
        """
        if chunk.attempt_id in self._endings:
            return False
        try:
            with self.transaction() as db:
                return placing.put(db, chunk)
        except CannotWrite:
            if not (isinstance(chunk.data, StateChange) and chunk.data.state.terminal):
                raise
            self._endings.keep(chunk)
            return True

    def append_soon(self, chunk: Chunk, then: Callable[[], None], lost: Callable[[CannotWrite], None]) -> bool:
        """Like `append`, in one transaction with what else comes in this turn of the event loop. `then` follows when
        it is on disk, `lost` when the disk did not take it after all: then nothing of it is there."""
        if chunk.attempt_id in self._endings:
            return False
        try:
            written = placing.put(self._group.begin(), chunk)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._group.fail(cannot_write(error))
            raise cannot_write(error) from error
        if written:
            self._group.add(then, lost)
        return written

    def write_endings(self) -> bool:
        """Write the endings that the disk did not take; False while it still does not."""

        def append(chunk: Chunk) -> bool:
            with self.transaction() as db:
                return placing.put(db, chunk, late=True)

        return self._endings.write(append)

    @damage_told()
    def chunks(self, attempt_id: str, after: int = -1, limit: int = -1) -> list[Chunk]:
        """The attempt's chunks with `seq > after`, in order, at most `limit` of them when it is not negative."""
        rows = self._db.execute(
            """SELECT c.seq, c.offset, c.kind, c.payload, a.conversation_id, a.message_id, a.id AS attempt_id
               FROM chunks c JOIN attempts a ON a.id = c.attempt_id
               WHERE c.attempt_id = ? AND c.seq > ? ORDER BY c.seq LIMIT ?""",
            (attempt_id, after, limit),
        )
        return self._endings.after([Chunk.restore(**dict(row)) for row in rows], attempt_id, after, limit)

    @damage_told()
    def _attempt(self, row: sqlite3.Row) -> Attempt:
        values = dict(row)
        if values["text"] is None:
            values["text"] = text_of(self._db, values["id"])
        values["progress"] = progress_of(values["progress"])
        values["state"] = State(values["state"])
        for name in ("usage", "timings"):
            values[name] = json.loads(values[name]) if values[name] else None
        return self._endings.of(Attempt(**values))
