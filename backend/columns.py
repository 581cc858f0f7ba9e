"""The journal's rows as columns, and back: dicts and progress are JSON, flags are 0 and 1."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

from backend.chunks import Chunk, Progress
from backend.rows import Attempt, Conversation, Message


def insert(db: sqlite3.Connection, table: str, columns: dict[str, Any]) -> None:
    """One new row."""
    marks = ", ".join("?" * len(columns))
    db.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", tuple(columns.values()))


def columns_of(row: Conversation | Message | Attempt) -> dict[str, Any]:
    """A row's columns, its dicts as JSON; the text of an attempt that has not ended stays with its chunks."""
    columns = {f.name: getattr(row, f.name) for f in fields(row)}
    if isinstance(row, Attempt):
        columns["text"] = row.text if row.state.terminal else None
        columns["progress"] = as_json(asdict(row.progress)) if row.progress else None
    return {name: as_json(value) if isinstance(value, dict) else value for name, value in columns.items()}


def insert_chunk(db: sqlite3.Connection, chunk: Chunk) -> None:
    """One more chunk, without what its attempt's row says."""
    db.execute(
        "INSERT INTO chunks (attempt_id, seq, offset, kind, payload) VALUES (?, ?, ?, ?, ?)",
        (chunk.attempt_id, chunk.seq, chunk.offset, chunk.kind, chunk.payload_json),
    )


@contextmanager
def damage_told() -> Iterator[None]:
    """What nobody wrote, such as a state of zeros, is the database's damage. Raises sqlite3.DatabaseError."""
    try:
        yield
    except (ValueError, TypeError, LookupError) as error:
        raise sqlite3.DatabaseError(f"a row holds what was never written there: {error}") from error


@damage_told()
def text_of(db: sqlite3.Connection, attempt_id: str) -> str:
    """What an attempt has said so far."""
    rows = db.execute("SELECT payload FROM chunks WHERE attempt_id = ? AND kind = 'text' ORDER BY seq", (attempt_id,))
    # One document of all is read several times as fast as each alone. (SQLite's own JSON ends a text at a NUL.)
    return "".join(chunk["text"] for chunk in json.loads(f"[{','.join(payload for (payload,) in rows)}]"))


@damage_told()
def row_of(cls: type, row: sqlite3.Row) -> Any:
    """A conversation or a message as its typed value."""
    values = dict(row)
    if cls is Conversation:
        values["sampling"] = json.loads(values["sampling"])
        for flag in ("unread", "pinned", "archived"):
            values[flag] = bool(values[flag])
    if cls is Message:
        values["chosen"] = bool(values["chosen"])
    return cls(**values)


def progress_of(payload: str | None) -> Progress | None:
    """The progress that a chunk or an attempt kept."""
    return Progress(**json.loads(payload)) if payload else None


def as_json(value: dict[str, Any] | None) -> str | None:
    """Compact JSON; None stays None."""
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
