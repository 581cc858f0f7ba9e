"""The gateway's promises, one sentence each, with a source that says exactly what the test says."""

import asyncio

import pytest

from backend.chunks import Progress, StateChange
from backend.errors import Conflict, Invalid, NotFound
from engine.events import Sampling


async def test_a_reply_streams_and_ends_complete_with_usage_and_timings(house):
    conversation = house.conversation()
    sent, call = await house.send(conversation, "Hello\nthere")
    await call.prefill(3, 7)
    await call.write("Hi you")
    await call.finish(text="!")
    attempt = house.attempt(sent.attempt_id)
    assert attempt["text"] == house.text_of(sent.attempt_id) == "Hi you!"
    assert (attempt["state"], attempt["reason"]) == ("complete", "stop")
    assert house.states_of(sent.attempt_id) == ["streaming", "complete"]
    assert attempt["usage"] == {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, "cached_tokens": 4}
    assert {"ttft_s", "engine_ttft_s", "queued_s", "loading_s", "tpot_s", "expert_hits", "bytes_read"} <= set(
        attempt["timings"]
    )
    assert attempt["timings"]["tokens_per_s"] == 4
    assert house.gateway.conversation(conversation)["title"] == "Hello"


async def test_what_is_published_stands_in_the_journal_already(house):
    conversation = house.conversation()
    seen = []
    house.gateway.subscribe(
        lambda item: hasattr(item, "seq") and seen.append(item in house.gateway.chunks(item.attempt_id))
    )
    await house.turn(conversation, "Hello", "Hi you")
    assert seen and all(seen)


async def test_seq_counts_from_zero_without_a_gap_and_offset_counts_characters(house):
    sent = await house.turn(house.conversation(), "Hello", "Grüße 🏯 an dich")
    chunks = house.gateway.chunks(sent.attempt_id)
    assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))
    text = ""
    for chunk in chunks:
        assert chunk.offset == len(text)
        text += getattr(chunk.data, "text", "")
    assert text == "Grüße 🏯 an dich"


async def test_the_same_request_id_twice_is_one_message(house):
    conversation = house.conversation()
    first, call = await house.send(conversation, "Hello", "r1")
    assert house.gateway.send(conversation, "r1", "Hello") == first
    await call.finish()
    assert house.gateway.send(conversation, "r1", "Hello") == first
    assert len(house.gateway.conversation(conversation)["messages"]) == 2
    assert len(house.source.calls) == 1
    with pytest.raises(Conflict):
        house.gateway.send(house.conversation(), "r1", "Hello")


async def test_regenerate_and_continue_with_a_repeated_request_id_make_one_attempt(house):
    sent = await house.turn(house.conversation(), "Hello", "Hi")
    again = house.gateway.regenerate(sent.message_id, "r2")
    assert house.gateway.regenerate(sent.message_id, "r2") == again
    await (await house.source.next_call()).finish()
    further = house.gateway.continue_(sent.message_id, "r3")
    assert house.gateway.continue_(sent.message_id, "r3") == further


async def test_stop_keeps_the_text_and_ends_cancelled(house):
    sent, call = await house.send(house.conversation(), "Hello")
    await call.write("Hi you")
    house.gateway.stop(sent.attempt_id)
    await call.over.wait()
    attempt = house.attempt(sent.attempt_id)
    assert (attempt["state"], attempt["reason"], attempt["text"]) == ("cancelled", "stopped_by_person", "Hi you")
    house.gateway.stop(sent.attempt_id)
    assert house.attempt(sent.attempt_id) == attempt


async def test_stop_before_the_first_token_never_enters_a_later_prompt(house):
    conversation = house.conversation()
    sent, call = await house.send(conversation, "One")
    house.gateway.stop(sent.attempt_id)
    await call.over.wait()
    assert house.attempt(sent.attempt_id)["state"] == "cancelled"
    _, call = await house.send(conversation, "Two")
    assert call.request.messages == ({"role": "user", "content": "One\n\nTwo"},)


async def test_a_source_that_does_not_hear_the_stop_does_not_keep_the_person_waiting(house, monkeypatch):
    monkeypatch.setattr("backend.runs.STOP_GRACE_S", 0.01)
    house.source.deaf = True
    conversation = house.conversation()
    sent, call = await house.send(conversation, "Hello")
    await call.token("Hi")
    ended = _when(house, sent.attempt_id, "cancelled")
    house.gateway.stop(sent.attempt_id)
    await asyncio.wait_for(ended, 5)
    waiting = house.gateway.send(conversation, "r2", "Next")
    await call.token(" late")
    assert house.attempt(sent.attempt_id)["text"] == "Hi"
    assert house.attempt(waiting.attempt_id)["progress"]["queue_position"] == 1
    await call.finish("aborted")
    assert (await house.source.next_call()).request.messages[-1]["content"] == "Next"


async def test_a_source_that_hangs_after_a_stop_is_started_again_only_when_somebody_waits(house, monkeypatch):
    monkeypatch.setattr("backend.runs.STOP_GRACE_S", 0.01)
    monkeypatch.setattr("backend.runs.HUNG_S", 0.1)
    house.source.deaf = True
    sent, call = await house.send(house.conversation(), "Hello")
    await call.token("Hi")
    house.gateway.stop(sent.attempt_id)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call.over.wait(), 0.5)
    assert house.source.restarted == 0 and house.attempt(sent.attempt_id)["state"] == "cancelled"
    _, following = await house.send(house.conversation(), "Next")
    assert house.source.restarted == 1 and call.over.is_set()
    assert house.attempt(sent.attempt_id)["state"] == "cancelled"
    await following.finish()


async def test_a_failed_run_says_why_keeps_its_text_and_stays_out_of_prompts(house):
    conversation = house.conversation()
    sent, call = await house.send(conversation, "One")
    await call.write("Hal")
    await call.fail("The context is full. Start a new conversation.")
    attempt = house.attempt(sent.attempt_id)
    assert (attempt["state"], attempt["text"]) == ("failed", "Hal")
    assert attempt["detail"] == "The context is full. Start a new conversation."
    _, call = await house.send(conversation, "Two")
    assert [m["content"] for m in call.request.messages] == ["One\n\nTwo"]
    assert house.gateway.conversations()[0]["running"]


async def test_a_message_that_was_too_long_does_not_make_every_later_prompt_too_long(house):
    conversation = house.conversation()
    await house.turn(conversation, "One", "Uno")
    sent, call = await house.send(conversation, "A whole book")
    await call.fail("This is longer than the model's context.", "PromptTooLong")
    assert house.attempt(sent.attempt_id)["reason"] == "too_long"
    _, call = await house.send(conversation, "Two")
    assert [m["content"] for m in call.request.messages] == ["One", "Uno", "Two"]
    await call.finish()
    house.gateway.regenerate(sent.message_id)
    call = await house.source.next_call()
    assert [m["content"] for m in call.request.messages] == ["One", "Uno", "A whole book"]
    await call.write("Read")
    await call.finish()
    _, call = await house.send(conversation, "Three")
    assert [m["content"] for m in call.request.messages][2:4] == ["A whole book", "Read"]


async def test_a_temperature_too_small_to_divide_by_is_greedy(house):
    _, call = await house.send(house.conversation(sampling={"temperature": 1e-9, "top_p": 1e-9}), "Hello")
    assert call.request.sampling == Sampling(temperature=0.0, top_p=1e-9)


async def test_an_engine_that_dies_leaves_an_interrupted_reply_that_can_be_continued_token_by_token(house):
    conversation = house.conversation(sampling={"temperature": 0})
    sent, call = await house.send(conversation, "Hello")
    await call.token("Hi", 5)
    await call.token("", 6)
    await call.token(" yo", 7)
    await call.crash()
    attempt = house.attempt(sent.attempt_id)
    assert (attempt["state"], attempt["reason"], attempt["text"]) == ("interrupted", "engine_died", "Hi yo")
    further = house.gateway.continue_(sent.message_id)
    assert house.attempt(further)["text"] == "Hi yo"
    call = await house.source.next_call()
    assert (call.request.prefix_tokens, call.request.prefix_text) == ((5, 6, 7), "Hi yo")
    assert call.request.sampling == Sampling(temperature=0.0)
    await call.token("u", 8)
    await call.finish()
    assert house.attempt(further)["text"] == "Hi you"
    assert house.attempt(sent.attempt_id)["text"] == "Hi yo"
    assert house.gateway.chunks(further)[0].data.text == "Hi yo"
    once_more = house.gateway.continue_(sent.message_id)
    assert (await house.source.next_call()).request.prefix_tokens == (5, 6, 7, 8)
    assert house.attempt(once_more)["continues"] == further


async def test_regenerate_keeps_the_old_version_and_selects_the_new_one(house):
    conversation = house.conversation()
    sent = await house.turn(conversation, "Hello", "First")
    new = house.gateway.regenerate(sent.message_id)
    call = await house.source.next_call()
    assert call.request.messages == ({"role": "user", "content": "Hello"},)
    await call.write("Second")
    await call.finish()
    message = house.gateway.conversation(conversation)["messages"][1]
    assert [a["text"] for a in message["attempts"]] == ["First", "Second"]
    assert message["selected_attempt"] == message["current_attempt"] == new
    assert message["text"] == "Second"


async def test_a_failed_regenerate_does_not_eat_the_old_reply(house):
    conversation = house.conversation()
    sent = await house.turn(conversation, "Hello", "First")
    house.gateway.regenerate(sent.message_id)
    await (await house.source.next_call()).fail()
    house.gateway.select_attempt(sent.message_id, sent.attempt_id)
    assert house.gateway.conversation(conversation)["messages"][1]["text"] == "First"


async def test_later_prompts_read_the_selected_version(house):
    conversation = house.conversation(system="Be brief.")
    sent = await house.turn(conversation, "Hello", "First")
    house.gateway.regenerate(sent.message_id)
    call = await house.source.next_call()
    await call.write("Second")
    await call.finish()
    house.gateway.select_attempt(sent.message_id, sent.attempt_id)
    _, call = await house.send(conversation, "Next")
    assert [m["content"] for m in call.request.messages] == ["Be brief.", "Hello", "First", "Next"]


async def test_regenerating_a_running_reply_stops_it_and_drops_what_it_still_says(house):
    house.source.deaf = True
    sent, old = await house.send(house.conversation(), "Hello")
    await old.write("Old text")
    new = house.gateway.regenerate(sent.message_id)
    assert house.attempt(sent.attempt_id)["state"] == "cancelled"
    await old.token(" late")
    await old.finish()
    call = await house.source.next_call()
    await call.write("New")
    await call.finish()
    assert house.attempt(sent.attempt_id)["text"] == "Old text"
    assert house.attempt(new)["text"] == "New"


async def test_continue_of_a_running_reply_is_refused(house):
    sent, _ = await house.send(house.conversation(), "Hello")
    with pytest.raises(Conflict, match="still being written"):
        house.gateway.continue_(sent.message_id)


async def test_a_message_sent_during_a_reply_waits_and_reads_the_finished_reply(house):
    conversation = house.conversation()
    _, call = await house.send(conversation, "One")
    second = house.gateway.send(conversation, "r2", "Two")
    assert house.heard_of(second.attempt_id)[-1].queue_position == 1
    await call.write("First answer")
    await call.finish()
    call = await house.source.next_call()
    assert [m["content"] for m in call.request.messages] == ["One", "First answer", "Two"]


async def test_queue_places_move_and_a_stop_in_the_queue_is_immediate(house):
    a, b, c = house.conversation(), house.conversation(), house.conversation()
    _, call = await house.send(a, "A")
    in_b = house.gateway.send(b, "rb", "B")
    in_c = house.gateway.send(c, "rc", "C")
    assert house.attempt(in_c.attempt_id)["progress"]["queue_position"] == 2
    house.gateway.stop(in_b.attempt_id)
    assert house.attempt(in_b.attempt_id)["state"] == "cancelled"
    assert house.attempt(in_c.attempt_id)["progress"]["queue_position"] == 1
    await call.finish()
    assert (await house.source.next_call()).run_id == in_c.attempt_id
    assert len(house.source.calls) == 2


async def test_loading_is_shown_with_its_numbers_and_only_when_it_moves(house):
    sent, call = await house.send(house.conversation(), "Hello")
    await call.load(10, 100)
    await call.load(10, 100)
    await call.finish()
    loading = [p for p in house.heard_of(sent.attempt_id) if isinstance(p, Progress)]
    assert [(p.stage, p.load_stage, p.load_done, p.load_total) for p in loading] == [("loading", "download", 10, 100)]
    assert "loading_s" in house.attempt(sent.attempt_id)["timings"]


async def test_fast_progress_is_thinned_and_the_last_one_is_kept(house):
    sent, call = await house.send(house.conversation(), "Hello")
    for done in range(50):
        await call.prefill(done, 50)
    await call.token("Hi")
    progress = [p for p in house.heard_of(sent.attempt_id) if isinstance(p, Progress)]
    assert len(progress) < 10
    assert progress[-1].tokens_done == 49
    assert house.gateway.conversations()[0]["percent"] == 98.0


async def test_deleting_a_conversation_stops_its_runs_and_removes_everything(house):
    conversation = house.conversation()
    sent, call = await house.send(conversation, "Hello")
    await call.token("Hi")
    waiting = house.gateway.send(conversation, "r2", "More")
    house.gateway.delete_conversation(conversation)
    await call.over.wait()
    assert house.gateway.conversations() == []
    for attempt in (sent.attempt_id, waiting.attempt_id):
        with pytest.raises(NotFound):
            house.gateway.chunks(attempt)
    assert house.notices("deleted") == [{"id": conversation}]
    house.gateway.delete_conversation(conversation)
    house.gateway.stop(sent.attempt_id)
    await house.send(house.conversation(), "Other")
    assert len(house.source.calls) == 2


async def test_a_second_tab_hears_of_messages_versions_names_and_the_model(house):
    conversation = house.conversation()
    sent = await house.turn(conversation, "Hello", "Hi")
    assert [m["id"] for m in house.notices("message")] == [sent.user_message_id, sent.message_id]
    house.gateway.update_conversation(conversation, title="Greetings")
    assert house.notices("conversation")[-1]["title"] == "Greetings"
    house.gateway.regenerate(sent.message_id)
    assert len(house.notices("message")[-1]["attempts"]) == 2
    house.source.become(house.source.status())
    assert house.notices("model")[-1]["state"] == "ready"


async def test_unread_is_set_by_an_end_nobody_saw_and_cleared_by_reading(house):
    conversation = house.conversation()
    await house.turn(conversation, "Hello", "Hi")
    assert house.gateway.conversations()[0]["unread"]
    house.gateway.mark_read(conversation)
    assert not house.gateway.conversations()[0]["unread"]
    assert not house.notices("conversation")[-1]["unread"]


async def test_after_an_orderly_end_running_replies_are_interrupted_and_stay_so(house):
    conversation = house.conversation()
    sent, call = await house.send(conversation, "Hello")
    await call.write("Hi you")
    waiting = house.gateway.send(conversation, "r2", "More")
    await house.close()
    assert house.states_of(sent.attempt_id)[-1] == "interrupted"
    house.open()
    assert house.attempt(sent.attempt_id)["text"] == "Hi you"
    for attempt in (sent.attempt_id, waiting.attempt_id):
        assert (house.attempt(attempt)["state"], house.attempt(attempt)["reason"]) == ("interrupted", "restarted")
    last = house.gateway.chunks(sent.attempt_id)[-1].data
    assert isinstance(last, StateChange)


async def test_a_subscriber_that_fails_harms_neither_the_reply_nor_the_others(house):
    def broken(_):
        raise RuntimeError("a page that broke")

    house.gateway.subscribe(broken)
    late = []
    house.gateway.subscribe(late.append)
    sent = await house.turn(house.conversation(), "Hello", "Hi")
    assert house.attempt(sent.attempt_id)["state"] == "complete"
    assert late


async def test_what_cannot_be_stored_or_sampled_is_refused_in_words(house):
    conversation = house.conversation()
    with pytest.raises(Invalid, match="empty"):
        house.gateway.send(conversation, "r", " \n")
    with pytest.raises(Invalid, match="temperature"):
        house.conversation(sampling={"temperature": -1})
    with pytest.raises(Invalid, match="scripted"):
        house.conversation(model="another")
    with pytest.raises(NotFound):
        house.gateway.send("c_none", "r", "Hello")
    await house.send(conversation, "half a pair: \ud83c!", "r1")
    assert house.gateway.conversation(conversation)["messages"][0]["text"] == "half a pair: \ufffd!"


def _when(house, attempt_id, state):
    """A future that is done as soon as the attempt is published in that state."""
    future = asyncio.get_running_loop().create_future()

    def listen(item):
        data = getattr(item, "data", None)
        ended = isinstance(data, StateChange) and item.attempt_id == attempt_id and data.state == state
        if ended and not future.done():
            future.set_result(None)

    house.gateway.subscribe(listen)
    return future
