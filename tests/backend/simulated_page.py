"""A page as DESIGN §2.3 wants it, in Python: it knows only snapshots, chunks and notices, and a network that plays
tricks. What it shows is compared with what is on disk."""

from dataclasses import dataclass
from typing import Any

from backend.chunks import Chunk, StateChange, Text
from backend.errors import NotFound
from backend.gateway import Gateway
from backend.notices import Notice


@dataclass
class Shown:
    text: str
    state: str
    last_seq: int


@dataclass(frozen=True)
class Snapshot:
    generation: int
    conversation: dict[str, Any] | None  # None: deleted meanwhile


class SimulatedPage:
    """`outbox`: loads asked for and not yet answered. `inbox`: what the server sent and has not arrived."""

    def __init__(self) -> None:
        self.on_screen: str | None = None
        self.generation = 0
        self.attempts: dict[str, Shown] | None = None  # None: still loading
        self.selected: dict[str, str] = {}
        self.messages: set[str] = set()
        self.outbox: list[tuple[int, str]] = []
        self.inbox: list[Chunk | Notice | Snapshot] = []
        self.received: list[Chunk] = []

    def connect(self, gateway: Gateway) -> None:
        """Also after a restart of the server: what was under way is lost, the conversation is asked for again."""
        self.gateway = gateway
        self.inbox.clear()
        self.outbox.clear()
        gateway.subscribe(self.inbox.append)
        self._ask()

    def open(self, conversation_id: str) -> None:
        """The person switches; whatever was asked for before is out of date."""
        self.on_screen, self.attempts, self.selected = conversation_id, None, {}
        self.generation += 1
        self._ask()

    def _ask(self) -> None:
        if self.on_screen is not None:
            self.outbox.append((self.generation, self.on_screen))

    # --- the network -----------------------------------------------------------------------------

    def answer_load(self) -> None:
        """The server answers the oldest load."""
        if self.outbox:
            generation, conversation_id = self.outbox.pop(0)
            try:
                conversation = self.gateway.conversation(conversation_id)
            except NotFound:
                conversation = None
            self.inbox.append(Snapshot(generation, conversation))

    def arrive(self) -> None:
        """The oldest thing under way arrives."""
        if self.inbox:
            self._take(self.inbox.pop(0))

    def repeat(self, index: int) -> None:
        """A chunk that arrived earlier arrives once more, late."""
        if self.received:
            self.inbox.append(self.received[index % len(self.received)])

    def lose(self) -> None:
        """One chunk under way is lost, with others of its attempt behind it."""
        for index, item in enumerate(self.inbox):
            later = self.inbox[index + 1 :]
            if isinstance(item, Chunk) and any(
                isinstance(other, Chunk) and other.attempt_id == item.attempt_id and other.seq > item.seq
                for other in later
            ):
                del self.inbox[index]
                return

    def settle(self) -> None:
        """Everything arrives."""
        while self.inbox or self.outbox:
            self.arrive()
            if not self.inbox:
                self.answer_load()

    # --- what the page does ----------------------------------------------------------------------

    def _take(self, item: Chunk | Notice | Snapshot) -> None:
        match item:
            case Snapshot(generation=generation) if generation != self.generation:
                return  # the person has moved on
            case Snapshot(conversation=None):
                self.on_screen = self.attempts = None
            case Snapshot(conversation=dict() as conversation):
                self.attempts, self.selected, self.messages = {}, {}, set()
                for message in conversation["messages"]:
                    self._merge(message)
            case Notice(kind="branch") if item.conversation_id == self.on_screen:
                self._ask()
            case Notice(kind="deleted") if item.conversation_id == self.on_screen:
                self.on_screen = self.attempts = None
            case Notice(kind="message") if item.conversation_id == self.on_screen and self.attempts is not None:
                self._merge(item.data)
            case Chunk():
                self.received.append(item)
                if item.conversation_id == self.on_screen and self.attempts is not None:
                    self._grow(item)

    def _merge(self, message: dict[str, Any]) -> None:
        assert self.attempts is not None
        self.messages.add(message["id"])
        if message["selected_attempt"]:
            self.selected[message["id"]] = message["selected_attempt"]
        for attempt in message["attempts"]:
            known = self.attempts.get(attempt["id"])
            if known is None or attempt["last_seq"] > known.last_seq:
                self.attempts[attempt["id"]] = Shown(attempt["text"], attempt["state"], attempt["last_seq"])

    def _grow(self, chunk: Chunk) -> None:
        assert self.attempts is not None
        if chunk.message_id not in self.messages:
            return  # of another branch
        shown = self.attempts.get(chunk.attempt_id)
        if shown is None or chunk.seq > shown.last_seq + 1:
            self._ask()  # a gap
            return
        match chunk.data:
            case Text(text=text):
                shown.text += text[len(shown.text) - chunk.offset :]  # an overlap is trimmed
            case StateChange(state=state) if chunk.seq > shown.last_seq:
                shown.state = state
        shown.last_seq = max(shown.last_seq, chunk.seq)
