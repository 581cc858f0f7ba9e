"""What a search over all conversations finds, in any language, and what it never shows."""

import sqlite3

import pytest

from backend import migrations
from backend.search import search


def found(hits: list[dict]) -> list[str]:
    return ["".join(piece["text"] for piece in hit["excerpt"] or hit["title"]) for hit in hits]


def marked(hits: list[dict]) -> list[str]:
    return [piece["text"] for hit in hits for piece in (*hit["title"], *hit["excerpt"]) if piece["hit"]]


async def test_every_word_is_found_wherever_it_stands_and_marked(house):
    conversation = house.conversation()
    await house.turn(conversation, "How tall is the pagoda?", "It has seven storeys of cedar wood.")
    await house.turn(house.conversation(), "Unrelated", "Nothing of the kind.")
    (hit,) = await house.gateway.search("CEDAR sev")
    assert hit["conversation_id"] == conversation and hit["role"] == "assistant"
    assert hit["message_id"] == house.gateway.conversation(conversation)["messages"][1]["id"]
    assert marked([hit]) == ["sev", "cedar"]
    assert await house.gateway.search("cedar unrelated") == []
    assert await house.gateway.search('"cedar seven"') == []


@pytest.mark.parametrize("query", ["宝塔", "塔", "七层的宝塔", "层 塔"])
async def test_chinese_is_found_by_one_character_two_or_more(house, query):
    await house.turn(house.conversation(), "请介绍一下", "这是一座七层的宝塔，用木头建成。")
    hits = await house.gateway.search(query)
    assert len(hits) == 1 and set(marked(hits)) == set(query.split())


@pytest.mark.parametrize("query", ["100%", "a_b", 'say "x', "\\n", "' OR 1=1 --", "NEAR(", "*", "%", "_"])
async def test_what_means_something_to_a_database_is_only_text(house, query):
    text = query.replace('"', "")
    await house.turn(house.conversation(), f"between {text} and", "x")
    await house.turn(house.conversation(), "nothing to see", "x")
    assert len([hit for hit in await house.gateway.search(query) if hit["role"] == "user"]) == 1
    assert await house.gateway.search(" ") == []


async def test_an_excerpt_shows_a_replys_thinking_as_the_page_does_and_a_persons_words_as_they_are(house):
    await house.turn(house.conversation(), "What does <think> mean?", "<think>\nA tag, surely.\n</think>\n\nIt means.")
    (reply,) = found(await house.gateway.search("surely"))
    assert reply == "A tag, surely. It means."
    (prompt,) = found([hit for hit in await house.gateway.search("does") if hit["role"] == "user"])
    assert prompt == "What does <think> mean?"


async def test_titles_are_found_too(house):
    conversation = house.conversation()
    house.gateway.update_conversation(conversation, title="Letters to Kyoto")
    (hit,) = await house.gateway.search("kyoto")
    assert (hit["conversation_id"], hit["message_id"], marked([hit])) == (conversation, None, ["Kyoto"])


async def test_only_the_selected_version_is_found_and_deleted_things_are_not(house):
    conversation = house.conversation()
    sent = await house.turn(conversation, "Question", "the word amber")
    again = house.gateway.regenerate(sent.message_id)
    call = await house.source.next_call()
    await call.write("the word cobalt")
    await call.finish()
    assert found(await house.gateway.search("amber")) == []
    assert found(await house.gateway.search("cobalt")) == ["the word cobalt"]
    house.gateway.select_attempt(sent.message_id, sent.attempt_id)
    assert found(await house.gateway.search("amber")) == ["the word amber"]
    assert house.attempt(again)["text"] == "the word cobalt"
    house.gateway.delete_turn(sent.message_id)
    assert await house.gateway.search("amber") == []
    house.gateway.restore_turn(sent.user_message_id)
    house.gateway.delete_conversation(conversation)
    assert await house.gateway.search("amber") == []
    house.gateway.restore_conversation(conversation)
    assert len(await house.gateway.search("amber")) == 1


async def test_what_is_purged_leaves_the_index(house):
    conversation = house.conversation()
    await house.turn(conversation, "Question about jade", "An answer about jade")
    house.gateway.delete_conversation(conversation)
    await house.close()
    house.open()
    db = sqlite3.connect(house.folder / "pagoda.db")
    assert db.execute("SELECT count(*) FROM passages").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM passages_fts WHERE passages_fts MATCH 'jade'").fetchone() == (0,)
    db.execute("INSERT INTO passages_fts (passages_fts) VALUES ('integrity-check')")
    db.close()


def test_a_history_written_before_there_was_a_search_is_found(tmp_path):
    db = sqlite3.connect(tmp_path / "old.db", isolation_level=None)
    migrations.migrate(db, migrations.STEPS[:1])
    db.execute("INSERT INTO conversations VALUES ('c', 'Old', 'm', NULL, '{}', 0, NULL, 1, 1)")
    for position, role, text in ((0, "user", "old question"), (1, "assistant", ""), (2, "user", "next question")):
        db.execute(
            "INSERT INTO messages VALUES (?, 'c', ?, ?, ?, NULL, NULL, 'a', 1)",
            (f"m{position}", position, role, text),
        )
    db.execute(
        """INSERT INTO attempts (id, message_id, conversation_id, number, model, state, text, created_at)
           VALUES ('a', 'm1', 'c', 0, 'm', 'complete', 'old answer', 1)"""
    )
    migrations.migrate(db)
    assert [row[0] for row in db.execute("SELECT parent FROM messages ORDER BY position")] == [None, "m0", "m1"]
    db.close()
    assert found(search(tmp_path / "old.db", "question")) == ["next question", "old question"]
    assert found(search(tmp_path / "old.db", "answer")) == ["old answer"]
