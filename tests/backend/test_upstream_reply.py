"""What other servers send, in every shape they were seen to send it, cut at any byte."""

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.abort import AbortController
from backend.sources import Delta, Ended, Reading, SourceInterrupted
from backend.sse import Comment, Decoder, Event, TooLong
from backend.upstream import Upstream
from backend.upstream_reply import Reply
from backend.upstream_settings import UpstreamSettings
from engine.events import Generate, RunFailed
from tests.backend.other_server import Answer, delta, other_server, sse

HELLO = "Grüß 你好 👋"
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
ODD = "a\u2028b\u2029c\u0085d\u000be\u000cf"
ERROR = {"error": {"message": "Out of memory.", "type": "server_error"}}
GOOD = sse(delta(HELLO), delta("!", "stop"), USAGE, "[DONE]")

LINE = st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")
SEVERAL = b'data: {"choices": [{"delta":\ndata: {"content": "x"},\ndata: "finish_reason": "stop"}]}\n\n'
WHOLE = {"choices": [{"message": {"content": HELLO}, "finish_reason": "stop"}]}
STRANGE = ({"choices": None}, {"choices": [None]}, {"choices": [{"delta": None}]})

# name -> (body, text, ending): "stop", "length", a part of the failure's words, or "interrupted".
CASES = {
    "lf": (GOOD, HELLO + "!", "stop"),
    "crlf": (GOOD.replace(b"\n", b"\r\n"), HELLO + "!", "stop"),
    "cr": (GOOD.replace(b"\n", b"\r"), HELLO + "!", "stop"),
    "mixed line ends": (sse(delta("a"), end="\r\n\n") + sse(delta("b", "stop"), end="\r\r\n"), "ab", "stop"),
    "no space": (GOOD.replace(b"data: ", b"data:"), HELLO + "!", "stop"),
    "bom": (b"\xef\xbb\xbf" + GOOD, HELLO + "!", "stop"),
    "comments": (b": hi\n\n:\n" + GOOD.replace(b"\n\n", b"\n\n: ping\n\n"), HELLO + "!", "stop"),
    "other fields": (b"retry: 10\n\nid: 7\nevent: message\n" + GOOD, HELLO + "!", "stop"),
    "empty data": (b"data:\n\ndata: \n\n" + GOOD, HELLO + "!", "stop"),
    "several data lines": (SEVERAL, "x", "stop"),
    "no blank lines between": (sse(delta("a"), delta("b", "stop"), "[DONE]", end="\n"), "ab", "stop"),
    "odd line separators inside": (sse(delta(ODD, "stop"), "[DONE]"), ODD, "stop"),
    "no done": (sse(delta("a"), delta("", "stop")), "a", "stop"),
    "no finish_reason": (sse(delta("a"), "[DONE]"), "a", "stop"),
    "no last blank line": (sse(delta("a")) + b"data: [DONE]", "a", "stop"),
    "length": (sse(delta("a", "length"), "[DONE]"), "a", "length"),
    "error in the middle": (sse(delta("a"), ERROR, delta("b", "stop")), "a", "Out of memory."),
    "error event": (sse(delta("a")) + b'event: error\ndata: {"message": "Gone."}\n\n', "a", "Gone."),
    "error as text": (sse(delta("a"), {"error": "Sorry."}), "a", "Sorry."),
    "eof without an end": (sse(delta("a"), delta("b")), "ab", "interrupted"),
    "eof in a line": (sse(delta("a")) + sse(delta("b", "stop"))[:-9], "a", "interrupted"),
    "empty": (b"", "", "interrupted"),
    "only comments": (b": ping\n\n: ping\n\n", "", "interrupted"),
    "json": (json.dumps(WHOLE).encode(), HELLO, "stop"),
    "json error": (json.dumps(ERROR).encode(), "", "Out of memory."),
    "half of a json": (b' \n{"choices": [{"message": {"con', "", "interrupted"),
    "web page": (b"<!doctype html><html><title>Welcome</title></html>", "", "web page"),
    "not json": (sse(delta("a"), "Internal Server Error"), "a", "no JSON"),
    "not an object": (sse(delta("a"), [1, 2]), "a", "piece of a reply"),
    "strange types": (sse(*STRANGE, delta("a", "stop")), "a", "stop"),
    "thoughts": (
        sse(delta(reasoning_content="Hm"), delta(reasoning_content="m."), delta("Hi", "stop")),
        "<think>\nHmm.\n</think>\n\nHi",
        "stop",
    ),
    "thoughts otherwise": (sse(delta(reasoning="Hm"), delta(None, "stop")), "<think>\nHm\n</think>\n\n", "stop"),
}  # fmt: skip


def cut(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    return [body[a:b] for a, b in pairwise(edges)]


def outcome(events: list, interrupted: bool) -> tuple[str, str]:
    text = "".join(event.text for event in events if isinstance(event, Delta))
    if interrupted:
        return text, "interrupted"
    last = events[-1]
    return text, last.message if isinstance(last, RunFailed) else last.reason


def read(pieces: list[bytes]) -> tuple[str, str]:
    reply, events = Reply("r", "Other"), []
    for piece in pieces:
        events += reply.feed(piece)
        if reply.done or reply.failed:
            break
    try:
        events += reply.close()
    except SourceInterrupted:
        return outcome(events, True)
    return outcome(events, False)


def check(name: str, seen: tuple[str, str]) -> None:
    _, text, ending = CASES[name]
    assert seen[0] == text and ending in seen[1]


@pytest.mark.parametrize("name", CASES)
def test_every_single_cut_gives_the_same_reply(name):
    body = CASES[name][0]
    for at in range(len(body) + 1):
        check(name, read([body[:at], body[at:]]))
    check(name, read([body[i : i + 1] for i in range(len(body))]))


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(CASES)), places=st.lists(st.integers(0, 5000), max_size=40))
def test_any_cuts_give_the_same_reply(name, places):
    check(name, read(cut(CASES[name][0], places)))


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(CASES)), places=st.lists(st.integers(0, 5000), max_size=12))
def test_the_same_over_a_real_connection(name, places):
    async def ask() -> tuple[str, str]:
        async with other_server() as other:
            other.answers = [Answer(cut(CASES[name][0], places))]
            upstream = Upstream(UpstreamSettings("Other", other.url))
            events, interrupted = [], False
            try:
                async for event in upstream.source("small").run(Generate("r", ()), AbortController().signal):
                    events.append(event)
            except SourceInterrupted:
                interrupted = True
            await upstream.close()
            return outcome(events, interrupted)

    check(name, asyncio.run(ask()))


@settings(max_examples=300, deadline=None)
@given(
    datas=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1), max_size=6
    ),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    places=st.lists(st.integers(0, 3000), max_size=30),
)
def test_the_decoder_gives_back_what_was_written(datas, end, places):
    body = "".join(f"data: {data}{end}{end}" for data in datas).encode()
    decoder = Decoder()
    seen = [item for piece in cut(body, places) for item in decoder.feed(piece)] + decoder.end()
    assert seen == [Event(data) for data in datas]


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=400), places=st.lists(st.integers(0, 400), max_size=20))
def test_any_bytes_at_all_end_in_words_the_same_however_they_are_cut(body, places):
    assert read(cut(body, places)) == read([body])


def test_lines_without_an_end_are_refused_before_they_fill_the_memory():
    decoder = Decoder(limit=1000)
    with pytest.raises(TooLong):
        for _ in range(2000):
            decoder.feed(b"x")
    decoder = Decoder(limit=1000)
    with pytest.raises(TooLong):
        for _ in range(2000):
            decoder.feed(b"data: x\n")
    for begin in (b"data: ", b"{"):
        reply = Reply("r", "Other", limit=1000)
        events = [event for piece in [begin, *[b"x" * 100] * 20] for event in reply.feed(piece)]
        assert isinstance(events[0], RunFailed) and "does not end" in events[0].message


def test_a_huge_line_in_tiny_pieces_takes_no_quadratic_time():
    decoder = Decoder()
    for _ in range(200_000):
        assert decoder.feed(b"data: 0123456789") == []
    (event,) = decoder.feed(b"\n\n")
    assert isinstance(event, Event) and len(event.data) == 200_000 * 16 - 6


def test_what_servers_say_of_their_prefill_becomes_progress():
    progress = {"choices": [], "prompt_progress": {"total": 9, "cache": 0, "processed": 4, "time_ms": 1}}
    pagoda = {"choices": [], "pagoda": {"progress": {"stage": "prefill", "tokens_done": 6, "tokens_total": 9}}}
    body = b": keepalive 2/9\n\n" + sse(progress, pagoda, delta("a", "stop"), USAGE, "[DONE]")
    events = list(Reply("r", "Other").feed(body))
    assert [event for event in events if isinstance(event, Reading)] == [Reading(2, 9), Reading(4, 9), Reading(6, 9)]
    assert Decoder().feed(b": keepalive 2/9\n\n") == [Comment("keepalive 2/9")]


def test_the_counts_are_the_servers_own_or_none():
    reply = Reply("r", "Other")
    list(reply.feed(sse(delta("a", "stop"), USAGE | {"timings": {"prompt_ms": 500, "predicted_ms": 250.0}}, "[DONE]")))
    assert list(reply.close()) == [Ended("stop", 3, 2, None, 0.5, 0.25)]
    reply = Reply("r", "Other")
    thought = {"usage": USAGE["usage"] | {"completion_tokens_details": {"reasoning_tokens": 1}}}
    list(reply.feed(sse(delta("a", "stop"), thought, "[DONE]")))
    assert list(reply.close()) == [Ended("stop", 3, 2, reasoning_tokens=1)]
    reply = Reply("r", "Other")
    list(reply.feed(sse(delta("a", "stop"), "[DONE]")))
    assert list(reply.close()) == [Ended("stop")]


def test_tool_calls_are_kept_for_those_who_asked():
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}
    events = list(Reply("r", "Other").feed(sse(delta(None, "tool_calls", tool_calls=[call]))))
    assert events == [Delta("", extra={"tool_calls": [call]})]
