"""The gateway: every reply belongs to it. It tags each chunk, journals it, then publishes it to whoever listens.

All methods are plain calls in the event loop's thread, so a snapshot followed by `subscribe` without an `await`
between them misses nothing.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from backend import prompt
from backend.broadcast import Broadcast, Subscriber
from backend.catalog import Catalog, Shelf
from backend.chunks import Chunk, Cursor, Payload, Progress, StateChange, Text
from backend.errors import Conflict, Invalid, Unavailable
from backend.journal import Journal
from backend.lookup import Lookup
from backend.notices import Notice
from backend.queue import Queue
from backend.rows import Attempt, Conversation, Message, Sent, message_dict
from backend.runs import Run
from backend.sampling import clean, to_engine
from backend.sources import Source
from backend.states import Reason, State
from backend.wording import NEW_TITLE, sound, title_of
from engine.events import Generate

log = logging.getLogger(__name__)


class Gateway:
    """`sources[0]` is the default. `start` before the first write, `close` at the end."""

    def __init__(self, journal: Journal, sources: Sequence[Source], upstreams: Sequence[Shelf] = ()) -> None:
        self._journal = journal
        self._sources = Catalog(sources, upstreams)
        self._default = sources[0]
        self.queue = Queue()
        self.dropped = 0  # chunks that had no place any more, since the start
        self._find = Lookup(journal)
        self._broadcast = Broadcast()
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unwatch: list[Callable[[], None]] = []
        self._closing = False

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Mark what the last Pagoda left unfinished, and listen to the sources."""
        for attempt in self._journal.alive():
            self._deliver(_cursor(attempt), StateChange(State.INTERRUPTED, Reason.RESTARTED))
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
        self._broadcast.publish(Notice("closing", None, {}))

    # --- reading ---------------------------------------------------------------------------------

    def conversations(self) -> list[dict[str, Any]]:
        """The rows of the sidebar, the most recently used first."""
        return [summary.to_dict() for summary in self._journal.summaries()]

    def conversation(self, id: str) -> dict[str, Any]:
        """One conversation with all its messages and attempts."""
        conversation = self._find.conversation(id)
        attempts = self._journal.attempts(id)
        return {
            **self._find.summary(id).to_dict(),
            "system": conversation.system,
            "sampling": conversation.sampling,
            "messages": [message_dict(m, attempts.get(m.id, ())) for m in self._journal.messages(id)],
        }

    def chunks(self, attempt_id: str, after: int = -1, limit: int = -1) -> list[Chunk]:
        """The attempt's chunks after `after`, from the journal."""
        self._find.attempt(attempt_id)
        return self._journal.chunks(attempt_id, after, limit)

    def attempt(self, id: str) -> Attempt:
        """One attempt as it is now."""
        return self._find.attempt(id)

    def models(self) -> list[str]:
        """The names a conversation can be given, the default first."""
        return list(self._sources)

    def model_status(self) -> dict[str, Any]:
        """How the default model stands."""
        return self._default.status().to_dict()

    def retry_model(self) -> None:
        """Load again after a failure; harmless otherwise."""
        self._default.retry()

    def source(self, model: str | None) -> Source:
        """The source of that name; None is the default. Raises Invalid naming what there is."""
        if model is None:
            return self._default
        if (source := self._sources.get(model)) is None:
            raise Invalid(f"There is no model {model!r} here. This Pagoda serves: {', '.join(self._sources)}.")
        return source

    # --- conversations ---------------------------------------------------------------------------

    def create_conversation(
        self,
        model: str | None = None,
        system: str | None = None,
        sampling: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """A new, empty conversation, in the shape of `conversation`."""
        self._accepting()
        if request_id and (known := self._journal.conversation_of_request(request_id)):
            return self.conversation(known.id)
        now = time.time()
        row = Conversation(
            id=_new_id("c"),
            title=NEW_TITLE,
            model=self.source(model).name,
            created_at=now,
            updated_at=now,
            system=sound(system) if system else None,
            sampling=clean(sampling),
            request_id=request_id,
        )
        self._journal.add_conversation(row)
        self._publish_row(row.id)
        return self.conversation(row.id)

    def update_conversation(self, id: str, **changes: Any) -> dict[str, Any]:
        """Change any of title, model, system, sampling; what is not named stays."""
        self._accepting()
        self._find.conversation(id)
        if unknown := set(changes) - {"title", "model", "system", "sampling"}:
            raise Invalid(f"A conversation has no {', '.join(sorted(unknown))} that could be changed.")
        if "title" in changes and not (changes["title"] or "").strip():
            raise Invalid("A title needs at least one visible character.")
        if "title" in changes:
            changes["title"] = sound(changes["title"]).strip()[:200]
        if "model" in changes:
            changes["model"] = self.source(changes["model"]).name
        if "system" in changes:
            changes["system"] = sound(changes["system"]) if changes["system"] else None
        if "sampling" in changes:
            changes["sampling"] = clean(changes["sampling"])
        if changes:
            self._journal.change_conversation(id, **changes)
        self._publish_row(id)
        return self.conversation(id)

    def delete_conversation(self, id: str) -> None:
        """Stop its runs, then remove everything of it. Deleting what is gone already is harmless."""
        for attempt in self._journal.alive(id):
            self._cancel(attempt)
        if self._journal.conversation(id) is not None:
            self._journal.delete_conversation(id)
            self._broadcast.forget(id)

    def mark_read(self, id: str) -> None:
        """A person has the conversation in front of them."""
        if self._find.conversation(id).unread:
            self._journal.change_conversation(id, unread=False)
            self._publish_row(id)

    # --- turns -----------------------------------------------------------------------------------

    def send(self, conversation_id: str, request_id: str, text: str) -> Sent:
        """A user message and the attempt to answer it. The same request id again gives the same ids, no new message."""
        self._accepting()
        if not request_id:
            raise Invalid("A message needs a request id.")
        if known := self._journal.message_of_request(request_id):
            if known.conversation_id != conversation_id:
                raise Conflict("This request id was used for a message of another conversation.")
            reply = self._journal.reply_to(known)
            return Sent(known.id, reply.id, self._journal.attempts_of(reply.id)[0].id)
        conversation = self._find.conversation(conversation_id)
        if not (text := sound(text)).strip():
            raise Invalid("The message is empty.")
        position, now = len(self._journal.messages(conversation_id)), time.time()
        attempt = self._new_attempt(conversation, _new_id("m"), 0, None, now)
        user = Message(_new_id("m"), conversation_id, position, "user", now, text, request_id)
        reply = Message(
            attempt.message_id,
            conversation_id,
            position + 1,
            "assistant",
            now,
            current_attempt=attempt.id,
            selected_attempt=attempt.id,
        )
        title = title_of(text) if position == 0 and conversation.title == NEW_TITLE else conversation.title
        self._journal.add_turn(user, reply, attempt, title)
        self._publish_message(user)
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

    def answer(self, model: str | None, request: Generate, deliver: Callable[[Payload], bool]) -> Run:
        """A reply that belongs to an API request, not to a conversation: same queue, same source, no journal."""
        self._accepting()
        run = Run(self.source(model), self.queue, request.run_id, lambda: request, deliver, share="api")
        self._follow(request.run_id, run)
        return run

    # --- listening -------------------------------------------------------------------------------

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call back with every chunk and notice from now on, after it was journalled. Returns what ends that."""
        return self._broadcast.subscribe(callback)

    def _publish_row(self, id: str) -> None:
        self._broadcast.row(self._find.summary(id).to_dict())

    def _publish_message(self, message: Message) -> None:
        attempts = self._journal.attempts_of(message.id)
        self._broadcast.publish(Notice("message", message.conversation_id, message_dict(message, attempts)))

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
            request=lambda: self._request(attempt, seed),
            deliver=lambda payload: self._deliver(cursor, payload),
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
                self._journal.messages(conversation.id),
                self._journal.attempts(conversation.id),
                until=attempt.message_id,
            ),
            sampling=to_engine(conversation.sampling),
            prefix_tokens=text.tokens,
            prefix_text="" if text.tokens else text.text,
        )

    def _deliver(self, cursor: Cursor, payload: Payload) -> bool:
        """Tag, journal, publish. False when the chunk had no place any more: then nobody sees it."""
        chunk = cursor.tag(payload)
        if not self._journal.append(chunk):
            self.dropped += 1
            log.info("dropped a %s chunk of the attempt %s", chunk.kind, chunk.attempt_id)
            return False
        cursor.passed(chunk)
        self._broadcast.publish(chunk)
        if isinstance(payload, Progress | StateChange):
            self._publish_row(chunk.conversation_id)
        return True

    def _cancel(self, attempt: Attempt) -> None:
        """End an attempt now, whether or not something still runs for it."""
        if run := self._runs.get(attempt.id):
            run.cut(State.CANCELLED, Reason.STOPPED_BY_PERSON)
        else:
            self._deliver(_cursor(attempt), StateChange(State.CANCELLED, Reason.STOPPED_BY_PERSON))

    # --- looking up ------------------------------------------------------------------------------

    def _accepting(self) -> None:
        if self._closing:
            raise Unavailable("Pagoda is shutting down. Start it again, then repeat this.")

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
            id=_new_id("a"),
            message_id=message_id,
            conversation_id=conversation.id,
            number=number,
            model=source.name,
            created_at=now or time.time(),
            continues=continues,
            request_id=request_id,
        )


def _cursor(attempt: Attempt) -> Cursor:
    return Cursor(attempt.conversation_id, attempt.message_id, attempt.id, attempt.last_seq, attempt.length)


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(8)}"
