"""Chunks of one turn of the event loop share a commit, and none is shown before it."""

import asyncio
import math
import sqlite3

from backend import group
from backend.chunks import Chunk, Text
from engine.events import Token
from tests.backend.full_disk import full_disk


def texts_on_disk(house) -> list[str]:
    """What another process would find now."""
    with sqlite3.connect(f"file:{house.journal.path}?mode=ro", uri=True) as db:
        return [row[0] for row in db.execute("SELECT json_extract(payload, '$.text') FROM chunks WHERE kind = 'text'")]


async def test_what_is_shown_is_on_disk_and_what_comes_at_once_is_one_commit(house):
    _, call = await house.send(house.conversation(), "Hello")
    await call.token("a")
    seen: list[list[str]] = []
    house.gateway.subscribe(lambda item: seen.append(texts_on_disk(house)) if isinstance(item, Chunk) else None)
    for text in "bcd":
        call._events.put_nowait(Token(call.run_id, 1, text))
    await call.token("e")
    assert seen == [["a", "b", "c", "d", "e"]] * 4
    await call.finish()


async def test_a_reply_alone_waits_for_no_other_and_what_comes_faster_than_the_disk_shares_a_commit(house, monkeypatch):
    sent, call = await house.send(house.conversation(), "Hello")
    said: list[str] = []
    house.journal._connection.set_trace_callback(said.append)
    monkeypatch.setattr(group, "SHARE", math.inf)  # a disk that takes no time
    for text in "abc":
        await call.token(text)
        await asyncio.sleep(0)
        assert house.text_of(sent.attempt_id).endswith(text), "in the same turn"
    assert said.count("COMMIT") == 3 + 1, "and the state before the first"
    monkeypatch.setattr(group, "SHARE", 1e-9)  # a disk so slow that only LATEST_S ends the wait
    monkeypatch.setattr(group, "LATEST_S", 600.0)
    await call.token("d")
    said.clear()
    for text in "efg":
        await call.token(text)
        await asyncio.sleep(0)
    assert texts_on_disk(house) == list("abcd") and house.text_of(sent.attempt_id) == "abcd"
    await call.finish()
    assert texts_on_disk(house) == list("abcdefg") and house.text_of(sent.attempt_id) == "abcdefg"
    assert said.count("COMMIT") == 2, "the text, and the end"


async def test_whoever_reads_in_between_sees_only_what_is_on_disk(house):
    sent, call = await house.send(house.conversation(), "Hello")
    await call.token("a")
    run = house.gateway._runs[sent.attempt_id]
    run._text(Text("b"))
    assert texts_on_disk(house) == ["a"] and house.text_of(sent.attempt_id) == "a"
    assert house.attempt(sent.attempt_id)["text"] == "ab"  # reading puts it there, and shows it
    assert texts_on_disk(house) == ["a", "b"] and house.text_of(sent.attempt_id) == "ab"
    await call.finish()


async def test_a_commit_that_fails_ends_each_of_its_replies_before_the_text_that_was_lost(house):
    house.source.capacity = 2
    replies = [await house.send(house.conversation(), text) for text in ("one", "two")]
    for sent, call in replies:
        await call.token("kept")
        assert house.attempt(sent.attempt_id)["text"] == "kept"  # reading puts it on disk
    for sent, _ in replies:
        house.gateway._runs[sent.attempt_id]._text(Text(" lost"))
        house.gateway._runs[sent.attempt_id]._text(Text(" too"))
    real = house.journal._group._db

    class NoRoom:
        """A connection on a disk that is full at the commit."""

        in_transaction = property(lambda self: real.in_transaction)

        def execute(self, words: str):
            if words == "COMMIT":
                raise sqlite3.OperationalError("database or disk is full")
            return real.execute(words)

    house.journal._group._db = NoRoom()
    house.journal._group.commit()
    house.journal._group._db = real
    for sent, call in replies:
        await asyncio.wait_for(call.over.wait(), 10)
        attempt = house.attempt(sent.attempt_id)
        assert (attempt["state"], attempt["text"]) == ("failed", "kept") and "Make room" in attempt["detail"]
        assert house.text_of(sent.attempt_id) == "kept"


async def test_text_for_which_there_is_no_room_takes_the_rest_of_its_turn_with_it(house):
    sent, call = await house.send(house.conversation(), "Hello")
    await call.token("kept")
    with full_disk(house.journal):
        for text in "xy":
            call._events.put_nowait(Token(call.run_id, 1, text))
        await call.over.wait()
        assert house.attempt(sent.attempt_id)["state"] == "failed" and house.text_of(sent.attempt_id) == "kept"
