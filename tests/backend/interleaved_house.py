"""A house for the interleavings: the real gateway and journal, a scripted source, two simulated pages, the plain model
beside them, and what must hold whatever happens."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from backend.chunks import Chunk, Text
from backend.gateway import Gateway
from backend.journal import Journal
from tests.backend.plain_model import ModelAttempt, ModelConversation, ModelTurn
from tests.backend.scripted import Call, ScriptedSource
from tests.backend.simulated_page import SimulatedPage


class House(RuleBasedStateMachine):
    """The rules of a subclass drive it; it needs `new_conversation`."""

    def new_conversation(self) -> None:
        """A rule of the subclass; the house begins with one conversation a page."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.conversations: dict[str, ModelConversation] = {}
        self.deleted: dict[str, ModelConversation] = {}  # and can be brought back
        self.order: list[str] = []  # all user messages, as they were made
        self.pages = [SimulatedPage(), SimulatedPage()]
        self.old_chunks: list[Chunk] = []
        self.counter = 0
        self._open()
        for page in self.pages:
            self.new_conversation()
            page.open(self._conversation(-1).id)

    def _open(self) -> None:
        self.source = ScriptedSource()
        self.checked_calls = 0
        self.journal = Journal(self.folder)
        self.gateway = Gateway(self.journal, [self.source])
        self._do(self.gateway.start)
        for page in self.pages:
            page.connect(self.gateway)
        self.gateway.subscribe(lambda item: self.old_chunks.append(item) if isinstance(item, Chunk) else None)

    def _do(self, action, *args):
        """Call the gateway inside the event loop, then let everything that follows from it happen."""

        async def run():
            result = action(*args)
            if asyncio.iscoroutine(result):
                result = await result
            return result

        result = self.loop.run_until_complete(run())
        self.loop.run_until_complete(self._quiet())
        return result

    async def _quiet(self) -> None:
        """Until the gateway shows the states that the model demands, and a run has begun if one can."""
        for _ in range(1000):
            wanted = {a.id: a.state for _, _, a in self._attempts()}
            shown = {id: self.gateway.attempt(id).state.value for id in wanted}
            waiting = any(attempt.alive for _, _, attempt in self._attempts())
            runs_one = any(not call.over.is_set() for call in self.source.calls)
            if all(shown.get(id, state) == state for id, state in wanted.items()) and (runs_one or not waiting):
                return
            await asyncio.sleep(0)
        raise AssertionError(f"wanted {wanted}, got {shown}; waiting {waiting}, runs {runs_one}")

    def _attempts(self):
        for conversation in self.conversations.values():
            for turn in conversation.turns + conversation.deleted:
                for attempt in turn.attempts:
                    yield conversation, turn, attempt

    def _attempt(self, id: str) -> ModelAttempt | None:
        return next((a for _, _, a in self._attempts() if a.id == id), None)

    def _conversation(self, index: int) -> ModelConversation:
        return list(self.conversations.values())[index % len(self.conversations)]

    def _turn(self, index: int) -> tuple[ModelConversation, ModelTurn]:
        turns = [(c, t) for c in self.conversations.values() for t in c.turns]
        return turns[index % len(turns)]

    def _calls(self) -> list[Call]:
        return [call for call in self.source.calls if not call.over.is_set()]

    def has_conversations(self) -> bool:
        return bool(self.conversations)

    def has_turns(self) -> bool:
        return any(c.turns for c in self.conversations.values())

    def has_calls(self) -> bool:
        return bool(self._calls())

    def _end_tasks(self) -> None:
        async def end():
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.loop.run_until_complete(end())

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def the_disk_says_what_the_model_says(self) -> None:
        assert {row["id"] for row in self.gateway.conversations()} == set(self.conversations)
        for row in self.gateway.conversations():
            alive = any(a.alive for c, _, a in self._attempts() if c.id == row["id"])
            assert row["running"] == alive
        for conversation in self.conversations.values():
            messages = self.gateway.conversation(conversation.id)["messages"]
            turns = conversation.on_screen()
            assert [m["text"] for m in messages[::2]] == [turn.question for turn in turns]
            for message, turn in zip(messages[::2], turns, strict=True):
                assert message["versions"] == [each.user_id for each in conversation.versions(turn)]
            for message, turn in zip(messages[1::2], turns, strict=True):
                assert message["selected_attempt"] == turn.selected.id
                assert message["current_attempt"] == turn.current.id
                on_disk = [(a["id"], a["text"], a["state"]) for a in message["attempts"]]
                assert on_disk == [(a.id, a.text, a.state) for a in turn.attempts]
            for _, _, attempt in [each for each in self._attempts() if each[0] is conversation]:
                on_disk = self.gateway.attempt(attempt.id)
                assert (on_disk.text, on_disk.state) == (attempt.text, attempt.state)
            for message in messages[1::2]:
                for attempt in message["attempts"]:
                    chunks = self.gateway.chunks(attempt["id"])
                    assert [chunk.seq for chunk in chunks] == list(range(attempt["last_seq"] + 1))
                    texts = [chunk.data.text for chunk in chunks if isinstance(chunk.data, Text)]
                    assert "".join(texts) == attempt["text"]

    @invariant()
    def one_run_at_a_time_and_each_reads_the_right_prompt(self) -> None:
        assert len(self._calls()) <= 1
        for call in self.source.calls[self.checked_calls :]:
            self.checked_calls += 1
            for conversation, turn, attempt in self._attempts():
                if attempt.id == call.run_id and attempt.alive:
                    prompt = [(m["role"], m["content"]) for m in call.request.messages]
                    assert prompt == conversation.prompt_of(turn)
                    assert attempt.text.startswith(call.request.prefix_text)
                    assert bool(call.request.prefix_tokens) == bool(call.request.prefix_text) == bool(attempt.text)

    @invariant()
    def nothing_goes_on_for_a_reply_that_has_ended(self) -> None:
        for call in self._calls():
            attempt = self._attempt(call.run_id)
            assert call.abort.aborted or (attempt is not None and attempt.alive)

    @invariant()
    def what_a_page_shows_is_on_disk_and_of_its_conversation(self) -> None:
        for page in self.pages:
            if page.on_screen not in self.conversations:
                continue
            conversation = self.conversations[page.on_screen]
            turns = conversation.turns + conversation.deleted + conversation.gone
            known = {attempt.id: attempt for turn in turns for attempt in turn.attempts}
            for id, shown in (page.attempts or {}).items():
                assert known[id].text.startswith(shown.text)

    @rule()
    def when_everything_has_arrived_the_screen_equals_the_disk(self) -> None:
        for page in self.pages:
            page.settle()
            assert page.on_screen is None or page.on_screen in self.conversations
            if page.on_screen is not None:
                turns = self.conversations[page.on_screen].on_screen()
                on_screen = {id: (shown.text, shown.state) for id, shown in (page.attempts or {}).items()}
                assert on_screen == {a.id: (a.text, a.state) for turn in turns for a in turn.attempts}
                assert page.selected == {turn.message_id: turn.selected.id for turn in turns}
            else:
                page.open(self._conversation(0).id)

    def teardown(self) -> None:
        self.when_everything_has_arrived_the_screen_equals_the_disk()
        self.loop.run_until_complete(self.gateway.close())
        self.journal.close()
        self._end_tasks()
        self.loop.close()
        shutil.rmtree(self.folder)
