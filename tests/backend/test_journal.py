"""What the journal accepts, what it refuses, and what is on disk after the hardest end."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from backend import migrations
from backend.chunks import Chunk, Progress, StateChange, Text
from backend.errors import CannotStart, CannotWrite, FolderInUse, ForeignData
from backend.journal import Journal
from backend.rows import Attempt, Conversation, Message
from backend.states import Reason, State


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path)
    yield journal
    journal.close()


def begin(journal: Journal, name: str = "1") -> Attempt:
    """A conversation with one question and an attempt to answer it."""
    now = time.time()
    conversation, reply = f"c{name}", f"m{name}"
    journal.add_conversation(Conversation(conversation, "New chat", "scripted", now, now))
    attempt = Attempt(f"a{name}", reply, conversation, 0, "scripted", now)
    journal.add_turn(
        Message(f"u{name}", conversation, 0, "user", now, "Hello", f"r{name}"),
        Message(reply, conversation, 1, "assistant", now, current_attempt=attempt.id, selected_attempt=attempt.id),
        attempt,
        "Hello",
    )
    return attempt


def chunk(attempt: Attempt, seq: int, offset: int, data) -> Chunk:
    kind = {Text: "text", Progress: "progress", StateChange: "state"}[type(data)]
    return Chunk(attempt.conversation_id, attempt.message_id, attempt.id, seq, offset, kind, data)


def test_a_snapshot_and_the_chunks_never_disagree(journal):
    attempt = begin(journal)
    said = [
        Progress("prefill", 0.5, tokens_done=3, tokens_total=6),
        StateChange(State.STREAMING),
        Text("塔🏯", (1, 2)),
        Text(" high", (3,)),
        StateChange(State.COMPLETE, Reason.STOP, usage={"total_tokens": 9}, timings={"ttft_s": 0.5}),
    ]
    text = ""
    for seq, data in enumerate(said):
        assert journal.append(chunk(attempt, seq, len(text), data))
        text += data.text if isinstance(data, Text) else ""
        row = journal.attempt(attempt.id)
        assert (row.last_seq, row.text, row.length) == (seq, text, len(text))
        assert [c.data for c in journal.chunks(attempt.id)] == said[: seq + 1]
    assert row.state == State.COMPLETE and row.usage == {"total_tokens": 9}
    assert row.progress == said[0]
    assert journal.chunks(attempt.id, after=2, limit=1)[0].data == said[3]


@pytest.mark.parametrize(("seq", "offset"), [(0, 0), (1, 2), (3, 2), (2, 0), (2, 3)])
def test_a_late_duplicate_or_displaced_chunk_changes_nothing(journal, seq, offset):
    attempt = begin(journal)
    journal.append(chunk(attempt, 0, 0, StateChange(State.STREAMING)))
    journal.append(chunk(attempt, 1, 0, Text("Hi")))
    before = journal.attempt(attempt.id)
    assert not journal.append(chunk(attempt, seq, offset, Text("stray")))
    assert journal.attempt(attempt.id) == before


def test_only_the_current_attempt_of_its_own_message_and_conversation_has_a_place(journal):
    old, other = begin(journal, "1"), begin(journal, "2")
    new = Attempt("a3", old.message_id, old.conversation_id, 1, "scripted", time.time())
    journal.add_attempt(new)
    assert not journal.append(chunk(old, 0, 0, Text("of the old version")))
    foreign = Chunk(other.conversation_id, other.message_id, new.id, 0, 0, "text", Text("of another conversation"))
    assert not journal.append(foreign)
    assert not journal.append(Chunk("c9", "m9", "a9", 0, 0, "text", Text("of nothing")))
    assert journal.append(chunk(new, 0, 0, Text("new")))


def test_a_terminal_state_is_final(journal):
    attempt = begin(journal)
    journal.append(chunk(attempt, 0, 0, StateChange(State.CANCELLED)))
    for data in (Text("late"), StateChange(State.COMPLETE), StateChange(State.STREAMING), Progress("decode", 1)):
        assert not journal.append(chunk(attempt, 1, 0, data))
    assert journal.attempt(attempt.id).state == State.CANCELLED


def test_a_state_that_does_not_follow_is_refused(journal):
    attempt = begin(journal)
    assert not journal.append(chunk(attempt, 0, 0, StateChange(State.SENDING)))
    assert journal.append(chunk(attempt, 0, 0, StateChange(State.STREAMING)))
    assert not journal.append(chunk(attempt, 1, 0, StateChange(State.STREAMING)))


def test_the_seed_of_a_continued_reply_is_its_first_chunk(journal):
    attempt = begin(journal)
    further = Attempt("a2", attempt.message_id, attempt.conversation_id, 1, "scripted", time.time(), continues="a1")
    journal.add_attempt(further, chunk(further, 0, 0, Text("So far", (1, 2))))
    row = journal.attempt("a2")
    assert (row.text, row.length, row.last_seq, row.state) == ("So far", 6, 0, State.SENDING)
    assert journal.append(chunk(further, 1, 6, Text(" so good")))


def test_deleting_a_conversation_leaves_nothing_of_it(journal, tmp_path):
    attempt = begin(journal)
    journal.append(chunk(attempt, 0, 0, Text("Hi")))
    journal.delete_conversation(attempt.conversation_id)
    journal.purge(time.time() + 1)
    db = sqlite3.connect(tmp_path / "pagoda.db")
    for table in ("conversations", "messages", "attempts", "chunks"):
        assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    db.close()


def test_files_are_for_their_owner_only(tmp_path):
    folder = tmp_path / "data"
    journal = Journal(folder)
    begin(journal)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    journal.close()


def test_a_second_pagoda_is_refused_and_told_the_first_ones_pid(tmp_path):
    journal = Journal(tmp_path)
    code = "import sys; from pathlib import Path; from backend.journal import Journal; Journal(Path(sys.argv[1]))"
    second = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, cwd=_ROOT)
    assert "FolderInUse" in second.stderr and f"process {os.getpid()}" in second.stderr
    with pytest.raises(FolderInUse):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_said_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotStart, match="--data"):
        Journal(tmp_path / "file" / "data")


def test_a_full_disk_is_said_in_words_and_leaves_what_was_there(journal):
    attempt = begin(journal)
    journal._db.execute("PRAGMA max_page_count = 30")
    with pytest.raises(CannotWrite, match="full"):
        for seq in range(100):
            assert journal.append(chunk(attempt, seq, 1000 * seq, Text("x" * 1000)))
    row = journal.attempt(attempt.id)
    assert row.length == len(row.text) == 1000 * (row.last_seq + 1) > 0
    journal._db.execute("PRAGMA max_page_count = 1000000")
    assert journal.append(chunk(attempt, row.last_seq + 1, row.length, Text("room again")))


# --- migrations ----------------------------------------------------------------------------------


def test_steps_are_applied_once_in_order_and_recorded(tmp_path):
    ran = []

    def first(db):
        ran.append("first")
        db.execute("CREATE TABLE one (x)")

    def second(db):
        ran.append("second")
        db.execute("ALTER TABLE one ADD COLUMN y")

    db = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    migrations.migrate(db, (first,))
    migrations.migrate(db, (first, second))
    migrations.migrate(db, (first, second))
    assert ran == migrations.applied(db) == ["first", "second"]
    db.close()


def test_a_step_that_fails_leaves_no_trace(tmp_path):
    def broken(db):
        db.execute("CREATE TABLE half (x)")
        raise RuntimeError("in the middle")

    db = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    with pytest.raises(RuntimeError):
        migrations.migrate(db, (broken,))
    assert migrations.applied(db) == []
    assert not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'half'").fetchone()
    db.close()


def test_a_database_of_a_newer_pagoda_is_refused_untouched(tmp_path):
    journal = Journal(tmp_path)
    begin(journal)
    journal._db.execute("INSERT INTO migrations (name, applied_at) VALUES ('of_the_future', 0)")
    journal.close()
    before = (tmp_path / "pagoda.db").read_bytes()
    with pytest.raises(ForeignData, match=r"newer Pagoda .*of_the_future"):
        Journal(tmp_path)
    assert (tmp_path / "pagoda.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all, just text" * 40, None])
def test_a_foreign_file_is_refused_untouched(tmp_path, content):
    path = tmp_path / "pagoda.db"
    if content is None:
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE recipes (x)")
        db.commit()
        db.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(ForeignData):
        Journal(tmp_path)
    assert path.read_bytes() == before


def test_damage_that_sqlite_itself_quotes_is_told_as_damage(tmp_path):
    journal = Journal(tmp_path)
    attempt = begin(journal)
    journal.close()
    with closing(sqlite3.connect(tmp_path / "pagoda.db", isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema=ON")
        db.execute(
            "UPDATE sqlite_master SET sql = replace(sql, 'passages WHERE', CAST(x'70ea71' AS TEXT) || ' WHERE') "
            "WHERE name = 'attempt_ended'"
        )
    with closing(Journal(tmp_path)) as journal:
        with pytest.raises(CannotWrite, match=r"damaged.*backup"), journal.transaction() as db:
            db.execute("UPDATE attempts SET text = 'x' WHERE id = ?", (attempt.id,))
        assert journal.append(chunk(attempt, 0, 0, StateChange(State.STREAMING)))
        assert journal.append(chunk(attempt, 1, 0, StateChange(State.COMPLETE))), "kept until it can be written"


@pytest.mark.parametrize("damage", ["name = NULL", "name = x'00ff'", "name = 'passages_cam_be_searched'"])
def test_a_damaged_record_of_its_steps_is_no_newer_pagoda(tmp_path, damage):
    journal = Journal(tmp_path)
    begin(journal)
    journal.close()
    with closing(sqlite3.connect(tmp_path / "pagoda.db", isolation_level=None)) as db:
        # A disk knows no NOT NULL.
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'migrations'")
        db.execute("PRAGMA writable_schema=RESET")
        db.execute(f"UPDATE migrations SET {damage} WHERE number = 4")
    before = (tmp_path / "pagoda.db").read_bytes()
    with pytest.raises(ForeignData, match=r"pagoda.db cannot be read .*backup"):
        Journal(tmp_path)
    assert (tmp_path / "pagoda.db").read_bytes() == before


# --- the hardest end -----------------------------------------------------------------------------

_ROOT = Path(__file__).parents[2]

_WRITER = """
import asyncio, json, sys
from contextlib import closing
from pathlib import Path
from backend.chunks import Chunk
from backend.gateway import Gateway
from backend.journal import Journal
from tests.backend.scripted import ScriptedSource

async def main():
    source = ScriptedSource()
    gateway = Gateway(Journal(Path(sys.argv[1])), [source])
    gateway.start()
    gateway.subscribe(lambda item: isinstance(item, Chunk) and print(json.dumps(item.to_dict()), flush=True))
    conversation = gateway.create_conversation()["id"]
    gateway.send(conversation, "r", "Hello")
    call = await source.next_call()
    while True:
        await call.token("word ")

asyncio.run(main())
"""


def test_after_kill_9_everything_that_was_published_is_on_disk(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, tmp_path], stdout=subprocess.PIPE, text=True, cwd=_ROOT, bufsize=1
    )
    published = [json.loads(writer.stdout.readline()) for _ in range(300)]
    writer.send_signal(signal.SIGKILL)
    # A line that the kill cut in two was not seen whole by anybody.
    published += [json.loads(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    writer.wait()
    journal = Journal(tmp_path)
    attempt = published[0]["attempt_id"]
    on_disk = [json.loads(json.dumps(c.to_dict())) for c in journal.chunks(attempt)]
    assert on_disk[: len(published)] == published
    seen = "".join(c["data"].get("text", "") for c in published)
    assert len(published) >= 300 and journal.attempt(attempt).text.startswith(seen)
    assert [a.id for a in journal.alive()] == [attempt]
    journal.close()
