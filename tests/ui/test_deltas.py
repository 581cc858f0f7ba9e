"""Chunks made into deltas: nothing lost, nothing twice, as few as possible."""

from backend.chunks import Chunk, Payload, Progress, StateChange, Text
from backend.states import Reason, State
from ui.deltas import Deltas


def chunk(seq: int, data: Payload, offset: int = 0, attempt: str = "a1") -> Chunk:
    kind = {Text: "text", Progress: "progress", StateChange: "state"}[type(data)]
    return Chunk("c1", "m1", attempt, seq, offset, kind, data)  # type: ignore[arg-type]


def collected(*chunks: Chunk) -> list[dict]:
    deltas = Deltas()
    for each in chunks:
        deltas.add(each)
    return deltas.drain()


def test_text_that_follows_directly_becomes_one_delta():
    [delta] = collected(chunk(3, Text("Hel", (1,)), 10), chunk(4, Text("lo", (2,)), 13))
    assert (delta["first"], delta["last"], delta["offset"], delta["text"]) == (3, 4, 10, "Hello")
    assert "tokens" not in delta


def test_only_the_newest_progress_travels_and_without_what_nothing_filled():
    [delta] = collected(chunk(0, Progress("prefill", 0.1, layer=1)), chunk(1, Progress("decode", 0.2, layer=2)))
    assert delta["progress"] == {"stage": "decode", "elapsed_s": 0.2, "layer": 2}


def test_the_state_it_ends_in_comes_with_the_last_text():
    end = StateChange(State.COMPLETE, Reason.STOP, usage={"total_tokens": 3})
    [delta] = collected(chunk(0, StateChange(State.STREAMING)), chunk(1, Text("Hi")), chunk(2, end, 2))
    assert (delta["text"], delta["last"]) == ("Hi", 2)
    assert delta["state"] == {"state": "complete", "reason": "stop", "usage": {"total_tokens": 3}}


def test_a_gap_begins_a_new_delta_so_that_the_page_can_see_it():
    deltas = collected(chunk(0, Text("a")), chunk(2, Text("c"), 2))
    assert [(d["first"], d["last"], d["text"]) for d in deltas] == [(0, 0, "a"), (2, 2, "c")]


def test_attempts_do_not_mix():
    deltas = collected(chunk(0, Text("a")), chunk(0, Text("x"), attempt="a2"), chunk(1, Text("b"), 1))
    assert {d["attempt_id"]: d["text"] for d in deltas} == {"a1": "ab", "a2": "x"}


def test_what_was_taken_does_not_come_again():
    deltas = Deltas()
    deltas.add(chunk(0, Text("a")))
    deltas.drain()
    deltas.add(chunk(1, Text("b"), 1))
    [delta] = deltas.drain()
    assert (delta["first"], delta["text"]) == (1, "b")
    assert deltas.drain() == []
