"""The gateway: every reply belongs to it. It tags each chunk, journals it, then publishes it to whoever listens.

All methods are plain calls in the event loop's thread, so a snapshot followed by `subscribe` without an `await`
between them misses nothing.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from backend import prompt
from backend.branches import Branches
from backend.catalog import Catalog, Shelf
from backend.chunks import Chunk, Cursor, Payload, Progress, StateChange, Text
from backend.endings import Again
from backend.errors import CannotWrite, Conflict, Invalid, NotFound, TooLarge
from backend.journal import Journal
from backend.library import Library, new_id
from backend.notices import Notice
from backend.pace import Paces
from backend.queue import Queue
from backend.rows import Attempt, Conversation, Message, Sent
from backend.runs import Run
from backend.sampling import to_engine
from backend.sources import Source
from backend.states import Reason, State
from backend.wording import MESSAGE_LIMIT, NEW_TITLE, sound, title_of
from engine.events import Generate

log = logging.getLogger(__name__)

EARLIER = 2  # other versions of a reply that a source is told of


class Gateway(Library):
    """`start` before the first write, `close` at the end."""

    def __init__(self, journal: Journal, sources: Sequence[Source], upstreams: Sequence[Shelf] = ()) -> None:
        super().__init__(journal, Catalog(sources, upstreams), sources[0])
        self.queue = Queue()
        self.dropped = 0  # chunks that had no place any more, since the start
        self._runs: dict[str, Run] = {}
        self._paces = Paces(journal)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwatch: list[Callable[[], None]] = []
        self._endings = Again(journal.write_endings)

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Mark what the last Pagoda left unfinished, remove what was deleted, and listen to the sources."""
        for attempt in self._journal.alive():
            self._deliver(_cursor(attempt), StateChange(State.INTERRUPTED, Reason.RESTARTED))
        self._purge(math.inf)
        self._unwatch = self._sources.watch(lambda: self._broadcast.publish(Notice("model", None, self.model_status())))

    async def close(self) -> None:
        """Mark what runs as interrupted, at once, and accept nothing new. Reading still works: the journal stays open
        for whoever opened it to close. Harmless when repeated."""
        if self._closing:
            return
        self._closing = True
        for run in list(self._runs.values()):
            run.cut(State.INTERRUPTED, Reason.RESTARTED)
        for unwatch in self._unwatch:
            unwatch()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        self._endings.stop()
        self._journal.write_endings()  # what the disk takes not even now is marked at the next start
        self._broadcast.publish(Notice("closing", None, {}))

    def silences(self, conversation_id: str) -> dict[str, float]:
        """For each reply of a conversation at work: the seconds since its source last said anything."""
        runs = {attempt.id: self._runs.get(attempt.id) for attempt in self._journal.alive(conversation_id)}
        return {id: s for id, run in runs.items() if run and (s := run.silence()) is not None}

    def measured_speeds(self, model: str) -> list[float]:
        """Tokens per second of a model's newest replies here, as they were measured."""
        return [round(rate, 3) for rate in self._paces.of(model).decode]

    # --- turns -----------------------------------------------------------------------------------

    def send(self, conversation_id: str, request_id: str, text: str) -> Sent:
        """A user message and the attempt to answer it. The same request id again gives the same ids, no new message."""
        self._accepting()
        if known := self._repeated_turn(request_id, conversation_id):
            return known
        conversation = self._find.conversation(conversation_id)
        branches = self._find.branches(conversation_id)
        return self._new_turn(conversation, branches, branches.tip(), request_id, text)

    def edit(self, message_id: str, request_id: str, text: str) -> Sent:
        """Another version of a user message, and the attempt to answer it: a branch beside the one that was there,
        which stays. A reply that is still being written on that one is stopped and kept."""
        self._accepting()
        user, branches = self._find.turn(message_id)
        if user.id != message_id:
            raise Invalid("Only a message that you wrote can be edited. A reply has Regenerate.")
        if known := self._repeated_turn(request_id, user.conversation_id):
            return known
        _checked(text)
        conversation = self._find.conversation(user.conversation_id)
        self._stop_from(user, branches)
        return self._new_turn(conversation, branches, user.parent, request_id, text, instead_of=user)

    def show_branch(self, message_id: str) -> None:
        """Put the branch with this message on screen; later messages follow its end."""
        user, branches = self._find.turn(message_id)
        if not any(user.id == message.id for message in branches.on_screen()):
            self._journal.choose(branches.way_to(user.id))
            self._publish_branch(user.conversation_id)

    def delete_turn(self, message_id: str) -> None:
        """Take a user message and its reply out of sight and out of later prompts; what followed stays. For UNDO_S
        seconds `restore_turn` brings them back."""
        user, branches = self._find.turn(message_id)
        for attempt in self._journal.alive(user.conversation_id):
            if branches.user_of(attempt.message_id).id == user.id:
                self._cancel(attempt)
        # Where the branch ends with it, another version of it comes into view, if there is one.
        others = [id for id in branches.versions(user.id) if id != user.id]
        is_end = len(branches.following(user.id)) == 1
        self._journal.mark_turn(user.id, time.time(), branches.way_to(others[-1]) if is_end and others else ())
        self._publish_branch(user.conversation_id)
        self._purge_later()

    def restore_turn(self, user_message_id: str) -> None:
        """Bring back a deleted turn, in its place; harmless for one that is there."""
        self._accepting()
        message = self._journal.deleted_message(user_message_id)
        if message is None:
            raise NotFound("This message was deleted a while ago and is gone for good.")
        branches = self._find.branches(self._find.conversation(message.conversation_id).id)
        user = branches.user_of(message.id)
        self._journal.mark_turn(user.id, None, branches.way_to(user.id))
        self._publish_branch(user.conversation_id)

    def _stop_from(self, user: Message, branches: Branches) -> None:
        """Stop what is being written from this turn on."""
        for reply in branches.following(user.id):
            attempt = self._find.attempt(reply.current_attempt)
            if not attempt.state.terminal:
                self._cancel(attempt)

    def _repeated_turn(self, request_id: str, conversation_id: str) -> Sent | None:
        """What this request id made before, if it did; Conflict when it was in another conversation."""
        if not request_id:
            raise Invalid("A message needs a request id.")
        if (known := self._journal.message_of_request(request_id)) is None:
            return None
        if known.conversation_id != conversation_id:
            raise Conflict("This request id was used for a message of another conversation.")
        reply = self._journal.reply_to(known)
        return Sent(known.id, reply.id, self._journal.attempts_of(reply.id)[0].id)

    def _new_turn(
        self,
        conversation: Conversation,
        branches: Branches,
        parent: str | None,
        request_id: str,
        text: str,
        instead_of: Message | None = None,
    ) -> Sent:
        text = _checked(text)
        position, now = self._journal.next_position(conversation.id), time.time()
        attempt = self._new_attempt(conversation, new_id("m"), 0, None, now)
        user = Message(new_id("m"), conversation.id, position, "user", now, text, request_id, parent=parent)
        reply = Message(
            attempt.message_id,
            conversation.id,
            position + 1,
            "assistant",
            now,
            current_attempt=attempt.id,
            selected_attempt=attempt.id,
        )
        # The title is the first line of the first prompt, until a person gives another.
        named = NEW_TITLE if instead_of is None else title_of(instead_of.text)
        title = title_of(text) if parent is None and conversation.title == named else conversation.title
        self._journal.add_turn(user, reply, attempt, title, branches.way_to(parent))
        if instead_of is None:
            self._publish_message(user)
        else:
            self._publish_branch(conversation.id)
        self._launch(attempt, conversation)
        return Sent(user.id, reply.id, attempt.id)

    def regenerate(self, message_id: str, request_id: str | None = None) -> str:
        """A new version from the beginning. One that is still being written is stopped and kept."""
        self._accepting()
        message = self._find.reply(message_id)
        if known := self._find.repeated(request_id, message_id):
            return known
        current = self._find.attempt(message.current_attempt)
        if not current.state.terminal:
            self._cancel(current)
        conversation = self._find.conversation(message.conversation_id)
        attempt = self._new_attempt(conversation, message_id, current.number + 1, request_id)
        self._journal.add_attempt(attempt)
        self._launch(attempt, conversation)
        return attempt.id

    def continue_(self, message_id: str, request_id: str | None = None) -> str:
        """A new version that starts with the whole text of the selected one and goes on from there."""
        self._accepting()
        message = self._find.reply(message_id)
        if known := self._find.repeated(request_id, message_id):
            return known
        current = self._find.attempt(message.current_attempt)
        if not current.state.terminal:
            raise Conflict("This reply is still being written. Wait for its end or stop it, then continue it.")
        base = self._find.attempt(message.selected_attempt)
        conversation = self._find.conversation(message.conversation_id)
        attempt = self._new_attempt(conversation, message_id, current.number + 1, request_id, continues=base.id)
        seed = None
        if base.text:
            tokens = prompt.exact_tokens(self._journal.chunks(base.id)) if base.model == attempt.model else None
            seed = _cursor(attempt).tag(Text(base.text, tokens or ()))
        self._journal.add_attempt(attempt, seed)
        self._launch(attempt, conversation, seed)
        return attempt.id

    def stop(self, attempt_id: str) -> None:
        """End a reply; its text stays. Stopping what has ended, or is gone, is harmless."""
        attempt = self._journal.attempt(attempt_id)
        if attempt is None or attempt.state.terminal:
            return
        if run := self._runs.get(attempt_id):
            run.stop()
        else:
            self._cancel(attempt)

    def select_attempt(self, message_id: str, attempt_id: str) -> None:
        """Display that version, and use it in later prompts."""
        message = self._find.reply(message_id)
        if self._find.attempt(attempt_id).message_id != message_id:
            raise Invalid("This version belongs to another message.")
        if message.selected_attempt != attempt_id:
            self._journal.select_attempt(message_id, attempt_id)
            self._publish_message(self._find.reply(message_id))

    def opened(self, conversation_id: str) -> None:
        """A person looks at a conversation: its model gets ready for the next message. Raises NotFound."""
        if self._closing:
            return
        conversation = self._find.conversation(conversation_id)
        if line := self._find.branches(conversation_id).on_screen():
            attempts = self._journal.attempts(conversation_id)
            with suppress(Invalid):  # its model is not served any more
                self.source(conversation.model).warm(prompt.build(conversation.system, line, attempts, until=""))

    def answer(self, model: str | None, request: Generate, deliver: Callable[[Payload], bool]) -> Run:
        """A reply that belongs to an API request, not to a conversation: same queue, same source, no journal."""
        self._accepting()
        run = Run(self.source(model), self.queue, request.run_id, lambda: request, deliver, share="api")
        self._follow(request.run_id, run)
        return run

    # --- running ---------------------------------------------------------------------------------

    def _launch(self, attempt: Attempt, conversation: Conversation, seed: Chunk | None = None) -> None:
        """Show the new attempt, then line it up. `seed` is journalled already and stands in the message shown."""
        self._publish_message(self._find.reply(attempt.message_id))
        self._publish_row(attempt.conversation_id)
        cursor = _cursor(attempt)
        if seed is not None:
            cursor.passed(seed)
        run = Run(
            source=self.source(attempt.model),
            queue=self.queue,
            key=conversation.id,
            id=attempt.id,
            request=lambda: self._request(attempt, seed),
            deliver=lambda payload: self._deliver(cursor, payload),
            pace=self._paces.of(attempt.model),
        )
        self._follow(attempt.id, run)

    def _follow(self, id: str, run: Run) -> None:
        """Start a run and hold on to its task until it ends."""
        self._runs[id] = run
        task = run.start()
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._runs.pop(id, None)

        task.add_done_callback(ended)

    def _request(self, attempt: Attempt, seed: Chunk | None) -> Generate:
        conversation = self._find.conversation(attempt.conversation_id)
        text = seed.data if seed is not None and isinstance(seed.data, Text) else Text("")
        return Generate(
            run_id=attempt.id,
            messages=prompt.build(
                conversation.system,
                self._find.branches(conversation.id).line_to(attempt.message_id),
                self._journal.attempts(conversation.id),
                until=attempt.message_id,
            ),
            sampling=to_engine(conversation.sampling),
            prefix_tokens=text.tokens,
            prefix_text=text.text,
            earlier=self._earlier(attempt),
        )

    def _earlier(self, attempt: Attempt) -> tuple[tuple[int, ...], ...]:
        """The tokens of the newest other versions of a reply by the same model: it may say much of it again."""
        others = [other for other in self._journal.attempts_of(attempt.message_id) if other.id != attempt.id]
        same = [other for other in others if other.model == attempt.model and other.text][-EARLIER:]
        found = (prompt.exact_tokens(self._journal.chunks(other.id)) for other in same)
        return tuple(tokens for tokens in found if tokens)

    def _deliver(self, cursor: Cursor, payload: Payload) -> bool:
        """Tag, journal, publish. False when the chunk had no place any more: then nobody sees it."""
        chunk = cursor.tag(payload)
        if isinstance(payload, Text):
            publish = partial(self._broadcast.publish, chunk)
            there = self._journal.append_soon(chunk, publish, partial(self._lost, cursor, chunk))
        else:
            there = self._journal.append(chunk)
        if not there:
            self.dropped += 1
            log.info("dropped a %s chunk of the attempt %s", chunk.kind, chunk.attempt_id)
            return False
        cursor.passed(chunk)
        if isinstance(payload, Text):
            return True
        self._broadcast.publish(chunk)
        if isinstance(payload, StateChange) and payload.state.terminal:
            self._endings.now()
        if isinstance(payload, Progress | StateChange):
            self._publish_row(chunk.conversation_id)
        return True

    def _lost(self, cursor: Cursor, chunk: Chunk, error: CannotWrite) -> None:
        """Text that nobody saw, because the disk did not take it: the reply ends before it."""
        cursor.back_to(chunk)
        attempt, run = self._journal.attempt(chunk.attempt_id), self._runs.get(chunk.attempt_id)
        if run is not None and attempt is not None and chunk.seq == attempt.last_seq + 1:  # the first that is missing
            run.cut(State.FAILED, Reason.ERROR, error.message)

    def _cancel(self, attempt: Attempt) -> None:
        """End an attempt now, whether or not something still runs for it."""
        if run := self._runs.get(attempt.id):
            run.cut(State.CANCELLED, Reason.STOPPED_BY_PERSON)
        else:
            self._deliver(_cursor(attempt), StateChange(State.CANCELLED, Reason.STOPPED_BY_PERSON))

    def _new_attempt(
        self,
        conversation: Conversation,
        message_id: str,
        number: int,
        request_id: str | None,
        now: float | None = None,
        continues: str | None = None,
    ) -> Attempt:
        # A conversation may name a model of an earlier start of Pagoda; it goes on with what there is now.
        source = self._sources.get(conversation.model, self._default)
        return Attempt(
            id=new_id("a"),
            message_id=message_id,
            conversation_id=conversation.id,
            number=number,
            model=source.name,
            created_at=now or time.time(),
            continues=continues,
            request_id=request_id,
        )


def _checked(text: str) -> str:
    """A person's text as it is stored; raises when it is empty or too long."""
    if not (text := sound(text)).strip():
        raise Invalid("The message is empty.")
    if len(text) > MESSAGE_LIMIT:
        raise TooLarge(
            f"This message has {len(text):,} characters, more than the {MESSAGE_LIMIT:,} that are taken. "
            "Send it in parts, or only what matters of it.",
            "text",
        )
    return text


def _cursor(attempt: Attempt) -> Cursor:
    return Cursor(attempt.conversation_id, attempt.message_id, attempt.id, attempt.last_seq, attempt.length)
