"""The journal's schema as an ordered list of small steps, each applied once and recorded in the database.

A database with a step this version does not know was written by a newer Pagoda: it is refused before any write.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from backend.errors import ForeignData


def conversations_messages_attempts_chunks(db: sqlite3.Connection) -> None:
    """The four tables of the first version. Deleting a conversation takes everything of it along."""
    statements = (
        """CREATE TABLE conversations (
            id TEXT PRIMARY KEY, title TEXT NOT NULL, model TEXT NOT NULL, system TEXT, sampling TEXT NOT NULL,
            unread INTEGER NOT NULL DEFAULT 0, request_id TEXT UNIQUE,
            created_at REAL NOT NULL, updated_at REAL NOT NULL)""",
        """CREATE TABLE messages (
            id TEXT PRIMARY KEY, conversation_id TEXT NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
            position INTEGER NOT NULL, role TEXT NOT NULL, text TEXT NOT NULL, request_id TEXT UNIQUE,
            current_attempt TEXT, selected_attempt TEXT, created_at REAL NOT NULL,
            UNIQUE (conversation_id, position))""",
        # `text` is filled when the attempt ends; until then the text is what its chunks say, so a long reply is
        # not rewritten for every token. `length` counts its characters, `last_seq` is -1 before the first chunk.
        """CREATE TABLE attempts (
            id TEXT PRIMARY KEY, message_id TEXT NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
            conversation_id TEXT NOT NULL, number INTEGER NOT NULL, model TEXT NOT NULL, continues TEXT,
            request_id TEXT UNIQUE, state TEXT NOT NULL, reason TEXT, detail TEXT, text TEXT,
            length INTEGER NOT NULL DEFAULT 0, last_seq INTEGER NOT NULL DEFAULT -1,
            progress TEXT, usage TEXT, timings TEXT, created_at REAL NOT NULL, ended_at REAL,
            UNIQUE (message_id, number))""",
        "CREATE INDEX attempts_of_conversation ON attempts (conversation_id)",
        "CREATE INDEX attempts_alive ON attempts (conversation_id) WHERE state IN ('sending', 'streaming')",
        """CREATE TABLE chunks (
            attempt_id TEXT NOT NULL REFERENCES attempts(id) ON DELETE CASCADE, seq INTEGER NOT NULL,
            offset INTEGER NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL,
            PRIMARY KEY (attempt_id, seq)) WITHOUT ROWID""",
    )
    for statement in statements:
        db.execute(statement)


def turns_make_a_tree(db: sqlite3.Connection) -> None:
    """Every message names the one before it, so that an edited message can begin a branch; turns can be deleted."""
    db.execute("ALTER TABLE messages ADD COLUMN parent TEXT")
    db.execute("ALTER TABLE messages ADD COLUMN chosen INTEGER NOT NULL DEFAULT 1")
    db.execute("ALTER TABLE messages ADD COLUMN deleted_at REAL")
    db.execute("CREATE INDEX messages_by_parent ON messages (parent)")
    db.execute(
        """UPDATE messages SET parent = (SELECT before.id FROM messages before
           WHERE before.conversation_id = messages.conversation_id AND before.position = messages.position - 1)"""
    )


def conversations_are_kept(db: sqlite3.Connection) -> None:
    """Pinned, archived, and deleted with an Undo: `deleted_at` hides at once, a purge removes later."""
    db.execute("ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE conversations ADD COLUMN archived INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE conversations ADD COLUMN deleted_at REAL")


def passages_can_be_searched(db: sqlite3.Connection) -> None:
    """Every text that a search can find, with its trigrams, kept in step by triggers; built here for what is there.

    A reply is searched once it has ended: until then its text is in its chunks.
    """
    statements = (
        """CREATE TABLE passages (
            id INTEGER PRIMARY KEY, message_id TEXT NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
            attempt_id TEXT UNIQUE REFERENCES attempts(id) ON DELETE CASCADE, text TEXT NOT NULL)""",
        "CREATE INDEX passages_of_message ON passages (message_id)",
        """CREATE VIRTUAL TABLE passages_fts USING fts5(
            text, content='passages', content_rowid='id', tokenize='trigram')""",
        """CREATE TRIGGER passage_added AFTER INSERT ON passages BEGIN
            INSERT INTO passages_fts (rowid, text) VALUES (new.id, new.text); END""",
        """CREATE TRIGGER passage_removed AFTER DELETE ON passages BEGIN
            INSERT INTO passages_fts (passages_fts, rowid, text) VALUES ('delete', old.id, old.text); END""",
        """CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.role = 'user' BEGIN
            INSERT INTO passages (message_id, text) VALUES (new.id, new.text); END""",
        """CREATE TRIGGER attempt_added AFTER INSERT ON attempts WHEN new.text != '' BEGIN
            INSERT INTO passages (message_id, attempt_id, text) VALUES (new.message_id, new.id, new.text); END""",
        """CREATE TRIGGER attempt_ended AFTER UPDATE OF text ON attempts WHEN new.text != '' BEGIN
            DELETE FROM passages WHERE attempt_id = new.id;
            INSERT INTO passages (message_id, attempt_id, text) VALUES (new.message_id, new.id, new.text); END""",
        "INSERT INTO passages (message_id, text) SELECT id, text FROM messages WHERE role = 'user'",
        """INSERT INTO passages (message_id, attempt_id, text)
            SELECT message_id, id, text FROM attempts WHERE text != ''""",
    )
    for statement in statements:
        db.execute(statement)


Step = Callable[[sqlite3.Connection], None]
STEPS: tuple[Step, ...] = (
    conversations_messages_attempts_chunks,
    turns_make_a_tree,
    conversations_are_kept,
    passages_can_be_searched,
)


def applied(db: sqlite3.Connection) -> list[str]:
    """The names of the steps this database has seen, oldest first."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'migrations'").fetchone():
        return []
    return [str(name) for (name,) in db.execute("SELECT name FROM migrations ORDER BY number")]


def readable(text: bytes) -> str:
    """For SQLite's `text_factory`: a byte that a disk has lost costs a letter, not the conversation."""
    return str(text, "utf-8", "replace")


def damaged(path: Path, error: Exception) -> ForeignData:
    """In words."""
    return ForeignData(
        f"The conversations in {path} cannot be read ({error}). Nothing was changed. Move that file away to start "
        "with no conversations, or put a backup in its place."
    )


def refuse_foreign(path: Path, steps: tuple[Step, ...] = STEPS) -> None:
    """Raise ForeignData, without having written a byte, when `path` is not a database this version can open."""
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        # Read-only: opening it for writing would already fold the write-ahead log into the file.
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        db.text_factory = readable
        try:
            seen = applied(db)
            tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        finally:
            db.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error
    known = [step.__name__ for step in steps]
    if tables and not seen:
        raise ForeignData(
            f"{path} is a database of another program. Nothing was changed. Choose another folder with --data."
        )
    if seen[: len(known)] != known[: len(seen)]:  # a newer Pagoda has all steps of this one before its own
        raise damaged(path, sqlite3.DatabaseError("the record of its steps is damaged"))
    if unknown := seen[len(known) :]:
        raise ForeignData(
            f"The conversations in {path} were written by a newer Pagoda (unknown here: {', '.join(unknown)}). Nothing "
            "was changed. Update Pagoda, or choose another folder with --data."
        )


def migrate(db: sqlite3.Connection, steps: tuple[Step, ...] = STEPS) -> None:
    """Apply the steps that are missing, each in a transaction with its record."""
    db.execute(
        "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, applied_at REAL)"
    )
    for step in steps[len(applied(db)) :]:
        db.execute("BEGIN IMMEDIATE")
        try:
            step(db)
            db.execute("INSERT INTO migrations (name, applied_at) VALUES (?, ?)", (step.__name__, time.time()))
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
