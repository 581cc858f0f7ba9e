"""Edited messages, deleted turns and conversations, and the way back, one promise a test."""

import pytest

from backend import library
from backend.errors import Conflict, Invalid, NotFound


def questions(house, conversation: str) -> list[str]:
    return [m["text"] for m in house.gateway.conversation(conversation)["messages"] if m["role"] == "user"]


async def edited(house, message: str, question: str, answer: str):
    sent = house.gateway.edit(message, f"r-{question}", question)
    call = await house.source.next_call()
    await call.write(answer)
    await call.finish()
    return sent, call


async def test_an_edited_message_reads_only_what_was_before_it_and_hides_what_followed(house):
    conversation = house.conversation()
    await house.turn(conversation, "One", "First")
    second = await house.turn(conversation, "Two", "Second")
    await house.turn(conversation, "Three", "Third")
    sent, call = await edited(house, second.user_message_id, "Two, better", "Better")
    assert [m["content"] for m in call.request.messages] == ["One", "First", "Two, better"]
    assert questions(house, conversation) == ["One", "Two, better"]
    house.gateway.show_branch(second.user_message_id)
    assert questions(house, conversation) == ["One", "Two", "Three"]
    versions = house.gateway.conversation(conversation)["messages"][2]["versions"]
    assert versions == [second.user_message_id, sent.user_message_id]
    assert len(house.notices("branch")) == 2


async def test_a_reply_on_a_branch_out_of_sight_reads_its_own_branch_and_is_not_sent_to_the_page(house):
    conversation = house.conversation()
    first = await house.turn(conversation, "One", "First")
    old = await house.turn(conversation, "Two", "Second")
    await edited(house, first.user_message_id, "Other", "Otherwise")
    before = len(house.notices("message"))
    house.gateway.regenerate(old.message_id)
    call = await house.source.next_call()
    assert [m["content"] for m in call.request.messages] == ["One", "First", "Two"]
    await call.finish()
    assert len(house.notices("message")) == before


async def test_an_edit_with_the_same_request_id_is_one_message(house):
    conversation = house.conversation()
    sent = await house.turn(conversation, "One", "First")
    again, _ = await edited(house, sent.user_message_id, "Better", "Yes")
    assert house.gateway.edit(sent.user_message_id, "r-Better", "Better") == again
    assert len(house.source.calls) == 2
    other = await house.turn(house.conversation(), "Elsewhere", "x")
    with pytest.raises(Conflict):
        house.gateway.edit(other.user_message_id, "r-Better", "Better")
    for message, text in ((sent.message_id, "x"), (sent.user_message_id, " ")):
        with pytest.raises(Invalid):
            house.gateway.edit(message, "r-new", text)


async def test_the_title_follows_an_edit_of_the_first_message_unless_a_person_gave_one(house):
    conversation = house.conversation()
    sent = await house.turn(conversation, "Frist words", "x")
    better, _ = await edited(house, sent.user_message_id, "First words", "x")
    assert house.gateway.conversation(conversation)["title"] == "First words"
    house.gateway.update_conversation(conversation, title="Mine")
    await edited(house, better.user_message_id, "Again", "x")
    assert house.gateway.conversation(conversation)["title"] == "Mine"


async def test_a_deleted_turn_stops_and_leaves_later_prompts(house):
    conversation = house.conversation()
    await house.turn(conversation, "One", "First")
    sent, call = await house.send(conversation, "Two")
    await call.token("Half")
    house.gateway.delete_turn(sent.message_id)
    await call.over.wait()
    assert questions(house, conversation) == ["One"]
    _, call = await house.send(conversation, "Three")
    assert [m["content"] for m in call.request.messages] == ["One", "First", "Three"]
    with pytest.raises(NotFound):
        house.gateway.regenerate(sent.message_id)
    house.gateway.restore_turn(sent.user_message_id)
    assert questions(house, conversation) == ["One", "Two", "Three"]
    assert house.attempt(sent.attempt_id)["text"] == "Half"


async def test_after_a_restart_what_was_deleted_is_gone_and_its_place_is_closed(house):
    conversation = house.conversation()
    first = await house.turn(conversation, "One", "First")
    old = await house.turn(conversation, "Two", "Second")
    await edited(house, old.user_message_id, "Two, better", "x")
    house.gateway.show_branch(old.user_message_id)
    house.gateway.delete_turn(first.user_message_id)
    assert questions(house, conversation) == ["Two"]
    await house.close()
    house.open()
    assert questions(house, conversation) == ["Two"]  # the older branch, as it was chosen
    assert len(house.gateway.conversation(conversation)["messages"][0]["versions"]) == 2
    for gone in (lambda: house.gateway.restore_turn(first.user_message_id), lambda: house.attempt(first.attempt_id)):
        with pytest.raises(NotFound):
            gone()


async def test_purging_a_turn_out_of_sight_leaves_the_chosen_branch_alone(house):
    conversation = house.conversation()
    old = await house.turn(conversation, "One", "First")
    await house.turn(conversation, "Two", "Second")
    sent, _ = await edited(house, old.user_message_id, "Other", "x")
    house.gateway.delete_turn(old.user_message_id)
    await house.close()
    house.open()
    assert questions(house, conversation) == ["Other"]
    assert len(house.gateway.conversation(conversation)["messages"][0]["versions"]) == 2
    assert house.gateway.conversation(conversation)["messages"][0]["id"] == sent.user_message_id


async def test_a_deleted_conversation_comes_back_whole_until_it_is_purged(house, monkeypatch):
    conversation = house.conversation()
    sent, call = await house.send(conversation, "One")
    await call.token("Half")
    house.gateway.delete_conversation(conversation)
    await call.over.wait()
    assert house.gateway.conversations() == []
    assert house.gateway.restore_conversation(conversation)["messages"][1]["text"] == "Half"
    assert house.notices("conversation")[-1]["id"] == conversation
    house.gateway.delete_conversation(conversation)
    monkeypatch.setattr(library, "UNDO_S", -1.0)
    house.gateway._purge()
    with pytest.raises(NotFound, match="gone for good"):
        house.gateway.restore_conversation(conversation)
    assert house.journal.attempts_of(sent.message_id) == []


async def test_pinned_and_archived_are_told_to_every_tab(house):
    conversation = house.conversation()
    house.gateway.update_conversation(conversation, pinned=True)
    assert house.notices("conversation")[-1]["pinned"]
    house.gateway.update_conversation(conversation, archived=True, pinned=False)
    row = house.notices("conversation")[-1]
    assert (row["pinned"], row["archived"]) == (False, True)
