"""Who may use which source next: a queue per source, fair between conversations, with positions one can see.

Turns of one key (a conversation, an API request) stay in order and never overlap, on whatever source they run.
Fair means rounds: nobody's second turn comes before everybody's first. A share (a conversation, or all API clients
together) has one turn a round, so a newcomer waits for at most one turn of everybody else.
"""

import asyncio
from collections.abc import Callable


class Ticket:
    """A place in the queue, later the turn itself; `leave` gives up either."""

    def __init__(
        self, queue: "Queue", source: str, key: str, share: str, capacity: int, on_position: Callable[[int], None]
    ) -> None:
        self.source, self.key, self.share, self.capacity = source, key, share, capacity
        self.position: int | None = None
        self.round = 0
        self._queue = queue
        self._on_position = on_position
        self._turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def has_turn(self) -> bool:
        return self in self._queue.active

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
    """All sources' queues in one, because a conversation may change its source between two turns."""

    def __init__(self) -> None:
        self.active: list[Ticket] = []
        self._waiting: list[Ticket] = []
        self._round: dict[str, int] = {}  # by source: the round of the newest turn
        self._had: dict[tuple[str, str], int] = {}  # by source and share: the round of its last turn, if not past

    def enter(
        self,
        source: str,
        key: str,
        on_position: Callable[[int], None],
        capacity: int = 1,
        share: str | None = None,
    ) -> Ticket:
        """Line up. `on_position` hears every place (1 = next) this ticket waits at, the first one before this returns;
        it hears nothing when the turn comes at once. `capacity` is how many turns the source takes at a time; `share`
        is who has one turn a round, the key itself if not named."""
        ticket = Ticket(self, source, key, share or key, capacity, on_position)
        ticket.round = self._next_round(source, ticket.share)
        self._waiting.append(ticket)
        self._advance()
        return ticket

    def awaited(self, source: str) -> bool:
        """Whether anybody waits for that source."""
        return any(ticket.source == source for ticket in self._waiting)

    def waiting(self, source: str, share: str) -> int:
        """How many of that share wait for that source."""
        return sum((ticket.source, ticket.share) == (source, share) for ticket in self._waiting)

    def _next_round(self, source: str, share: str) -> int:
        taken = [t.round for t in self._waiting if (t.source, t.share) == (source, share)]
        if (had := self._had.get((source, share))) is not None:
            taken.append(had)
        return max(self._round.get(source, 0), *(round + 1 for round in taken), 0)

    def _remove(self, ticket: Ticket) -> None:
        for tickets in (self._waiting, self.active):
            if ticket in tickets:
                tickets.remove(ticket)
                self._advance()

    def _advance(self) -> None:
        for ticket in self._order():
            if self._may_start(ticket):
                self._start(ticket)
        places: dict[str, int] = {}
        for ticket in self._order():
            places[ticket.source] = places.get(ticket.source, 0) + 1
            ticket._move(places[ticket.source])

    def _order(self) -> list[Ticket]:
        """By round, then by arrival (the sort is stable)."""
        return sorted(self._waiting, key=lambda ticket: ticket.round)

    def _may_start(self, ticket: Ticket) -> bool:
        if any(ticket.key == other.key for other in self.active):
            return False
        earlier = self._waiting[: self._waiting.index(ticket)]
        if any(ticket.key == other.key for other in earlier):
            return False
        return sum(ticket.source == other.source for other in self.active) < ticket.capacity

    def _start(self, ticket: Ticket) -> None:
        self._waiting.remove(ticket)
        self.active.append(ticket)
        newest = self._round[ticket.source] = max(self._round.get(ticket.source, 0), ticket.round)
        self._had[ticket.source, ticket.share] = ticket.round
        past = [who for who, round in self._had.items() if who[0] == ticket.source and round < newest]
        for who in past:
            del self._had[who]
        ticket._settle(True)
