"""Finds words in all conversations: titles, a person's messages, the selected version of each reply.

SQLite's FTS5 with trigrams finds any three characters in a row, Chinese too; shorter words are looked for one by one.
It runs in a thread with a connection of its own, so that a large history never holds up a reply.
"""

import re
import sqlite3
from pathlib import Path
from typing import Any

from backend.columns import damage_told
from backend.migrations import readable

LIMIT = 60
TRIGRAM = 3
MAX_WORDS = 12
# Where a reply's thinking begins and ends: the page folds it, so nobody has seen these.
_THINKING = re.compile(r"</?think>")
BEFORE, AFTER = 40, 120  # characters of a message shown around the first hit

_PASSAGES = """SELECT m.conversation_id, c.title, m.id AS message_id, m.role, p.text, c.updated_at, m.created_at
    FROM passages p JOIN messages m ON m.id = p.message_id JOIN conversations c ON c.id = m.conversation_id
    WHERE c.deleted_at IS NULL AND m.deleted_at IS NULL
    AND (p.attempt_id IS NULL OR p.attempt_id = m.selected_attempt)"""


@damage_told()
def search(path: Path, query: str) -> list[dict[str, Any]]:
    """What contains every word of the query, the newest conversation first. Quotes keep words together.

    Raises sqlite3.DatabaseError when the database is damaged.
    """
    words = words_of(query)
    if not words:
        return []
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    db.text_factory = readable
    db.row_factory = sqlite3.Row
    try:
        return [_hit(row, words) for row in (*_titles(db, words), *_passages(db, words))][:LIMIT]
    finally:
        db.close()


def words_of(query: str) -> list[str]:
    """The words of a query; what stands in quotes is one."""
    found = [quoted or bare for quoted, bare in re.findall(r'"([^"]+)"|([^\s"]+)', query)]
    return [word for word in found if word.strip()][:MAX_WORDS]


def _titles(db: sqlite3.Connection, words: list[str]) -> list[sqlite3.Row]:
    where, values = _contains("title", words)
    return db.execute(
        f"""SELECT id AS conversation_id, title, NULL AS message_id, NULL AS role, '' AS text FROM conversations
            WHERE deleted_at IS NULL AND {where} ORDER BY updated_at DESC LIMIT ?""",
        (*values, LIMIT),
    ).fetchall()


def _passages(db: sqlite3.Connection, words: list[str]) -> list[sqlite3.Row]:
    long = [word for word in words if len(word) >= TRIGRAM]
    where, values = _contains("p.text", [word for word in words if len(word) < TRIGRAM])
    if long:
        where += " AND p.id IN (SELECT rowid FROM passages_fts WHERE passages_fts MATCH ?)"
        values.append(" AND ".join('"{}"'.format(word.replace('"', '""')) for word in long))
    return db.execute(
        f"{_PASSAGES} AND {where} ORDER BY c.updated_at DESC, m.position DESC LIMIT ?", (*values, LIMIT)
    ).fetchall()


def _contains(column: str, words: list[str]) -> tuple[str, list[Any]]:
    escaped = [re.sub(r"([%_\\])", r"\\\1", word) for word in words]
    where = " AND ".join([rf"{column} LIKE ? ESCAPE '\'"] * len(words))
    return where or "1", [f"%{word}%" for word in escaped]


def _hit(row: sqlite3.Row, words: list[str]) -> dict[str, Any]:
    pattern = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))), re.IGNORECASE)
    return {
        "conversation_id": row["conversation_id"],
        "message_id": row["message_id"],
        "role": row["role"],
        "title": _marked(row["title"], pattern),
        "excerpt": _marked(_around(_as_seen(row), pattern), pattern),
    }


def _as_seen(row: sqlite3.Row) -> str:
    return row["text"] if row["role"] == "user" else _THINKING.sub(" ", row["text"])


def _around(text: str, pattern: re.Pattern[str]) -> str:
    """One line from a message, with the first hit in it."""
    found = pattern.search(text)
    start = max(0, (found.start() if found else 0) - BEFORE)
    end = (found.end() if found else 0) + AFTER
    line = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{line}{'…' if end < len(text) else ''}"


def _marked(text: str, pattern: re.Pattern[str]) -> list[dict[str, Any]]:
    """The text in pieces, those marked that match: no markup travels, so none can be injected."""
    pieces, position = [], 0
    for match in pattern.finditer(text):
        pieces += [{"text": text[position : match.start()], "hit": False}, {"text": match.group(), "hit": True}]
        position = match.end()
    return [piece for piece in (*pieces, {"text": text[position:], "hit": False}) if piece["text"]]
