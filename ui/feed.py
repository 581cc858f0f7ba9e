"""What one browser tab is told, and when: one subscription to the gateway, pushed at most ten times a second.

Only the conversation on screen is streamed to the tab. Of every other one it hears the row of the sidebar alone.
"""

import asyncio
import time
from contextlib import suppress
from typing import Any

from backend.chunks import Chunk
from backend.errors import CannotWrite, NotFound
from backend.gateway import Gateway
from backend.notices import Notice
from ui.deltas import Deltas
from ui.sidebar import Sidebar
from ui.transcript import Transcript

WINDOW = 24  # messages a tab gets at once; what lies before them comes as the person scrolls up
WARM_AFTER_S = 0.2  # the snapshot is on its way by then; who only walks past a conversation warms nothing
PUSH_INTERVAL_S = 0.1  # 4,000 tokens cost 2 s of server CPU at ten pushes a second, 90 s at one per token (DESIGN §4)


class Feed:
    """Lives as long as the NiceGUI client; `listen` and `rest` follow its connection."""

    def __init__(self, gateway: Gateway, transcript: Transcript, sidebar: Sidebar) -> None:
        self._gateway = gateway
        self._transcript = transcript
        self._sidebar = sidebar
        self._on_screen: str | None = None
        self._generation = 0
        self._streamed: str | None = None  # the attempt of which the page got a whole delta last
        self._unsubscribe = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self._warming: asyncio.TimerHandle | None = None
        self._last_push = float("-inf")
        self._forget_pending()

    def _forget_pending(self) -> None:
        self._deltas = Deltas()
        self._rows: dict[str, dict[str, Any] | None] = {}  # None: deleted
        self._messages: dict[str, dict[str, Any]] = {}
        self._model: dict[str, Any] | None = None
        self._downloads: dict[str, Any] | None = None
        self._other_branch = False

    # --- the tab's connection --------------------------------------------------------------------

    def listen(self) -> None:
        """The tab is connected (again): tell it everything, then every change. No await, so nothing falls between."""
        self.rest()
        self._streamed = None
        self._unsubscribe = self._gateway.subscribe(self._receive)
        self._sidebar.rows(self._gateway.conversations())
        self._transcript.model(self._gateway.model_status())
        self._transcript.downloads((self._gateway.newest("downloads") or {}).get("rows", []))
        if self._on_screen is not None:
            self._show()

    def rest(self) -> None:
        """The tab is not there: hear nothing, keep nothing. Replies go on without it."""
        self._unsubscribe()
        self._unsubscribe = lambda: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._warm_nothing()
        self._forget_pending()

    # --- what the person looks at ----------------------------------------------------------------

    def open(self, conversation_id: str | None, generation: int) -> None:
        """Stream this conversation from now on, beginning with all of it."""
        self._on_screen, self._generation = conversation_id, generation
        self._deltas.drain()
        self._messages.clear()
        self._warm_nothing()
        if conversation_id is not None:
            self._show()
            self._warming = asyncio.get_running_loop().call_later(WARM_AFTER_S, self._warm, conversation_id)

    def _warm(self, conversation_id: str) -> None:
        """The whole conversation is read for it once more, while the person looks at it already."""
        with suppress(NotFound):
            self._gateway.opened(conversation_id)

    def _warm_nothing(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            self._warming = None

    def _show(self) -> None:
        assert self._on_screen is not None
        self._streamed = None
        try:
            snapshot = self._gateway.conversation(self._on_screen, WINDOW)
        except NotFound:
            self._transcript.missing(self._on_screen, self._generation)
            return
        silences = self._gateway.silences(self._on_screen)
        self._transcript.show({**snapshot, "now": time.time(), "silences": silences}, self._generation)
        self.read(self._on_screen)

    def earlier(self, conversation_id: str, before: str) -> None:
        """What lies before that message. A message that is not there (any more) has nothing before it."""
        with suppress(NotFound):  # deleted meanwhile, and the page hears so by itself
            self._transcript.earlier(conversation_id, *self._gateway.earlier(conversation_id, before, WINDOW))

    def read(self, conversation_id: str) -> None:
        """The person has seen what arrived."""
        try:
            self._gateway.mark_read(conversation_id)
        except (NotFound, CannotWrite):
            return  # deleted meanwhile, and the page hears so by itself; or the disk is full, and reading still works

    # --- what the gateway says -------------------------------------------------------------------

    def _receive(self, item: Chunk | Notice) -> None:
        match item:
            case Chunk() if item.conversation_id == self._on_screen:
                self._deltas.add(item)
            case Notice(kind="message", conversation_id=id, data=message) if id == self._on_screen:
                self._messages[message["id"]] = message
            case Notice(kind="branch", conversation_id=id) if id == self._on_screen:
                self._other_branch = True
            case Notice(kind="conversation", data=row):
                self._rows[row["id"]] = row
            case Notice(kind="deleted", data=gone):
                self._rows[gone["id"]] = None
            case Notice(kind="model", data=status):
                self._model = status
            case Notice(kind="downloads", data=downloads):
                self._downloads = downloads
            case _:
                return
        if self._timer is None:
            wait = self._last_push + PUSH_INTERVAL_S - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wait), self._push)

    def _push(self) -> None:
        """Messages go before deltas: a delta belongs to a message that the page knows. A snapshot has them all."""
        self._timer = None
        self._last_push = time.monotonic()
        deltas, rows, messages, model = self._deltas.drain(), self._rows, self._messages, self._model
        other_branch, downloads = self._other_branch, self._downloads
        self._forget_pending()
        if other_branch and self._on_screen is not None:
            self._show()
        elif messages and self._on_screen is not None:
            self._transcript.merge(self._on_screen, list(messages.values()), time.time())
        if deltas:
            self._stream(deltas)
        for conversation_id, row in rows.items():
            if row is None:
                self._sidebar.gone(conversation_id)
            else:
                self._sidebar.row(row)
        if model is not None:
            self._transcript.model(model)
        if downloads is not None:
            self._transcript.downloads(downloads["rows"])

    def _stream(self, deltas: list[dict[str, Any]]) -> None:
        """Most pushes are a few words more of the same reply: these go without all that the page knows already."""
        newest = deltas[-1]
        plain = len(deltas) == 1 and newest["progress"] is None and newest["state"] is None
        if plain and newest["attempt_id"] == self._streamed:
            self._transcript.more(newest["first"], newest["last"], newest["offset"], newest["text"])
        else:
            self._transcript.deltas(deltas)
        self._streamed = newest["attempt_id"]
