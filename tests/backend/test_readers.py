"""Any interleaving of a reply and its readers: each gets a sequence without a gap from where it joined, or a snapshot.

The real gateway, journal and streams, a scripted source. Readers join anywhere, read when they like, and leave.
"""

import asyncio
import json
import math
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from backend import group, live, runs
from backend.gateway import Gateway
from backend.journal import Journal
from tests.backend.scripted import Call, ScriptedSource

indices = st.integers(0, 1000)


class Reader:
    """Somebody at the other end of a stream, who takes the next block when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, events: AsyncGenerator[bytes, None]) -> None:
        self._loop, self._events = loop, events
        self._next: asyncio.Task[bytes] | None = None
        self.ended = False

    def read(self) -> bool:
        """Take what has come; False when there is nothing yet, or nothing any more."""
        if self.ended:
            return False
        if self._next is None:
            self._next = self._loop.create_task(self._take_next())
        self._loop.run_until_complete(turns())
        if not self._next.done():
            return False
        block, self._next = self._next, None
        try:
            for part in block.result().decode().removesuffix("\n\n").split("\n\n"):
                fields = dict(line.split(": ", 1) for line in part.split("\n"))
                self.take(fields["event"], json.loads(fields["data"]))
        except StopAsyncIteration:
            self.ended = True
        return not self.ended

    async def _take_next(self) -> bytes:
        return await anext(self._events)

    def take(self, name: str, data: dict) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        """As a connection ends: the reading is cancelled, then the stream closed."""
        if self._next is not None:
            self._next.cancel()
            self._loop.run_until_complete(asyncio.wait({self._next}))
        self._loop.run_until_complete(self._events.aclose())


class OfAttempt(Reader):
    """What came of one attempt after `after`."""

    def __init__(self, loop, gateway: Gateway, attempt: str, after: int) -> None:
        super().__init__(loop, live.attempt_events(gateway, attempt, after))
        self.attempt, self.after = attempt, after
        self.seen: list[dict] = []
        self.deleted = False

    def take(self, name: str, data: dict) -> None:
        assert not self.deleted, "nothing comes after the end"
        if name == "deleted":
            self.deleted = True
            return
        assert data["attempt_id"] == self.attempt
        assert data["seq"] == self.after + 1 + len(self.seen), "a gap, or a chunk twice"
        self.seen.append(data)


class OfConversation(Reader):
    """What one knows of a conversation from snapshots, messages and chunks."""

    def __init__(self, loop, gateway: Gateway, conversation: str) -> None:
        super().__init__(loop, live.conversation_events(gateway, conversation))
        self.conversation = conversation
        self.known: dict[str, tuple[int, str]] = {}  # attempt -> (seq, text)
        self.deleted = False

    def take(self, name: str, data: dict) -> None:
        assert not self.deleted, "nothing comes after the end"
        if name == "snapshot":
            self.known = {}
        if name in ("snapshot", "message"):
            for message in data["messages"] if name == "snapshot" else [data]:
                for attempt in message["attempts"]:
                    self.known[attempt["id"]] = (attempt["last_seq"], attempt["text"])
        elif name == "chunk":
            seq, text = self.known[data["attempt_id"]]
            assert data["conversation_id"] == self.conversation
            assert (data["seq"], data["offset"]) == (seq + 1, len(text)), "a gap, or a chunk twice"
            self.known[data["attempt_id"]] = (data["seq"], text + data["data"].get("text", ""))
        elif name == "deleted":
            self.deleted = True


async def turns() -> None:
    """What follows from what was done, happens; what a timer does later does not yet."""
    for _ in range(30):
        await asyncio.sleep(0)


class Readers(RuleBasedStateMachine):
    @initialize(grouped=st.booleans(), page=st.sampled_from([1, 2, 7]), behind=st.sampled_from([1, 3]))
    def open(self, grouped: bool, page: int, behind: int) -> None:
        """`grouped`: each commit comes with a timer, so that readers join while chunks are not on disk yet."""
        self.patches = [
            patch.multiple(live, PAGE=page, BEHIND=behind),
            patch.multiple(group, SHARE=1e-9 if grouped else math.inf, LATEST_S=0.001),
            patch.multiple(runs, STOP_GRACE_S=0.0),
        ]
        for each in self.patches:
            each.start()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.source = ScriptedSource(capacity=2)
        self.journal = Journal(self.folder)
        self.gateway = Gateway(self.journal, [self.source])
        self.of_attempts: list[OfAttempt] = []
        self.of_conversations: list[OfConversation] = []
        self.conversations: list[str] = []
        self.replies: list[tuple[str, str]] = []  # (message, its newest attempt)
        self.attempts: list[str] = []
        self.count = 0
        self.do(self.gateway.start)
        self.another_conversation()

    def do(self, action, *arguments):
        async def act():
            result = action(*arguments)
            await turns()
            return result

        return self.loop.run_until_complete(act())

    def calls(self) -> list[Call]:
        return [call for call in self.source.calls if not call.over.is_set() and not call.abort.aborted]

    # --- the reply -------------------------------------------------------------------------------

    @precondition(lambda self: len(self.conversations) < 2)
    @rule()
    def another_conversation(self) -> None:
        self.conversations.append(self.do(self.gateway.create_conversation)["id"])

    @precondition(lambda self: len(self.calls()) < 2)
    @rule(where=indices)
    def send(self, where: int) -> None:
        self.count += 1
        conversation = self.conversations[where % len(self.conversations)]
        sent = self.do(self.gateway.send, conversation, f"r{self.count}", f"Question {self.count}")
        self.replies.append((sent.message_id, sent.attempt_id))
        self.attempts.append(sent.attempt_id)

    @precondition(lambda self: self.calls())
    @rule(which=indices, texts=st.lists(st.sampled_from(["", "a", "塔 ", "👋\n\n", "end"]), min_size=1, max_size=12))
    def more(self, which: int, texts: list[str]) -> None:
        """Several tokens in one go, while no reader gets a turn."""
        call = self.calls()[which % len(self.calls())]
        self.do(lambda: [call.hand(text) for text in texts])

    @precondition(lambda self: self.calls())
    @rule(which=indices, reason=st.sampled_from(["stop", "length"]))
    def end(self, which: int, reason: str) -> None:
        call = self.calls()[which % len(self.calls())]
        self.loop.run_until_complete(call.finish(reason, "."))
        self.loop.run_until_complete(turns())

    @precondition(lambda self: self.attempts)
    @rule(which=indices)
    def stop(self, which: int) -> None:
        self.do(self.gateway.stop, self.attempts[which % len(self.attempts)])

    @precondition(lambda self: self.replies)
    @rule(which=indices)
    def again(self, which: int) -> None:
        place = which % len(self.replies)
        message = self.replies[place][0]
        attempt = self.do(self.gateway.regenerate, message)
        self.replies[place] = (message, attempt)
        self.attempts.append(attempt)

    @precondition(lambda self: len(self.conversations) > 1)
    @rule(which=indices)
    def delete(self, which: int) -> None:
        gone = self.conversations.pop(which % len(self.conversations))
        self.do(self.gateway.delete_conversation, gone)
        self.replies = [reply for reply in self.replies if not self._is_gone(reply[1])]
        self.attempts = [attempt for attempt in self.attempts if not self._is_gone(attempt)]

    def _is_gone(self, attempt: str) -> bool:
        return self.journal.attempt(attempt) is None

    @rule()
    def time_passes(self) -> None:
        """What was to be committed with others is."""

        async def until_committed() -> None:
            while self.journal._group._open:
                await asyncio.sleep(0.001)
            await turns()

        self.loop.run_until_complete(until_committed())

    # --- its readers -----------------------------------------------------------------------------

    @precondition(lambda self: self.attempts)
    @rule(which=indices, after=st.one_of(st.just(-1), st.integers(-1, 40)), reads=st.booleans())
    def join(self, which: int, after: int, reads: bool) -> None:
        reader = OfAttempt(self.loop, self.gateway, self.attempts[which % len(self.attempts)], after)
        self.of_attempts.append(reader)
        if reads:
            reader.read()

    @rule(which=indices, reads=st.booleans())
    def join_conversation(self, which: int, reads: bool) -> None:
        reader = OfConversation(self.loop, self.gateway, self.conversations[which % len(self.conversations)])
        self.of_conversations.append(reader)
        if reads:
            reader.read()

    @precondition(lambda self: self.of_attempts or self.of_conversations)
    @rule(which=indices, blocks=st.integers(1, 5))
    def read(self, which: int, blocks: int) -> None:
        readers = [*self.of_attempts, *self.of_conversations]
        for _ in range(blocks):
            readers[which % len(readers)].read()

    @precondition(lambda self: self.of_attempts or self.of_conversations)
    @rule(which=indices)
    def leave(self, which: int) -> None:
        readers = [*self.of_attempts, *self.of_conversations]
        reader = readers[which % len(readers)]
        reader.leave()
        (self.of_attempts if reader in self.of_attempts else self.of_conversations).remove(reader)  # type: ignore

    @rule()
    def who_reads_on_has_everything(self) -> None:
        self.time_passes()
        for reader in (*self.of_attempts, *self.of_conversations):
            while reader.read():
                pass
        for reader in self.of_attempts:
            if self._is_gone(reader.attempt):
                assert reader.ended
                continue
            kept = self.gateway.chunks(reader.attempt, reader.after)
            assert reader.seen == [chunk.to_dict() | {"data": json.loads(chunk.payload_json)} for chunk in kept]
            over = self.gateway.place_of(reader.attempt)[1]
            assert reader.ended == over, "a stream ends with its reply, and not before"
        for reader in self.of_conversations:
            assert reader.ended == reader.deleted == (reader.conversation not in self.conversations)
            if not reader.ended:
                messages = self.gateway.conversation(reader.conversation)["messages"]
                attempts = [attempt for message in messages for attempt in message["attempts"]]
                assert reader.known == {each["id"]: (each["last_seq"], each["text"]) for each in attempts}

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.who_reads_on_has_everything()
        for reader in (*self.of_attempts, *self.of_conversations):
            reader.read()  # waits for more
        self.loop.run_until_complete(self.gateway.close())
        for reader in (*self.of_attempts, *self.of_conversations):
            while reader.read():
                pass
            assert reader.ended, "Pagoda has ended, its streams too"
            reader.leave()
        broadcast = self.gateway._broadcast
        assert not broadcast._of_attempt and not broadcast._subscribers, "who left hears nothing more"
        self.journal.close()
        self.loop.close()
        shutil.rmtree(self.folder)
        for each in self.patches:
            each.stop()


def test_no_interleaving_of_replies_and_readers_leaves_a_gap():
    run_state_machine_as_test(
        Readers,
        settings=settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
