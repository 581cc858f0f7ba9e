"""Who may use which source next: a queue per source, fair between conversations, with positions one can see.

Turns of one key (a conversation, an API request) stay in order and never overlap, on whatever source they run.
"""

import asyncio
from collections import Counter
from collections.abc import Callable


class Ticket:
    """A place in the queue, later the turn itself; `leave` gives up either."""

    def __init__(self, queue: "Queue", source: str, key: str, capacity: int, on_position: Callable[[int], None]):
        self.source, self.key, self.capacity = source, key, capacity
        self.position: int | None = None
        self._queue = queue
        self._on_position = on_position
        self._turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def turn(self) -> bool:
        """Wait for the turn: True when it has come, False when the place was given up."""
        return await asyncio.shield(self._turn)

    def leave(self) -> None:
        """Give up the place or end the turn; harmless when repeated."""
        self._queue._remove(self)
        self._settle(False)

    def _settle(self, came: bool) -> None:
        if not self._turn.done():
            self._turn.set_result(came)

    def _move(self, position: int) -> None:
        if position != self.position:
            self.position = position
            self._on_position(position)


class Queue:
    """Conversations take turns: nobody's second waiting turn runs before everybody's first one."""

    def __init__(self) -> None:
        self._waiting: list[Ticket] = []
        self._active: list[Ticket] = []

    def enter(self, source: str, key: str, on_position: Callable[[int], None], capacity: int = 1) -> Ticket:
        """Line up. `on_position` hears every place (1 = next) this ticket waits at, the first one before this returns;
        it hears nothing when the turn comes at once. `capacity` is how many turns the source takes at a time."""
        ticket = Ticket(self, source, key, capacity, on_position)
        self._waiting.append(ticket)
        self._advance()
        return ticket

    def _remove(self, ticket: Ticket) -> None:
        for tickets in (self._waiting, self._active):
            if ticket in tickets:
                tickets.remove(ticket)
                self._advance()

    def _advance(self) -> None:
        for ticket in self._order():
            if self._may_start(ticket):
                self._waiting.remove(ticket)
                self._active.append(ticket)
                ticket._settle(True)
        places: Counter[str] = Counter()
        for ticket in self._order():
            places[ticket.source] += 1
            ticket._move(places[ticket.source])

    def _order(self) -> list[Ticket]:
        """Waiting tickets: by how many of the same key are served before, then by arrival (the sort is stable)."""
        served = Counter(ticket.key for ticket in self._active)
        ranked = []
        for ticket in self._waiting:
            ranked.append((served[ticket.key], ticket))
            served[ticket.key] += 1
        return [ticket for _, ticket in sorted(ranked, key=lambda pair: pair[0])]

    def _may_start(self, ticket: Ticket) -> bool:
        if any(ticket.key == other.key for other in self._active):
            return False
        earlier = self._waiting[: self._waiting.index(ticket)]
        if any(ticket.key == other.key for other in earlier):
            return False
        return sum(ticket.source == other.source for other in self._active) < ticket.capacity
