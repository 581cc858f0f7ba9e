"""Writes a chunk where it has its place, within a transaction of the journal; elsewhere it changes nothing.

It has a place only if its attempt is its message's current one, has not ended, and expects exactly this `seq` and
`offset`.
"""

import sqlite3
import time
from typing import Any

from backend.chunks import Chunk, Progress, StateChange, Text
from backend.columns import as_json, insert_chunk, text_of
from backend.states import State, can_become

# Text is nearly all that is written: its place is looked up and taken in one statement.
_MORE_TEXT = """UPDATE attempts SET last_seq = ?, length = ?
    WHERE id = ? AND last_seq = ? AND length = ? AND message_id = ? AND conversation_id = ?
    AND state IN ('sending', 'streaming')
    AND (SELECT current_attempt FROM messages WHERE messages.id = attempts.message_id) = attempts.id"""


def put(db: sqlite3.Connection, chunk: Chunk, late: bool = False) -> bool:
    """Write it; False when it has no place. `late`: its attempt need not be the current one any more."""
    if isinstance(chunk.data, Text) and not late:
        return _more_text(db, chunk, chunk.data)
    place = db.execute(
        """SELECT a.state, a.last_seq, a.length FROM attempts a JOIN messages m ON m.id = a.message_id
           WHERE a.id = ? AND (? OR m.current_attempt = a.id) AND a.message_id = ? AND a.conversation_id = ?""",
        (chunk.attempt_id, late, chunk.message_id, chunk.conversation_id),
    ).fetchone()
    if place is None or (chunk.seq, chunk.offset) != (place["last_seq"] + 1, place["length"]):
        return False
    state = State(place["state"])
    if state.terminal or (isinstance(chunk.data, StateChange) and not can_become(state, chunk.data.state)):
        return False
    write(db, chunk)
    return True


def write(db: sqlite3.Connection, chunk: Chunk) -> None:
    """Write it, and what it changes about its attempt, whatever stands there."""
    insert_chunk(db, chunk)
    changes: dict[str, Any] = {"last_seq": chunk.seq}
    match chunk.data:
        case Text(text=text):
            changes["length"] = chunk.offset + len(text)
        case Progress():
            changes["progress"] = chunk.payload_json
        case StateChange() as change:
            changes |= {"state": change.state, "reason": change.reason, "detail": change.detail}
            if change.state.terminal:
                changes |= {"usage": as_json(change.usage), "timings": as_json(change.timings)}
                changes |= {"text": text_of(db, chunk.attempt_id), "ended_at": time.time()}
                if change.state != State.CANCELLED:  # who pressed Stop knows that it ended
                    db.execute("UPDATE conversations SET unread = 1 WHERE id = ?", (chunk.conversation_id,))
    names = ", ".join(f"{name} = ?" for name in changes)
    db.execute(f"UPDATE attempts SET {names} WHERE id = ?", (*changes.values(), chunk.attempt_id))


def _more_text(db: sqlite3.Connection, chunk: Chunk, text: Text) -> bool:
    now, then = (chunk.seq - 1, chunk.offset), (chunk.seq, chunk.offset + len(text.text))
    where = (chunk.attempt_id, *now, chunk.message_id, chunk.conversation_id)
    if db.execute(_MORE_TEXT, (*then, *where)).rowcount != 1:
        return False
    insert_chunk(db, chunk)
    return True
