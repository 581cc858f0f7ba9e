"""Conversations as a person would describe them: the plain model that the interleavings are compared with."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class ModelAttempt:
    id: str
    text: str = ""
    state: str = "sending"

    @property
    def alive(self) -> bool:
        return self.state in ("sending", "streaming")


@dataclass(eq=False)
class Place:
    """Where turns can follow; the beginning of a conversation is one, and so is every turn."""

    branches: list["ModelTurn"] = field(default_factory=list)
    chosen: "ModelTurn | None" = None


@dataclass(eq=False)
class ModelTurn(Place):
    question: str = ""
    request_id: str = ""
    user_id: str = ""
    message_id: str = ""
    attempts: list[ModelAttempt] = field(default_factory=list)
    selected: ModelAttempt = field(default_factory=lambda: ModelAttempt(""))
    after: Place = field(default_factory=Place)
    deleted: bool = False

    @property
    def current(self) -> ModelAttempt:
        return self.attempts[-1]

    def cancel(self) -> None:
        if self.current.alive:
            self.current.state = "cancelled"

    def choose(self) -> None:
        """Put it on screen."""
        place: Place = self
        while isinstance(place, ModelTurn):
            place.after.chosen = place
            place = place.after


@dataclass
class ModelConversation:
    id: str
    start: Place = field(default_factory=Place)
    turns: list[ModelTurn] = field(default_factory=list)  # all but the deleted ones, as they were made
    deleted: list[ModelTurn] = field(default_factory=list)  # and can be brought back
    gone: list[ModelTurn] = field(default_factory=list)  # for good

    def chosen(self) -> Iterator[ModelTurn]:
        place = self.start
        while place.chosen is not None:
            place = place.chosen
            yield place

    def on_screen(self) -> list[ModelTurn]:
        return [turn for turn in self.chosen() if not turn.deleted]

    def add(self, turn: ModelTurn) -> None:
        turn.after.branches.append(turn)
        turn.choose()
        self.turns.append(turn)

    def versions(self, turn: ModelTurn) -> list[ModelTurn]:
        """What stands in its place: looked for below the nearest turn before it that is not deleted."""
        place = turn.after
        while isinstance(place, ModelTurn) and place.deleted:
            place = place.after
        found, look = [], list(place.branches)
        while look:
            each = look.pop()
            if each.deleted:
                look += each.branches
            else:
                found.append(each)
        return sorted(found, key=self.turns.index)

    def delete(self, turn: ModelTurn) -> None:
        turn.cancel()
        others = [each for each in self.versions(turn) if each is not turn]
        was_the_end = self.on_screen()[-1:] == [turn]
        turn.deleted = True
        self.turns.remove(turn)
        self.deleted.append(turn)
        if was_the_end and others:
            others[-1].choose()

    def restore(self, turn: ModelTurn, order: list[str]) -> None:
        self.deleted.remove(turn)
        self.turns.append(turn)
        self.turns.sort(key=lambda each: order.index(each.user_id))
        turn.deleted = False
        turn.choose()

    def forget_deleted(self, order: list[str]) -> None:
        """Nothing can be brought back any more: what followed a deleted turn follows what was before it."""
        for turn in self.deleted:
            place = turn.after
            place.branches.remove(turn)
            place.branches += turn.branches
            place.branches.sort(key=lambda each: order.index(each.user_id))
            for each in turn.branches:
                each.after = place
            if place.chosen is turn:
                place.chosen = turn.chosen or next(reversed(place.branches), None)
        self.gone += self.deleted
        self.deleted = []

    def prompt_of(self, turn: ModelTurn) -> list[tuple[str, str]]:
        line: list[ModelTurn] = []
        place: Place = turn
        while isinstance(place, ModelTurn):
            if not place.deleted:
                line.insert(0, place)
            place = place.after
        prompt: list[tuple[str, str]] = []
        for earlier in line:
            if prompt and prompt[-1][0] == "user":
                prompt[-1] = ("user", f"{prompt[-1][1]}\n\n{earlier.question}")
            else:
                prompt.append(("user", earlier.question))
            reply = earlier.selected
            if earlier is not turn and reply.text and not reply.alive and reply.state != "failed":
                prompt.append(("assistant", reply.text))
        return prompt
