"""What must hold after any fault, on disk and over HTTP: nothing received is lost, doubled, mixed or left running."""

import json
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from backend.states import State
from tests.browser.running_pagoda import RunningPagoda
from tests.chaos.reader import Reader


def check(pagoda: RunningPagoda, readers: Sequence[Reader], prompts: dict[str, list[str]], spare: Path) -> int:
    """Raises AssertionError. `prompts` are what was said, by conversation; `spare` an empty folder for a copy of the
    database. Returns how many received chunks were found again."""
    shutil.rmtree(spare, ignore_errors=True)
    copy_database(pagoda.data_dir, spare)
    database = sqlite3.connect(spare / "pagoda.db")
    database.row_factory = sqlite3.Row
    try:
        assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert not database.execute("PRAGMA foreign_key_check").fetchall()
        for conversation, said in prompts.items():
            _turns(database, conversation, said)
        for attempt in database.execute("SELECT * FROM attempts").fetchall():
            _attempt(database, attempt)
        for reader in readers:
            _received(database, reader, len(reader.chunks))
    finally:
        database.close()
    for reader in readers:
        _over_http(pagoda, reader)
    return sum(len(reader.chunks) for reader in readers)


def copy_database(source: Path, target: Path) -> None:
    """The database with its log; the index of the log (-shm) is made again by whoever opens it."""
    target.mkdir()
    for name in ("pagoda.db", "pagoda.db-wal"):
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def _turns(database: sqlite3.Connection, conversation: str, said: list[str]) -> None:
    rows = database.execute(
        "SELECT * FROM messages WHERE conversation_id = ? ORDER BY position", (conversation,)
    ).fetchall()
    assert [row["role"] for row in rows] == ["user", "assistant"] * len(said), f"turns of {conversation}"
    assert [row["text"] for row in rows[::2]] == said
    assert [row["parent"] for row in rows[1::2]] == [row["id"] for row in rows[::2]]


def _attempt(database: sqlite3.Connection, attempt: sqlite3.Row) -> None:
    name = f"attempt {attempt['id']}"
    assert State(attempt["state"]).terminal, f"{name} is still {attempt['state']}"
    message = database.execute("SELECT * FROM messages WHERE id = ?", (attempt["message_id"],)).fetchone()
    assert message["role"] == "assistant" and message["conversation_id"] == attempt["conversation_id"], name
    chunks = database.execute("SELECT * FROM chunks WHERE attempt_id = ? ORDER BY seq", (attempt["id"],)).fetchall()
    assert [chunk["seq"] for chunk in chunks] == list(range(attempt["last_seq"] + 1)), f"gap in {name}"
    text = ""
    for chunk in chunks:
        assert chunk["offset"] == len(text), f"{name}, chunk {chunk['seq']}"
        if chunk["kind"] == "text":
            text += json.loads(chunk["payload"])["text"]
    assert attempt["text"] == text and attempt["length"] == len(text), name


def check_copy(copy: Path, received: Sequence[tuple[Reader, int]]) -> None:
    """The copy holds of each reader as many chunks as had arrived before it was taken."""
    database = sqlite3.connect(copy / "pagoda.db")
    database.row_factory = sqlite3.Row
    try:
        assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        for reader, count in received:
            _received(database, reader, count)
    finally:
        database.close()


def states(pagoda: RunningPagoda, readers: Sequence[Reader]) -> set[str]:
    """How the replies ended, as a client reads it."""
    found = set()
    for reader in readers:
        found |= {a["state"] for a in pagoda.attempts(reader.conversation) if a["id"] == reader.attempt}
    return found


def _received(database: sqlite3.Connection, reader: Reader, count: int) -> None:
    for number, chunk in enumerate(reader.chunks[:count]):
        assert chunk["seq"] == number, f"{reader.attempt} was received with a gap"
        assert (chunk["attempt_id"], chunk["conversation_id"]) == (reader.attempt, reader.conversation)
        kept = database.execute(
            "SELECT * FROM chunks WHERE attempt_id = ? AND seq = ?", (reader.attempt, number)
        ).fetchone()
        assert kept is not None, f"chunk {number} of {reader.attempt} was received and is not on disk"
        assert (kept["kind"], kept["offset"]) == (chunk["kind"], chunk["offset"])
        if chunk["kind"] == "text":
            assert json.loads(kept["payload"])["text"] == chunk["data"]["text"]


def _over_http(pagoda: RunningPagoda, reader: Reader) -> None:
    again = Reader(pagoda.url, reader.conversation, reader.attempt)
    again.finish()
    assert again.chunks[: len(reader.chunks)] == reader.chunks, f"{reader.attempt} reads differently now"
    assert [a["text"] for a in pagoda.attempts(reader.conversation) if a["id"] == reader.attempt] == [again.text()]
