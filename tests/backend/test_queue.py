"""Who is next, and what those who wait are told."""

from backend.abort import AbortController
from backend.queue import Queue


class Line:
    """Tickets by name, and the places each was told."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.told: dict[str, list[int]] = {}
        self.behind: dict[str, list[str | None]] = {}
        self.tickets = {}

    def enter(self, name: str, key: str, source: str = "engine", capacity: int = 1, **more: str) -> None:
        self.told[name], self.behind[name] = [], []

        def hear(place: int, behind: str | None) -> None:
            self.told[name].append(place)
            self.behind[name].append(behind)

        self.tickets[name] = self.queue.enter(source, key, hear, capacity, **more)

    def leave(self, name: str) -> None:
        self.tickets.pop(name).leave()

    def having_a_turn(self) -> list[str]:
        return sorted(name for name, ticket in self.tickets.items() if ticket.has_turn)


async def test_the_first_goes_at_once_and_the_others_hear_their_place():
    line = Line()
    for name in "abc":
        line.enter(name, key=name)
    assert line.having_a_turn() == ["a"]
    line.leave("a")
    assert line.having_a_turn() == ["b"]
    assert line.told == {"a": [], "b": [1], "c": [2, 1]}


async def test_conversations_take_turns():
    line = Line()
    for name in ("a1", "a2", "a3", "b1"):
        line.enter(name, key=name[0])
    order = []
    while line.tickets:
        (turn,) = line.having_a_turn()
        order.append(turn)
        line.leave(turn)
    assert order == ["a1", "b1", "a2", "a3"]


async def test_who_comes_back_at_once_does_not_starve_who_waits_with_a_second_turn():
    line = Line()
    line.enter("a1", "a")
    line.enter("a2", "a")
    order = []
    for number in range(3):
        line.enter(f"b{number}", "b")
        line.enter(f"api{number}", f"request {number}", share="api")
        (turn,) = line.having_a_turn()
        order.append(turn)
        line.leave(turn)
    assert order == ["a1", "b0", "api0"]
    assert line.having_a_turn() == ["a2"]
    assert line.queue._had.keys() <= {("engine", "a"), ("engine", "b"), ("engine", "api")}


async def test_turns_of_one_conversation_never_overlap_even_on_different_sources():
    line = Line()
    line.enter("a1", "a", "engine", 2)
    line.enter("a2", "a", "engine", 2)
    line.enter("a3", "a", "upstream", 2)
    line.enter("b1", "b", "engine", 2)
    assert line.having_a_turn() == ["a1", "b1"]
    line.leave("a1")
    assert line.having_a_turn() == ["a2", "b1"]
    line.leave("a2")
    assert line.having_a_turn() == ["a3", "b1"]


async def test_who_gives_up_frees_the_place_and_hears_that_no_turn_came():
    line = Line()
    for name in "abc":
        line.enter(name, key=name)
    ticket = line.tickets["b"]
    line.leave("b")
    ticket.leave()
    assert await ticket.turn() is False
    assert line.told["c"] == [2, 1]


async def test_an_abort_is_said_once_and_heard_by_late_listeners():
    controller, heard = AbortController(), []
    undo = controller.signal.on_abort(lambda: heard.append("undone"))
    undo()
    undo()
    controller.signal.on_abort(lambda: heard.append("early"))
    controller.abort("stop")
    controller.abort("again")
    controller.signal.on_abort(lambda: heard.append("late"))
    await controller.signal.wait()
    assert heard == ["early", "late"] and controller.signal.reason == "stop"


async def test_replies_of_one_model_overlap_and_another_model_waits_for_all_of_them_and_is_told():
    line = Line()
    for name in ("a", "b"):
        line.enter(name, name, capacity=4, model="small")
    line.enter("c", "c", capacity=4, model="large")
    assert line.having_a_turn() == ["a", "b"]
    assert (line.told["c"], line.behind["c"]) == ([1], ["small"])
    line.leave("a")
    assert line.having_a_turn() == ["b"]
    line.leave("b")
    assert line.having_a_turn() == ["c"]


async def test_nobody_keeps_another_model_waiting_by_coming_again():
    line = Line()
    line.enter("a", "a", capacity=4, model="small")
    line.enter("large", "b", capacity=4, model="large")
    for number in range(5):
        line.enter(f"small {number}", f"c{number}", capacity=4, model="small")
    assert line.having_a_turn() == ["a"]
    line.leave("a")
    assert line.having_a_turn() == ["large"]
    line.leave("large")
    assert line.having_a_turn() == [f"small {number}" for number in range(4)]
