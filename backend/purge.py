"""Removes for good what was deleted and can no longer be undone: whole conversations, and single turns."""

import sqlite3


def purge(db: sqlite3.Connection, before: float) -> None:
    """Everything deleted earlier than `before`. Call it in a transaction."""
    db.execute("DELETE FROM conversations WHERE deleted_at < ?", (before,))
    gone = db.execute("SELECT id FROM messages WHERE role = 'user' AND deleted_at < ? ORDER BY position", (before,))
    for (user_id,) in gone.fetchall():
        _close_the_gap(db, user_id)
        db.execute("DELETE FROM messages WHERE id = ? OR parent = ?", (user_id, user_id))


def _close_the_gap(db: sqlite3.Connection, user_id: str) -> None:
    """What followed a deleted turn follows the one before it from now on, and one of its branches stays chosen."""
    conversation_id, parent, chosen = db.execute(
        "SELECT conversation_id, parent, chosen FROM messages WHERE id = ?", (user_id,)
    ).fetchone()
    (reply_id,) = db.execute("SELECT id FROM messages WHERE parent = ?", (user_id,)).fetchone()
    db.execute(
        "UPDATE messages SET parent = ?, chosen = chosen AND ? WHERE parent = ?", (parent, bool(chosen), reply_id)
    )
    place = "conversation_id = ? AND role = 'user' AND parent IS ? AND id != ?"
    values = (conversation_id, parent, user_id)
    if not db.execute(f"SELECT 1 FROM messages WHERE {place} AND chosen", values).fetchone():
        db.execute(
            f"""UPDATE messages SET chosen = 1 WHERE id =
                (SELECT id FROM messages WHERE {place} ORDER BY position DESC LIMIT 1)""",
            values,
        )
