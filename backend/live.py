"""What a reader over HTTP sees of a conversation: everything so far, then everything that happens, without a gap."""

import asyncio
from collections.abc import AsyncGenerator

from backend.chunks import Chunk, StateChange
from backend.errors import NotFound
from backend.event_stream import chunk_event, event
from backend.gateway import Gateway
from backend.notices import Notice

# A page of the journal while replaying, and how far a reader of a whole conversation may fall behind.
PAGE = 500
BEHIND = 1000
TOLD = ("message", "branch", "conversation", "deleted")


async def attempt_events(gateway: Gateway, attempt_id: str, after: int) -> AsyncGenerator[bytes, None]:
    """The chunks of one attempt after `after`, until it ends.

    The journal is the queue: whatever is not at hand is read from there, from where the reader was. So nothing can be
    missed or sent twice, and a slow reader costs little memory. All that is there goes out in one piece.
    """
    news = asyncio.Event()
    heard: list[Chunk] = []
    look = True  # into the journal: at first, and when something was missed

    def hear(item: Chunk | Notice) -> None:
        nonlocal look
        if isinstance(item, Chunk) and len(heard) < BEHIND and not _is_end(item):
            heard.append(item)
        else:
            look = True  # the end too: who joined beyond it hears of it as well
        news.set()

    unsubscribe = gateway.subscribe(hear, attempt_id)
    try:
        while True:
            news.clear()
            chunks = [chunk for chunk in heard if chunk.seq > after]
            heard.clear()
            if look or (chunks and chunks[0].seq != after + 1):
                look = False
                chunks = gateway.chunks(attempt_id, after, PAGE)
                if not chunks and gateway.place_of(attempt_id)[1]:
                    return
                look = len(chunks) == PAGE
            if chunks:
                after = chunks[-1].seq
                yield b"".join(map(chunk_event, chunks))
                if _is_end(chunks[-1]):
                    return
            elif not look:
                await news.wait()
    except NotFound:
        yield event({"attempt_id": attempt_id}, "deleted")
    finally:
        unsubscribe()


def _is_end(chunk: Chunk) -> bool:
    return isinstance(chunk.data, StateChange) and chunk.data.state.terminal


async def conversation_events(gateway: Gateway, conversation_id: str) -> AsyncGenerator[bytes, None]:
    """A snapshot, then all chunks and messages of the conversation. A reader that falls behind gets a new snapshot."""
    queue: asyncio.Queue[Chunk | Notice] = asyncio.Queue()
    overrun = False
    closing: list[Notice] = []

    def receive(item: Chunk | Notice) -> None:
        nonlocal overrun
        if isinstance(item, Notice) and item.kind == "closing":
            closing.append(item)
        elif item.conversation_id != conversation_id or (isinstance(item, Notice) and item.kind not in TOLD):
            return
        if queue.qsize() >= BEHIND and isinstance(item, Chunk):
            overrun = True
        else:
            queue.put_nowait(item)

    def snapshot() -> bytes:
        """All that is there now; so what waited here is in it."""
        nonlocal overrun
        now = gateway.conversation(conversation_id)  # this may publish what was not on disk yet
        while not queue.empty():
            queue.get_nowait()
        overrun = False
        for item in closing:
            queue.put_nowait(item)
        return event(now, "snapshot")

    unsubscribe = gateway.subscribe(receive)
    try:
        yield snapshot()
        while True:
            if overrun:
                yield snapshot()
            item = await queue.get()
            if isinstance(item, Chunk):
                yield chunk_event(item)
            elif item.kind == "branch":
                yield snapshot()
            elif item.kind != "closing":
                yield event(item.data, item.kind)
            if isinstance(item, Notice) and item.kind in ("deleted", "closing"):
                return
    except NotFound:
        yield event({"id": conversation_id}, "deleted")
    finally:
        unsubscribe()
