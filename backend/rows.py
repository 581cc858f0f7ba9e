"""The journal's rows as typed, frozen values, and the JSON shape in which a conversation is read.

Times are seconds since 1970. Lengths and offsets count characters (Unicode code points).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from backend.chunks import Progress
from backend.states import State


@dataclass(frozen=True)
class Conversation:
    """`sampling` holds only what a person set (see backend/sampling.py)."""

    id: str
    title: str
    model: str
    created_at: float
    updated_at: float
    system: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    unread: bool = False
    request_id: str | None = None
    pinned: bool = False
    archived: bool = False
    deleted_at: float | None = None


@dataclass(frozen=True)
class Message:
    """A user message carries its text; an assistant message's text is that of its selected attempt.

    `parent` is the message before it (see backend/branches.py); `chosen` says of a user message that the branch it
    begins is the one on screen; `position` counts all messages of the conversation in the order they were made.
    """

    id: str
    conversation_id: str
    position: int
    role: str
    created_at: float
    text: str = ""
    request_id: str | None = None
    current_attempt: str | None = None
    selected_attempt: str | None = None
    parent: str | None = None
    chosen: bool = True
    deleted_at: float | None = None


@dataclass(frozen=True)
class Attempt:
    """One version of a reply. `last_seq` is -1 before the first chunk; `continues` names the attempt it extends."""

    id: str
    message_id: str
    conversation_id: str
    number: int
    model: str
    created_at: float
    state: State = State.SENDING
    reason: str | None = None
    detail: str | None = None
    text: str = ""
    length: int = 0
    last_seq: int = -1
    progress: Progress | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    continues: str | None = None
    request_id: str | None = None
    ended_at: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As the page and the HTTP API read it; the progress without the fields nothing filled."""
        shape = {key: getattr(self, key) for key in _ATTEMPT_SHAPE}
        if self.progress is not None:
            shape["progress"] = {k: v for k, v in asdict(self.progress).items() if v is not None}
        return shape


_ATTEMPT_SHAPE = (
    "id", "number", "state", "reason", "detail", "text", "last_seq", "progress", "usage", "timings",
    "model", "continues", "request_id", "created_at", "ended_at",
)  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """A conversation as a row of the sidebar. `percent` is None where a number would be made up; `queued`: it runs, but
    waits for its turn."""

    id: str
    title: str
    model: str
    created_at: float
    updated_at: float
    running: bool
    queued: bool
    percent: float | None
    unread: bool
    failed: bool
    pinned: bool
    archived: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Sent:
    """The ids of a turn: the user message, the assistant message and its first attempt."""

    user_message_id: str
    message_id: str
    attempt_id: str


def message_dict(message: Message, attempts: Sequence[Attempt], versions: Sequence[str] = ()) -> dict[str, Any]:
    """One message with its attempts, oldest first. `versions` are the ids of the user messages in its place."""
    selected = next((a for a in attempts if a.id == message.selected_attempt), None)
    return {
        "id": message.id,
        "role": message.role,
        "text": selected.text if selected else message.text,
        "request_id": message.request_id,
        "current_attempt": message.current_attempt,
        "selected_attempt": message.selected_attempt,
        "created_at": message.created_at,
        "versions": list(versions),
        "attempts": [attempt.to_dict() for attempt in attempts],
    }


def percent_of(progress: Progress | None, limit_set: bool) -> float | None:
    """How far a reply is, from its newest progress: prefill always, decode only against a limit a person set."""
    if progress is None or not progress.tokens_total or progress.tokens_done is None:
        return None
    if progress.stage == "prefill" or (progress.stage == "decode" and limit_set):
        return round(100 * min(progress.tokens_done / progress.tokens_total, 1), 1)
    return None
