"""Conversations go out as files and come back the same; a foreign or damaged file changes nothing."""

import copy
import json

import pytest

from backend.errors import Invalid
from backend.transfer import parse
from tests.backend.conftest import House
from tests.backend.served import serve


async def rich(house: House) -> str:
    """A conversation with two branches, two versions, a system prompt and a deleted turn."""
    conversation = house.conversation(system="Be brief.", sampling={"temperature": 0.5})
    await house.turn(conversation, "One 塔", "First 🏯")
    gone = await house.turn(conversation, "Deleted", "Gone")
    sent = await house.turn(conversation, "Two", "Second")
    house.gateway.edit(sent.user_message_id, "e", "Two, better")
    await (await house.source.next_call()).finish(text="Better")
    house.gateway.show_branch(sent.user_message_id)
    house.gateway.regenerate(sent.message_id)
    await (await house.source.next_call()).finish(text="Second, again")
    house.gateway.select_attempt(sent.message_id, sent.attempt_id)
    house.gateway.delete_turn(gone.message_id)
    house.gateway.update_conversation(conversation, pinned=True, title="Rich")
    return conversation


def exported(*conversations: dict) -> bytes:
    return json.dumps({"format": "pagoda-conversations", "version": 1, "conversations": conversations}).encode()


def without_paths(conversation: dict) -> dict:
    """What an import promises to keep: everything but the progress of the past and request ids."""
    result = copy.deepcopy(conversation)
    for message in result["messages"]:
        message.pop("request_id")
        for attempt in message["attempts"]:
            for name in ("progress", "request_id", "last_seq", "ended_at", "continues"):
                attempt.pop(name)
    return result


async def test_an_export_read_by_another_pagoda_is_the_same_conversation(house, tmp_path):
    conversation = await rich(house)
    whole = house.gateway.whole(conversation)
    other = House(tmp_path / "other")
    assert await other.gateway.import_conversations(exported(whole)) == {"imported": 1, "known": 0}
    assert without_paths(other.gateway.whole(conversation)) == without_paths(whole)
    here, there = (each.gateway.conversation(conversation)["messages"] for each in (house, other))
    assert [(m["text"], m["versions"]) for m in there] == [(m["text"], m["versions"]) for m in here]
    assert [m["text"] for m in there] == ["One 塔", "First 🏯", "Two", "Second"]
    for message in there[1::2]:
        for attempt in message["attempts"]:
            chunks = other.gateway.chunks(attempt["id"])
            assert "".join(getattr(c.data, "text", "") for c in chunks) == attempt["text"]
    assert other.notices("conversation")[-1]["pinned"]
    assert len(await other.gateway.search("First")) == 1
    await other.close()


async def test_reading_the_same_file_again_changes_nothing(house, tmp_path):
    conversation = await rich(house)
    file = exported(house.gateway.whole(conversation))
    assert await house.gateway.import_conversations(file) == {"imported": 0, "known": 1}
    await house.turn(conversation, "Later", "Kept")
    await house.gateway.import_conversations(file)
    assert house.gateway.conversation(conversation)["messages"][-1]["text"] == "Kept"


async def test_an_imported_conversation_goes_on(house):
    await house.gateway.import_conversations(json.dumps([chatgpt()]).encode())
    (row,) = house.gateway.conversations()
    _, call = await house.send(row["id"], "And then?")
    assert [m["content"] for m in call.request.messages][-3:] == [
        "Thanks",
        "You are welcome.\n\nAnything else?",
        "And then?",
    ]
    await call.finish()
    reply = house.gateway.conversation(row["id"])["messages"][1]["id"]
    house.gateway.continue_(reply)
    assert (await house.source.next_call()).request.prefix_text == "Hi there"


def chatgpt(id: str = "abc") -> dict:
    """The tree of such a file: a regenerated first answer, a tool, a picture, a hidden system message."""

    def node(parent: str | None, role: str, parts: list, type: str = "text", **metadata) -> dict:
        message = {"author": {"role": role}, "content": {"content_type": type, "parts": parts}, "create_time": 1.5e9}
        return {"parent": parent, "message": message | {"metadata": metadata}, "children": []}

    mapping = {
        "root": {"parent": None, "message": None, "children": ["s"]},
        "s": node("root", "system", [""], is_visually_hidden_from_conversation=True),
        "u1": node("s", "user", ["Hello"]),
        "old": node("u1", "assistant", ["A version not chosen"]),
        "a1": node("u1", "assistant", ["Hi there"]),
        "u2": node("a1", "user", [{"asset_pointer": "file"}, "Thanks"], "multimodal_text"),
        "a2": node("u2", "assistant", ["You are welcome."]),
        "tool": node("a2", "tool", ["42"]),
        "a3": node("tool", "assistant", ["Anything else?"]),
    }
    return {"title": "From elsewhere", "create_time": 1.5e9, "update_time": 1.6e9, "conversation_id": id,
            "current_node": "a3", "mapping": mapping}  # fmt: skip


async def test_chatgpts_tree_becomes_the_branch_that_was_on_screen(house):
    file = json.dumps([chatgpt(), chatgpt("other")]).encode()
    assert await house.gateway.import_conversations(file) == {"imported": 2, "known": 0}
    assert await house.gateway.import_conversations(file) == {"imported": 0, "known": 2}
    row = house.gateway.conversations()[0]
    assert (row["title"], row["created_at"], row["updated_at"], row["unread"]) == (
        "From elsewhere",
        1.5e9,
        1.6e9,
        False,
    )
    texts = [m["text"] for m in house.gateway.conversation(row["id"])["messages"]]
    assert texts == ["Hello", "Hi there", "Thanks", "You are welcome.\n\nAnything else?"]


async def test_an_unanswered_question_and_an_unasked_answer_keep_their_places(house):
    conversation = chatgpt()
    del conversation["mapping"]["u1"]["message"]
    conversation["current_node"] = "u2"
    await house.gateway.import_conversations(json.dumps([conversation]).encode())
    messages = house.gateway.conversation(house.gateway.conversations()[0]["id"])["messages"]
    assert [m["text"] for m in messages] == ["…", "Hi there", "Thanks", ""]
    assert messages[-1]["attempts"][0]["state"] == "interrupted"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda c: b"{", "no JSON"),
        (lambda c: b"\xff\xfe", "no JSON"),
        (lambda c: b"[" * 100_000, "no JSON"),
        (lambda c: b'{"a": 1}', "neither"),
        (lambda c: exported(c) .replace(b'"version": 1', b'"version": 2'), "newer Pagoda"),
        (lambda c: exported({**c, "title": 5}), "damaged"),
        (lambda c: exported({**c, "sampling": {"top_p": 7}}), "top_p"),
        (lambda c: exported({**c, "messages": c["messages"][1:]}), "follow each other"),
        (lambda c: exported({**c, "messages": c["messages"][:1]}), "no reply"),
        (lambda c: exported({**c, "messages": c["messages"][:2] * 2}), "same id"),
        (lambda c: exported({**c, "messages": [{**c["messages"][0], "parent": "m_none"}]}), "follow each other"),
        (lambda c: exported({**c, "messages": [c["messages"][0], {**c["messages"][1], "attempts": []}]}), "no version"),
        (lambda c: exported({**c, "id": "c_2"}), "belong to other conversations"),
    ],
)  # fmt: skip
async def test_a_damaged_file_changes_nothing_and_says_what_is_wrong(house, damage, words):
    whole = house.gateway.whole(await rich(house))
    before = house.gateway.conversations()
    file = damage(whole)
    with pytest.raises(Invalid, match=words):
        await house.gateway.import_conversations(file)
    assert house.gateway.conversations() == before


async def test_what_was_deleted_a_moment_ago_comes_back_with_its_file(house):
    whole = house.gateway.whole(id := await rich(house))
    before = house.gateway.conversation(id)
    house.gateway.delete_conversation(id)
    assert house.gateway.conversations() == []
    assert await house.gateway.import_conversations(exported(whole)) == {"imported": 1, "known": 0}
    assert house.gateway.conversation(id) == before
    assert await house.gateway.import_conversations(exported(whole)) == {"imported": 0, "known": 1}


async def test_nothing_is_half_imported_when_pagoda_dies_in_between(house):
    file = json.dumps([chatgpt("a"), chatgpt("b")]).encode()
    assert len(house.journal.add_hidden(parse(file, "scripted")[:1])) == 1
    assert house.gateway.conversations() == [] and house.notices("conversation") == []
    await house.close()
    house.open()
    assert await house.gateway.import_conversations(file) == {"imported": 2, "known": 0}


async def test_files_are_downloaded_and_sent_back_over_http(tmp_path):
    async with serve(tmp_path / "data") as served:
        conversation = await served.conversation()
        await served.send(conversation, "# What is a/塔?")
        call = await served.source.next_call()
        await call.write("A tower.")
        await call.finish()
        path = f"/api/conversations/{conversation}/export"
        markdown = await served.client.get(path)
        assert "## You\n\n# What is a/塔?\n\n## Reply\n\nA tower." in markdown.text
        assert markdown.headers["content-type"].startswith("text/markdown")
        assert "%23%20What%20is%20a%20%E5%A1%94" in markdown.headers["content-disposition"]
        one = await served.client.get(path, params={"format": "json"})
        everything = await served.client.get("/api/export")
        assert everything.json() == one.json() and len(one.json()["conversations"]) == 1
        assert "A tower." in (await served.client.get("/api/export", params={"format": "md"})).text
        back = await served.client.post(
            "/api/import", content=one.content, headers={"content-type": "application/json"}
        )
        assert back.json() == {"imported": 0, "known": 1}
        wrong = await served.client.post("/api/import", json={"not": "ours"})
        assert wrong.status_code == 400 and "neither" in wrong.json()["error"]["message"]
        assert (await served.client.get(path, params={"format": "pdf"})).status_code == 400
