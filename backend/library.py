"""Conversations as a person keeps them: read, named, pinned, archived, deleted and brought back.

The lower half of the gateway (backend/gateway.py), which adds the replies.
"""

import asyncio
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from backend.branches import Branches
from backend.broadcast import Broadcast, Subscriber
from backend.catalog import Catalog
from backend.chunks import Chunk
from backend.errors import CannotWrite, Invalid, NotFound, Unavailable
from backend.journal import Journal
from backend.local_models import LocalModel
from backend.lookup import Lookup
from backend.notices import Notice
from backend.rows import Attempt, Conversation, Message, message_dict
from backend.sampling import clean
from backend.search import search
from backend.sources import Source
from backend.transfer import parse
from backend.wording import NEW_TITLE, sound

log = logging.getLogger(__name__)

# How long what was deleted can be brought back; at the next start it is gone whatever the time.
UNDO_S = 120.0
IMPORT_STEP = 20  # conversations written in one go


class Library:
    """`default` answers where no model is named."""

    def __init__(self, journal: Journal, sources: Catalog, default: Source) -> None:
        self._journal = journal
        self._sources, self._default = sources, default
        self._find = Lookup(journal)
        self._broadcast = Broadcast()
        self._newest: dict[str, dict[str, Any]] = {}
        self._closing = False
        self._look_for_models: Callable[[], list[LocalModel]] | None = None
        self._source_of: Callable[[str], Source] | None = None

    # --- reading ---------------------------------------------------------------------------------

    def conversations(self) -> list[dict[str, Any]]:
        """The rows of the sidebar, the most recently used first."""
        return [summary.to_dict() for summary in self._journal.summaries()]

    def conversation(self, id: str, newest: int | None = None) -> dict[str, Any]:
        """One conversation with the messages of the branch on screen and all their attempts. With `newest` only so many
        messages, and the ids of those before them as `earlier`: of 1,000 messages the rest is not even read."""
        conversation, branches = self._find.conversation(id), self._find.branches(id)
        messages, earlier = _window(branches.on_screen(), None, newest)
        shape = {
            **self._find.summary(id).to_dict(),
            "system": conversation.system,
            "sampling": conversation.sampling,
            "messages": self._shapes(id, branches, messages),
        }
        return shape if newest is None else {**shape, "earlier": earlier}

    def earlier(self, id: str, before: str, count: int) -> tuple[list[dict[str, Any]], list[str]]:
        """The `count` messages before that one, and the ids of those before them; none when it is not on screen."""
        self.must_know(id)
        branches = self._find.branches(id)
        messages, earlier = _window(branches.on_screen(), before, count)
        return self._shapes(id, branches, messages), earlier

    def _shapes(self, id: str, branches: Branches, messages: Sequence[Message]) -> list[dict[str, Any]]:
        attempts = self._journal.attempts(id, [message.id for message in messages])
        return [
            message_dict(m, attempts.get(m.id, ()), branches.versions(m.id) if m.role == "user" else ())
            for m in messages
        ]

    def must_know(self, id: str) -> None:
        """Raises NotFound when there is no such conversation."""
        self._find.conversation(id)

    async def search(self, query: str) -> list[dict[str, Any]]:
        """Where in all conversations these words are, with the hits marked (backend/search.py)."""
        return await asyncio.to_thread(search, self._journal.path, query)

    def chunks(self, attempt_id: str, after: int = -1, limit: int = -1) -> list[Chunk]:
        """The attempt's chunks after `after`, from the journal."""
        self._find.place_of(attempt_id)
        return self._journal.chunks(attempt_id, after, limit)

    def attempt(self, id: str) -> Attempt:
        """One attempt as it is now."""
        return self._find.attempt(id)

    def place_of(self, attempt_id: str) -> tuple[str, bool]:
        """The conversation of an attempt, and whether it has ended."""
        return self._find.place_of(attempt_id)

    def models(self) -> list[str]:
        """The names a conversation can be given, the default first."""
        return list(self._sources)

    async def model_choices(self) -> list[dict[str, Any]]:
        """What a person can choose from: `{name, size_bytes, here}`. What is new on disk is found."""
        here = await asyncio.to_thread(self._look_for_models) if self._look_for_models else []
        sizes = {model.name: model.size_bytes for model in here}
        for name in sizes:
            if self._source_of is not None:
                self._sources.add(self._source_of(name))
        rows = [
            {"name": name, "size_bytes": sizes.get(name), "here": self._sources.is_here(name)} for name in self._sources
        ]
        # One that lay here once still answers in its conversations, but is no longer on offer.
        return [row for row in rows if not self._look_for_models or not row["here"] or row["name"] in sizes]

    def serve_models(self, look: Callable[[], list[LocalModel]], source_of: Callable[[str], Source]) -> None:
        """Models of this computer: where to look for them, and who runs one."""
        self._look_for_models, self._source_of = look, source_of
        for model in look():
            self._sources.add(source_of(model.name))

    def model_status(self) -> dict[str, Any]:
        """How the default model stands; `here` whether it runs on this computer."""
        return {**self._default.status().to_dict(), "here": self._sources.is_here(self._default.name)}

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
            id=new_id("c"),
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
        """Change any of title, model, system, sampling, pinned, archived; what is not named stays."""
        self._accepting()
        self._find.conversation(id)
        if unknown := set(changes) - {"title", "model", "system", "sampling", "pinned", "archived"}:
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
        for flag in {"pinned", "archived"} & set(changes):
            changes[flag] = bool(changes[flag])
        if changes:
            self._journal.change_conversation(id, **changes)
        self._publish_row(id)
        return self.conversation(id)

    def delete_conversation(self, id: str) -> None:
        """Stop its runs and take it out of sight; for UNDO_S seconds `restore_conversation` brings it back.
        Deleting what is gone already is harmless."""
        for attempt in self._journal.alive(id):
            self._cancel(attempt)
        if self._journal.conversation(id) is not None:
            self._journal.delete_conversation(id)
            self._broadcast.forget(id)
            self._purge_later()

    def restore_conversation(self, id: str) -> dict[str, Any]:
        """Bring back a deleted conversation; harmless for one that is there."""
        self._accepting()
        if not self._journal.restore_conversation(id):
            raise NotFound("This conversation was deleted a while ago and is gone for good.")
        self._publish_row(id)
        return self.conversation(id)

    # --- from and to files -----------------------------------------------------------------------

    def whole(self, id: str) -> dict[str, Any]:
        """One conversation with all its branches and versions, as an export holds it and an import reads it."""
        row, attempts = self._find.conversation(id), self._journal.attempts(id)
        names = ("id", "title", "model", "system", "sampling", "pinned", "archived", "created_at", "updated_at")
        return {
            **{name: getattr(row, name) for name in names},
            "messages": [
                {**message_dict(m, attempts.get(m.id, ())), "parent": parent, "chosen": chosen}
                for m, parent, chosen in self._find.branches(id).all()
            ],
        }

    async def import_conversations(self, content: bytes) -> dict[str, int]:
        """Read a file of conversations. All that are new become visible at once, or none does; what was deleted and
        has not gone for good yet comes back as it was."""
        self._accepting()
        incoming = await asyncio.to_thread(parse, content, self._default.name)
        back = self._journal.bring_back(item.conversation.id for item in incoming)
        added: list[str] = []
        try:
            for start in range(0, len(incoming), IMPORT_STEP):
                self._accepting()
                added += self._journal.add_hidden(incoming[start : start + IMPORT_STEP])
                await asyncio.sleep(0)  # replies that are being written go on between two steps
        except BaseException as error:
            self._journal.drop(added)
            if isinstance(error, sqlite3.IntegrityError):
                raise Invalid("Parts of this file belong to other conversations here. Nothing was imported.") from error
            raise
        self._journal.reveal(added)
        for id in (*back, *added):
            self._publish_row(id)
        imported = len(back) + len(added)
        return {"imported": imported, "known": len(incoming) - imported}

    def _purge_later(self) -> None:
        asyncio.get_running_loop().call_later(UNDO_S + 1, self._purge)

    def _purge(self, before: float | None = None) -> None:
        if self._closing:
            return
        try:
            self._journal.purge(time.time() - UNDO_S if before is None else before)
        except CannotWrite as error:  # the next purge removes it; a full disk must not keep Pagoda from starting
            log.warning("%s", error)

    def mark_read(self, id: str) -> None:
        """A person has the conversation in front of them."""
        if self._find.conversation(id).unread:
            self._journal.change_conversation(id, unread=False)
            self._publish_row(id)

    # --- listening -------------------------------------------------------------------------------

    def subscribe(self, callback: Subscriber, attempt_id: str | None = None) -> Callable[[], None]:
        """Call back with every chunk and notice from now on, after it was journalled; with an attempt only with that
        one's chunks. Returns what ends that."""
        return self._broadcast.subscribe(callback, attempt_id)

    def publish(self, notice: Notice) -> None:
        """Tell every listener what another part of Pagoda has to say; `newest` tells those who come later."""
        self._newest[notice.kind] = notice.data
        self._broadcast.publish(notice)

    def newest(self, kind: str) -> dict[str, Any] | None:
        """What was published last of that kind."""
        return self._newest.get(kind)

    def _publish_row(self, id: str) -> None:
        self._broadcast.row(self._find.summary(id).to_dict())

    def _publish_message(self, message: Message) -> None:
        """To whoever looks at its branch: on another one nobody sees it, and choosing that sends everything."""
        branches = self._find.branches(message.conversation_id)
        if any(message.id == other.id for other in branches.on_screen()):
            versions = branches.versions(message.id) if message.role == "user" else ()
            shape = message_dict(message, self._journal.attempts_of(message.id), versions)
            self._broadcast.publish(Notice("message", message.conversation_id, shape))

    def _publish_branch(self, conversation_id: str) -> None:
        """Other messages are on screen now."""
        self._broadcast.publish(Notice("branch", conversation_id, {"id": conversation_id}))
        self._publish_row(conversation_id)

    # --- for the upper half ----------------------------------------------------------------------

    def _accepting(self) -> None:
        if self._closing:
            raise Unavailable("Pagoda is shutting down. Start it again, then repeat this.")

    def _cancel(self, attempt: Attempt) -> None:
        """End a reply whose conversation goes away. The upper half, Gateway, knows the runs."""
        raise NotImplementedError


def new_id(prefix: str) -> str:
    """A name that nothing else has."""
    return f"{prefix}_{secrets.token_hex(8)}"


def _window(messages: list[Message], before: str | None, count: int | None) -> tuple[list[Message], list[str]]:
    """The last `count` messages before that one, or of all, and the ids of what comes before them."""
    end = len(messages)
    if before is not None:
        end = next((index for index, message in enumerate(messages) if message.id == before), 0)
    begin = 0 if count is None else max(0, end - count)
    return messages[begin:end], [message.id for message in messages[:begin]]
