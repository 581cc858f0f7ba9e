"""Who may use which source next: a queue per source, fair between conversations, with positions one can see.

Turns of one key (a conversation, an API request) stay in order and never overlap, on whatever source they run.
Turns of different models that cannot be in memory together never overlap either.
Fair means rounds: nobody's second turn comes before everybody's first. A share (a conversation, or all API clients
together) has one turn a round, so a newcomer waits for at most one turn of everybody else.
"""

import asyncio
from collections.abc import Callable


class Ticket:
    """A place in the queue, later the turn itself; `leave` gives up either."""

    def __init__(
        self,
        queue: "Queue",
        source: str,
        key: str,
        share: str,
        capacity: int,
        on_position: Callable[[int, str | None], None],
        model: str | None,
    ) -> None:
        self.source, self.key, self.share, self.capacity, self.model = source, key, share, capacity, model
        self.position: int | None = None
        self.behind: str | None = None
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

    def _move(self, position: int, behind: str | None) -> None:
        if (position, behind) != (self.position, self.behind):
            self.position, self.behind = position, behind
            self._on_position(position, behind)


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
        on_position: Callable[[int, str | None], None],
        capacity: int = 1,
        share: str | None = None,
        model: str | None = None,
    ) -> Ticket:
        """Line up. `on_position` hears every place (1 = next) this ticket waits at, the first one before this returns,
        and which other model has to finish first, if one has; it hears nothing when the turn comes at once. `capacity`
        is how many turns the source takes at a time; `share` is who has one turn a round, the key itself if not named;
        `model` has the source to itself."""
        ticket = Ticket(self, source, key, share or key, capacity, on_position, model)
        ticket.round = self._next_round(source, ticket.share)
        self._waiting.append(ticket)
        self._advance()
        return ticket

    def wanted(self, source: str, ticket: Ticket) -> bool:
        """Whether anybody waits for that source or uses it, besides this ticket."""
        return any(other.source == source and other is not ticket for other in (*self._waiting, *self.active))

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
        held: set[str] = set()  # sources where another model's turn is next, which nobody may put off
        for ticket in self._order():
            if ticket.source not in held and self._may_start(ticket):
                self._start(ticket)
            elif self._other_model(ticket) is not None:
                held.add(ticket.source)
        places: dict[str, int] = {}
        for ticket in self._order():
            places[ticket.source] = places.get(ticket.source, 0) + 1
            ticket._move(places[ticket.source], self._other_model(ticket))

    def _other_model(self, ticket: Ticket) -> str | None:
        """The model that is at work where this ticket wants another."""
        at_work = (other.model for other in self.active if other.source == ticket.source)
        return next((model for model in at_work if model != ticket.model), None)

    def _order(self) -> list[Ticket]:
        """By round, then by arrival (the sort is stable)."""
        return sorted(self._waiting, key=lambda ticket: ticket.round)

    def _may_start(self, ticket: Ticket) -> bool:
        if any(ticket.key == other.key for other in self.active):
            return False
        earlier = self._waiting[: self._waiting.index(ticket)]
        if any(ticket.key == other.key for other in earlier):
            return False
        if self._other_model(ticket) is not None:
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
