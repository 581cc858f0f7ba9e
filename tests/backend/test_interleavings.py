"""Random interleavings of everything that can happen to conversations, against a plain model of what must be on
screen and on disk. Each token carries the id of its attempt, so text that strays is seen wherever it lands."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from backend import runs
from backend.chunks import Chunk, Text
from backend.errors import Conflict
from backend.rows import Sent
from tests.backend.interleaved_house import House
from tests.backend.plain_model import ModelAttempt, ModelConversation, ModelTurn, Place

indices = st.integers(min_value=0, max_value=50)


class Interleavings(House):
    # --- what a person does ----------------------------------------------------------------------

    @rule()
    def new_conversation(self) -> None:
        if len(self.conversations) < 4:
            id = self._do(self.gateway.create_conversation)["id"]
            self.conversations[id] = ModelConversation(id)

    @precondition(House.has_conversations)
    @rule(index=indices)
    def send(self, index: int) -> None:
        conversation = self._conversation(index)
        self.counter += 1
        question, request_id = f"question {self.counter}", f"request {self.counter}"

        def send():
            sent = self.gateway.send(conversation.id, request_id, question)
            self._new_turn(conversation, sent, question, request_id, [conversation.start, *conversation.chosen()][-1])

        self._do(send)

    def _new_turn(self, conversation: ModelConversation, sent: Sent, question: str, request: str, after: Place) -> None:
        attempt = ModelAttempt(sent.attempt_id)
        self.order.append(sent.user_message_id)
        conversation.add(
            ModelTurn(
                question=question,
                request_id=request,
                user_id=sent.user_message_id,
                message_id=sent.message_id,
                attempts=[attempt],
                selected=attempt,
                after=after,
            )
        )

    @precondition(House.has_turns)
    @rule(index=indices)
    def edit(self, index: int) -> None:
        conversation, turn = self._turn(index)
        self.counter += 1
        question, request_id = f"better question {self.counter}", f"request {self.counter}"

        def edit():
            on_screen = conversation.on_screen()
            for later in on_screen[on_screen.index(turn) :] if turn in on_screen else ():
                later.cancel()
            sent = self.gateway.edit(turn.user_id, request_id, question)
            self._new_turn(conversation, sent, question, request_id, turn.after)

        self._do(edit)

    @precondition(House.has_turns)
    @rule(index=indices)
    def show_a_branch(self, index: int) -> None:
        conversation, turn = self._turn(index)
        if turn not in conversation.on_screen():
            turn.choose()
        self._do(self.gateway.show_branch, turn.message_id)

    @precondition(House.has_turns)
    @rule(index=indices, reply=st.booleans())
    def delete_a_turn(self, index: int, reply: bool) -> None:
        conversation, turn = self._turn(index)
        conversation.delete(turn)
        self._do(self.gateway.delete_turn, turn.message_id if reply else turn.user_id)

    @precondition(lambda self: any(c.deleted for c in self.conversations.values()))
    @rule(index=indices)
    def bring_a_turn_back(self, index: int) -> None:
        deleted = [(c, turn) for c in self.conversations.values() for turn in c.deleted]
        conversation, turn = deleted[index % len(deleted)]
        conversation.restore(turn, self.order)
        self._do(self.gateway.restore_turn, turn.user_id)

    @precondition(House.has_turns)
    @rule(index=indices)
    def send_the_same_again(self, index: int) -> None:
        conversation, turn = self._turn(index)
        sent = self._do(self.gateway.send, conversation.id, turn.request_id, turn.question)
        assert (sent.message_id, sent.attempt_id) == (turn.message_id, turn.attempts[0].id)

    @precondition(House.has_turns)
    @rule(index=indices, which=indices)
    def stop(self, index: int, which: int) -> None:
        _, turn = self._turn(index)
        attempt = turn.attempts[which % len(turn.attempts)]
        if attempt.alive:
            attempt.state = "cancelled"
        self._do(self.gateway.stop, attempt.id)

    @precondition(House.has_turns)
    @rule(index=indices)
    def regenerate(self, index: int) -> None:
        _, turn = self._turn(index)
        self.counter += 1

        def regenerate():
            if turn.current.alive:
                turn.current.state = "cancelled"
            id = self.gateway.regenerate(turn.message_id, f"request {self.counter}")
            turn.attempts.append(ModelAttempt(id))
            turn.selected = turn.current

        self._do(regenerate)

    @precondition(House.has_turns)
    @rule(index=indices)
    def continue_(self, index: int) -> None:
        _, turn = self._turn(index)

        def go_on():
            if turn.current.alive:
                with pytest.raises(Conflict):
                    self.gateway.continue_(turn.message_id)
                return
            id = self.gateway.continue_(turn.message_id)
            turn.attempts.append(ModelAttempt(id, turn.selected.text))
            turn.selected = turn.current

        self._do(go_on)

    @precondition(House.has_turns)
    @rule(index=indices, which=indices)
    def select(self, index: int, which: int) -> None:
        _, turn = self._turn(index)
        turn.selected = turn.attempts[which % len(turn.attempts)]
        self._do(self.gateway.select_attempt, turn.message_id, turn.selected.id)

    @precondition(lambda self: len(self.conversations) > 1)
    @rule(index=indices)
    def delete(self, index: int) -> None:
        conversation = self._conversation(index)
        for turn in conversation.turns:
            turn.cancel()
        self.deleted[conversation.id] = self.conversations.pop(conversation.id)
        self._do(self.gateway.delete_conversation, conversation.id)

    @precondition(lambda self: self.deleted)
    @rule(index=indices)
    def bring_a_conversation_back(self, index: int) -> None:
        id = list(self.deleted)[index % len(self.deleted)]
        self.conversations[id] = self.deleted.pop(id)
        self._do(self.gateway.restore_conversation, id)

    @precondition(House.has_conversations)
    @rule(page=indices, index=indices)
    def switch(self, page: int, index: int) -> None:
        self.pages[page % 2].open(self._conversation(index).id)

    # --- what the source does --------------------------------------------------------------------

    @precondition(House.has_calls)
    @rule(index=indices, count=st.integers(1, 3))
    def tokens(self, index: int, count: int) -> None:
        call = self._calls()[index % len(self._calls())]
        for _ in range(count):
            self.counter += 1
            text = f"<{call.run_id} {self.counter} 🏯>"
            attempt = self._attempt(call.run_id)
            if attempt is not None and attempt.alive:
                attempt.text += text
                attempt.state = "streaming"
            self._do(call.token, text)

    @precondition(House.has_calls)
    @rule(
        index=indices, words=st.integers(0, 2), how=st.sampled_from(["finish", "finish", "fail", "crash", "break off"])
    )
    def end(self, index: int, words: int, how: str) -> None:
        call = self._calls()[index % len(self._calls())]
        if words:
            self.tokens(index, words)
        attempt = self._attempt(call.run_id)
        if attempt is not None and attempt.alive:
            states = {"finish": "complete", "fail": "failed", "crash": "interrupted", "break off": "interrupted"}
            attempt.state = states[how]
        self._do({"finish": call.finish, "fail": call.fail, "crash": call.crash, "break off": call.break_off}[how])

    @precondition(lambda self: not self._calls() and not any(a.alive for _, _, a in self._attempts()))
    @rule(index=indices, again=st.booleans())
    def a_whole_turn_or_version(self, index: int, again: bool) -> None:
        """What a quiet house mostly does; from here the rarer things find something to work on."""
        self.regenerate(index) if again and self.has_turns() else self.send(index)
        self.end(0, 2, "finish")

    @precondition(House.has_calls)
    @rule(index=indices, done=st.integers(0, 9))
    def progress(self, index: int, done: int) -> None:
        call = self._calls()[index % len(self._calls())]
        self._do(call.prefill, done, 9)

    @rule(deaf=st.booleans())
    def later_runs_hear_aborts_or_not(self, deaf: bool) -> None:
        self.source.deaf = deaf

    @precondition(lambda self: self.old_chunks)
    @rule(index=indices)
    def a_late_or_duplicate_chunk_has_no_place(self, index: int) -> None:
        chunk = self.old_chunks[index % len(self.old_chunks)]
        assert not self.journal.append(chunk)

    @precondition(House.has_turns)
    @rule(index=indices, which=indices, shift=st.sampled_from([0, 1, 2]))
    def a_made_up_chunk_has_no_place(self, index: int, which: int, shift: int) -> None:
        """For an attempt that is not the current one, has ended, or is further on or back than the chunk says."""
        conversation, turn = self._turn(index)
        attempt = self.gateway.attempt(turn.attempts[which % len(turn.attempts)].id)
        if attempt.id == turn.current.id and turn.current.alive and shift == 0:
            return
        seq, offset = attempt.last_seq + 1 + shift, attempt.length
        chunk = Chunk(conversation.id, turn.message_id, attempt.id, seq, offset, "text", Text("stray"))
        assert not self.journal.append(chunk)

    # --- what the network and the machine do -----------------------------------------------------

    @rule(page=indices, count=st.integers(1, 5), loads=st.booleans())
    def some_arrives(self, page: int, count: int, loads: bool) -> None:
        for _ in range(count):
            if loads:
                self.pages[page % 2].answer_load()
            self.pages[page % 2].arrive()

    @rule(page=indices, index=indices)
    def a_chunk_arrives_twice(self, page: int, index: int) -> None:
        self.pages[page % 2].repeat(index)

    @rule(page=indices)
    def a_chunk_is_lost(self, page: int) -> None:
        self.pages[page % 2].lose()

    @rule(orderly=st.booleans())
    def restart(self, orderly: bool) -> None:
        for _, _, attempt in self._attempts():
            if attempt.alive:
                attempt.state = "interrupted"
        self.deleted.clear()
        for conversation in self.conversations.values():
            conversation.forget_deleted(self.order)
        if orderly:
            self.loop.run_until_complete(self.gateway.close())
        self.journal.close()  # the disorderly way: from here on nothing can be written, as after a kill
        self._end_tasks()
        self._open()


def test_no_interleaving_loses_mixes_or_revives_anything(monkeypatch):
    # A source that does not hear the stop must not hold up the test for seconds.
    monkeypatch.setattr(runs, "STOP_GRACE_S", 0.0)
    run_state_machine_as_test(
        Interleavings,
        settings=settings(
            max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
