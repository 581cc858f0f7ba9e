"""A disk that fills up in the middle: nothing seems to go on, nothing is lost, and all goes on when there is room."""

import asyncio

import pytest

from backend.errors import CannotWrite
from tests.backend.full_disk import full_disk
from tests.backend.served import serve


def on_disk(house, attempt: str) -> tuple[str, str | None]:
    row = house.journal._db.execute("SELECT state, detail FROM attempts WHERE id = ?", (attempt,)).fetchone()
    return row["state"], row["detail"]


async def written(house, attempt: str, state: str) -> None:
    async with asyncio.timeout(20):
        while on_disk(house, attempt)[0] != state:
            await asyncio.sleep(0.02)


async def test_a_reply_that_cannot_be_kept_fails_at_once_in_words_and_on_disk_when_there_is_room(house):
    conversation = house.conversation()
    sent, call = await house.send(conversation, "Hello")
    await call.write("Half a")
    with full_disk(house.journal):
        await call.token(" word")
        assert call.abort.aborted
        attempt = house.attempt(sent.attempt_id)
        assert (attempt["state"], attempt["text"]) == ("failed", "Half a")
        assert "disk is full" in attempt["detail"] and "Make room" in attempt["detail"]
        assert house.states_of(sent.attempt_id)[-1] == "failed"
        (row,) = house.gateway.conversations()
        assert row["failed"] and not row["running"]
        assert house.gateway.chunks(sent.attempt_id)[-1].data.state == "failed"
        assert on_disk(house, sent.attempt_id)[0] == "streaming"
        with pytest.raises(CannotWrite):
            house.gateway.continue_(sent.message_id)
        await call.over.wait()
    await written(house, sent.attempt_id, "failed")
    assert house.attempt(sent.attempt_id)["text"] == "Half a"
    further = house.gateway.continue_(sent.message_id)
    call = await house.source.next_call()
    await call.token(" word")
    await call.finish()
    assert house.attempt(further)["text"] == "Half a word"


async def test_a_new_version_right_after_there_is_room_does_not_lose_the_ending_of_the_old_one(house):
    sent, call = await house.send(house.conversation(), "Hello")
    with full_disk(house.journal):
        await call.token("x")
        await call.over.wait()
    house.gateway.regenerate(sent.message_id)
    await written(house, sent.attempt_id, "failed")
    await (await house.source.next_call()).finish()


@pytest.mark.parametrize("press", ["stop", "delete", "regenerate", "close"])
async def test_what_ends_a_reply_reaches_the_engine_even_when_nothing_can_be_written(house, press):
    conversation = house.conversation()
    sent, call = await house.send(conversation, "Hello")
    await call.token("Hi")
    gateway = house.gateway
    with full_disk(house.journal):
        if press == "stop":
            gateway.stop(sent.attempt_id)
        elif press == "close":
            await gateway.close()
        else:
            with pytest.raises(CannotWrite):
                gateway.delete_conversation(conversation) if press == "delete" else gateway.regenerate(sent.message_id)
        assert call.abort.aborted
        await call.over.wait()
        assert house.attempt(sent.attempt_id)["state"] == ("interrupted" if press == "close" else "cancelled")
    if press == "close":
        house.journal.close()
        house.open()
        assert on_disk(house, sent.attempt_id)[0] == "interrupted"
    else:
        await written(house, sent.attempt_id, "cancelled")


async def test_an_end_that_was_reached_stays_complete_and_is_written_late(house):
    sent, call = await house.send(house.conversation(), "Hello")
    await call.write("All of it")
    with full_disk(house.journal):
        await call.finish()
        assert house.attempt(sent.attempt_id)["state"] == "complete"
    await written(house, sent.attempt_id, "complete")


async def test_progress_that_a_timer_passes_on_ends_the_reply_and_not_the_timer(house):
    harm = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: harm.append(context))
    sent, call = await house.send(house.conversation(), "Hello")
    await call.prefill(1, 100)
    await call.prefill(2, 100)  # waits for its time
    with full_disk(house.journal):
        async with asyncio.timeout(20):
            await call.over.wait()
        assert house.attempt(sent.attempt_id)["state"] == "failed"
    await written(house, sent.attempt_id, "failed")
    assert harm == []


async def test_pagoda_starts_on_a_full_disk_and_marks_what_was_left_unfinished_when_there_is_room(house):
    sent, call = await house.send(house.conversation(), "Hello")
    await call.token("Hi")
    with full_disk(house.journal):
        house.gateway.start()
        assert house.attempt(sent.attempt_id)["state"] == "interrupted"
    await written(house, sent.attempt_id, "interrupted")


async def test_every_write_over_http_says_that_the_disk_is_full_and_reading_still_works(tmp_path):
    async with serve(tmp_path / "data") as served:
        conversation = await served.conversation()
        sent = await served.send(conversation, "Hello")
        await (await served.source.next_call()).finish()
        again = served.gateway.regenerate(sent["message_id"])
        await (await served.source.next_call()).finish()
        with full_disk(served.pagoda.journal):
            path, message = f"/api/conversations/{conversation}", f"/api/messages/{sent['message_id']}"
            for method, where, body in [
                ("POST", "/api/conversations", {}),
                ("PATCH", path, {"title": "x"}),
                ("DELETE", path, None),
                ("POST", f"{path}/restore", {}),
                ("POST", f"{path}/read", {}),
                ("POST", f"{path}/messages", {"request_id": "r2", "text": "x"}),
                ("PATCH", message, {"selected_attempt": sent["attempt_id"]}),
                ("POST", f"{message}/regenerate", {}),
            ]:
                answer = await served.client.request(method, where, json=body)
                assert answer.status_code == 507, (method, where, answer.text)
                assert "Make room" in answer.json()["error"]["message"]
            body = (await served.client.get(path)).json()
            assert body["messages"][1]["selected_attempt"] == again
