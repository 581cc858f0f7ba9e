"""Reads conversations from a file of another Pagoda or of ChatGPT: all of them, or a sentence that says why none.

Ids are those in the file, or derived from them, so that reading the same file again changes nothing.
"""

import hashlib
import json
import re
import time
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from backend import chatgpt
from backend.chunks import Chunk, Cursor, StateChange
from backend.chunks import Text as ChunkText
from backend.errors import Invalid
from backend.export import FORMAT, VERSION
from backend.rows import Attempt, Conversation, Message
from backend.sampling import clean, in_words
from backend.states import State
from backend.wording import NEW_TITLE, sound

MAX_CONVERSATIONS = 20_000
MAX_TEXT = 4_000_000  # characters in one message

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Id = Annotated[str, Field(min_length=1, max_length=200)]
Moment = Annotated[float, Field(ge=0, lt=1e11, allow_inf_nan=False)]


class Part(BaseModel):
    """A file may hold more than this version reads."""

    model_config = ConfigDict(extra="ignore")


class VersionPart(Part):
    id: Id
    state: State = State.COMPLETE
    reason: str | None = None
    detail: str | None = None
    text: Text = ""
    model: str = ""
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    created_at: Moment = 0.0


class MessagePart(Part):
    id: Id
    role: Annotated[str, Field(pattern="^(user|assistant)$")]
    text: Text = ""
    parent: Id | None = None
    chosen: bool = True
    created_at: Moment = 0.0
    selected_attempt: str | None = None
    attempts: list[VersionPart] = []


class ConversationPart(Part):
    id: Id
    title: Annotated[str, Field(max_length=2000)] = NEW_TITLE
    model: str = ""
    system: Text | None = None
    sampling: dict[str, Any] = {}
    pinned: bool = False
    archived: bool = False
    created_at: Moment = 0.0
    updated_at: Moment = 0.0
    messages: list[MessagePart] = []


@dataclass
class Incoming:
    """The rows of one conversation, parents before what follows them."""

    conversation: Conversation
    messages: list[Message] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)


def parse(content: bytes, model: str) -> list[Incoming]:
    """`read` for the bytes of a file."""
    try:
        return read(json.loads(content), model)
    except (ValueError, RecursionError) as error:  # also what is not UTF-8
        raise Invalid("This file is no JSON, so nothing was imported. Choose the .json file of an export.") from error


def read(content: Any, model: str) -> list[Incoming]:
    """The conversations in a parsed JSON file. `model` stands where the file names none. Raises Invalid in words."""
    try:
        ours = isinstance(content, dict) and content.get("format") == FORMAT
        if ours and content.get("version") != VERSION:
            raise Invalid("This file was written by a newer Pagoda. Update Pagoda, then import it again.")
        if ours:
            found = content.get("conversations")
        elif chatgpt.looks_like_it(content):
            found = [chatgpt.conversation(each) for each in content]
        else:
            raise Invalid(
                "This is neither an export of Pagoda nor the conversations.json of ChatGPT. Nothing was imported."
            )
        parts = TypeAdapter(list[ConversationPart]).validate_python(found)
    except ValidationError as error:
        raise Invalid(f"This file is damaged, so nothing was imported. {in_words(error)}") from error
    if len(parts) > MAX_CONVERSATIONS:
        raise Invalid(
            f"There are {len(parts)} conversations in this file; {MAX_CONVERSATIONS} can be imported at once."
        )
    return [incoming for part in parts if (incoming := _rows(part, model, ours)).messages]


def _rows(part: ConversationPart, model: str, ours: bool) -> Incoming:
    now = time.time()

    def name(prefix: str, *path: str) -> str:
        return path[-1] if ours and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", path[-1]) else _derived(prefix, "/".join(path))

    created = part.created_at or now
    result = Incoming(
        Conversation(
            id=name("c", part.id),
            title=sound(part.title).strip()[:200] or NEW_TITLE,
            model=part.model or model,
            created_at=created,
            updated_at=part.updated_at or created,
            system=sound(part.system) if part.system else None,
            sampling=clean(part.sampling),
            pinned=part.pinned,
            archived=part.archived,
        )
    )
    id = result.conversation.id
    ids = {message.id: name("m", part.id, message.id) for message in part.messages}
    roles: dict[str, str] = {}
    if len(ids) != len(part.messages):
        raise Invalid(f"Two messages of “{part.title[:60]}” have the same id, so nothing was imported.")
    replies = {message.parent: message for message in part.messages if message.role == "assistant"}
    taken: dict[str | None, str] = {}  # of each place, the message that is chosen
    for position, message in enumerate(part.messages):
        expected = "user" if message.parent is None or roles.get(message.parent) == "assistant" else "assistant"
        whole = message.role == "user" or replies[message.parent] is message
        if (message.parent is not None and message.parent not in roles) or message.role != expected or not whole:
            raise Invalid(f"The messages of “{part.title[:60]}” do not follow each other, so nothing was imported.")
        roles[message.id] = message.role
        parent = ids[message.parent] if message.parent else None
        when = message.created_at or created
        row = Message(ids[message.id], id, position, message.role, when, parent=parent)
        if message.role == "user":
            if message.id not in replies:
                raise Invalid(f"A message of “{part.title[:60]}” has no reply beside it, so nothing was imported.")
            text = sound(message.text)
            if message.chosen or parent not in taken:
                taken[parent] = row.id
            result.messages.append(_with(row, text=text, chosen=False))
        else:
            attempts = [
                _attempt(name("a", part.id, message.id, each.id), row, number, each, model)
                for number, each in enumerate(message.attempts)
            ]
            if not attempts:
                raise Invalid(f"A reply of “{part.title[:60]}” has no version, so nothing was imported.")
            current = selected = attempts[-1].id
            for attempt, each in zip(attempts, message.attempts, strict=True):
                selected = attempt.id if each.id == message.selected_attempt else selected
            result.messages.append(_with(row, current_attempt=current, selected_attempt=selected))
            result.attempts += attempts
    on_way = set(taken.values())
    result.messages = [_with(m, chosen=m.role == "assistant" or m.id in on_way) for m in result.messages]
    return result


def _with(row: Message, **values: Any) -> Message:
    return replace(row, **values)


def _attempt(id: str, reply: Message, number: int, part: VersionPart, model: str) -> Attempt:
    # What was still being written when it was exported has no more to come.
    state = part.state if part.state.terminal else State.INTERRUPTED
    return Attempt(
        id=id,
        message_id=reply.id,
        conversation_id=reply.conversation_id,
        number=number,
        model=part.model or model,
        created_at=part.created_at or reply.created_at,
        state=state,
        reason=part.reason,
        detail=part.detail,
        text=sound(part.text),
        length=len(sound(part.text)),
        usage=part.usage,
        timings=part.timings,
        ended_at=part.created_at or reply.created_at,
    )


def _derived(prefix: str, key: str) -> str:
    return f"{prefix}_{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:16]}"


def said_at_once(attempt: Attempt) -> tuple[Chunk, Chunk]:
    """The chunks behind a reply that came whole: the journal's chunks always make up its texts."""
    cursor = Cursor(attempt.conversation_id, attempt.message_id, attempt.id)
    text = cursor.tag(ChunkText(attempt.text))
    cursor.passed(text)
    ended = StateChange(attempt.state, attempt.reason, attempt.detail, attempt.usage, attempt.timings)
    return text, cursor.tag(ended)
