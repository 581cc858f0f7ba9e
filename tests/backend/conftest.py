"""A gateway on a fresh journal with a scripted source, and a listener that records all it publishes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend.chunks import Chunk, Payload, StateChange, Text
from backend.gateway import Gateway
from backend.journal import Journal
from backend.notices import Notice
from backend.rows import Sent
from tests.backend.scripted import Call, ScriptedSource


class House:
    """What a test needs in hand. `open` again is a restart on the same data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open()

    def open(self) -> None:
        self.source = ScriptedSource()
        self.journal = Journal(self.folder)
        self.gateway = Gateway(self.journal, [self.source])
        self.heard: list[Chunk | Notice] = []
        self.gateway.subscribe(self.heard.append)
        self.gateway.start()

    async def close(self) -> None:
        await self.gateway.close()
        self.journal.close()

    def conversation(self, **options) -> str:
        return self.gateway.create_conversation(**options)["id"]

    async def send(self, conversation: str, text: str, request_id: str | None = None) -> tuple[Sent, Call]:
        """Send a message to an idle conversation and wait until its run has begun."""
        sent = self.gateway.send(conversation, request_id or f"r-{text}", text)
        return sent, await self.source.next_call()

    async def turn(self, conversation: str, question: str, answer: str) -> Sent:
        """A whole turn."""
        sent, call = await self.send(conversation, question)
        await call.write(answer)
        await call.finish()
        return sent

    def attempt(self, id: str) -> dict:
        """The attempt as a snapshot shows it."""
        conversation = self.gateway.attempt(id).conversation_id
        messages = self.gateway.conversation(conversation)["messages"]
        return next(a for m in messages for a in m["attempts"] if a["id"] == id)

    def heard_of(self, attempt: str) -> list[Payload]:
        """The payloads published for an attempt, in order."""
        return [item.data for item in self.heard if isinstance(item, Chunk) and item.attempt_id == attempt]

    def states_of(self, attempt: str) -> list[str]:
        return [data.state.value for data in self.heard_of(attempt) if isinstance(data, StateChange)]

    def text_of(self, attempt: str) -> str:
        return "".join(data.text for data in self.heard_of(attempt) if isinstance(data, Text))

    def notices(self, kind: str) -> list[dict]:
        return [item.data for item in self.heard if isinstance(item, Notice) and item.kind == kind]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path / "data")
    yield house
    await house.close()
