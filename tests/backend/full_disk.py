"""A disk without room, as SQLite meets it: the database may not grow by another page."""

from collections.abc import Iterator
from contextlib import contextmanager

from backend.journal import Journal

_TABLES, _ACTIONS = ("chunks", "attempts", "messages", "conversations"), ("INSERT", "UPDATE", "DELETE")
_WRITES = [(table, action) for table in _TABLES for action in _ACTIONS]


@contextmanager
def full_disk(journal: Journal) -> Iterator[None]:
    """Every write fails with SQLITE_FULL until the block is left."""
    db = journal._db
    before = db.execute("PRAGMA max_page_count").fetchone()[0]
    db.execute("CREATE TABLE IF NOT EXISTS filling (x BLOB)")
    db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
    # Also a row of a few bytes must fail, wherever it goes: a page's worth of nothing goes along with each write.
    for table, action in _WRITES:
        db.execute(
            f"CREATE TEMP TRIGGER full_{table}_{action} BEFORE {action} ON main.{table} "
            "BEGIN INSERT INTO filling VALUES (zeroblob(2000000)); END"
        )
    try:
        yield
    finally:
        for table, action in _WRITES:
            db.execute(f"DROP TRIGGER full_{table}_{action}")
        db.execute(f"PRAGMA max_page_count = {before}")
        db.execute("DROP TABLE filling")
