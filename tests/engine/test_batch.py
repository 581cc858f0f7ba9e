"""Replies made together: each says what it would say alone, whoever comes, goes or fails beside it."""

import random
import threading
from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import batch as batches
from engine import loader
from engine.errors import DiskError
from engine.events import Finished, Progress, RunFailed, Token
from engine.synth import synthesise
from tests.engine.conftest import TINY
from tests.engine.replies import ask, batch, end_of, reply, text_of, tokens_of
from tests.engine.tiny_checkpoints import save, tiny_model
from tests.engine.tiny_configs import tiny_config

# Whole KV on the host and on MLX, latent KV, sliding windows, chunks, recurrences, convolutions.
FAMILIES = (
    "olmoe", "deepseek_v3", "deepseek_v32", "gpt_oss", "llama4", "qwen3_next", "jamba", "lfm2_moe", "deepseek_v41",
)  # fmt: skip
TEXT = "What grows in the shade of the old wall when nobody has watered it for many weeks and the summer is dry"


@pytest.fixture(autouse=True, scope="module")
def without_compilation():
    """On a CPU, mx.compile starts a C++ compiler: seconds a function, and the models have dozens."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Tiny models by family, `quantised` for one that the host's kernels know, with room for half of their experts."""
    models = []

    @cache
    def load(family: str, experts: float | str = 0.5):
        folder: Path = tmp_path_factory.mktemp("models") / family
        if family == "quantised":
            synthesise(folder, "qwen3-moe", **TINY)
        else:
            text = tiny_config(family).get("text_config")
            changes = {"text_config": text | {"vocab_size": 300}} if text else {}
            model, config = tiny_model(family, vocab_size=300, **changes)
            save(folder, model, config)
        models.append(loader.load(folder, expert_bytes=experts))
        return models[-1]

    yield load
    for model in models:
        model.close()


def question(number: int, words: int = 4) -> str:
    known = TEXT.split()
    return " ".join(known[(number * 5 + i) % len(known)] for i in range(words))


def together(replies, requests) -> list[list]:
    said = [[] for _ in requests]
    for request, events in zip(requests, said, strict=True):
        replies.add(request, events.append)
    replies.finish()
    return said


@pytest.mark.parametrize("family", ("quantised", *FAMILIES))
def test_each_of_several_replies_is_what_it_would_be_alone(opened, family):
    model = opened(family)
    requests = [ask(question(n, 3 + 9 * n), f"r{n}", max_tokens=6 + 5 * n) for n in range(4)]
    requests[2] = ask(question(2, 9), "r2", max_tokens=12, temperature=0.9, top_p=0.9, seed=5)
    alone = [reply(batch(model), request) for request in requests]
    said = together(batch(model), requests)
    for one, other in zip(alone, said, strict=True):
        assert tokens_of(one) == tokens_of(other) and text_of(one) == text_of(other)
        assert end_of(one).reason == end_of(other).reason


def test_each_has_stop_strings_and_a_limit_of_its_own(opened):
    model = opened("quantised")
    requests = [ask(question(n), f"r{n}", max_tokens=24) for n in range(3)]
    texts = [text_of(reply(batch(model), request)) for request in requests]
    ends = [text[len(text) // 2 : len(text) // 2 + 3] for text in texts]
    requests[0] = ask(question(0), "r0", max_tokens=24, stop=(ends[0],))
    requests[1] = ask(question(1), "r1", max_tokens=5, stop=(ends[0],))
    said = together(batch(model), requests)
    assert text_of(said[0]) == texts[0][: texts[0].index(ends[0])]
    assert len(tokens_of(said[1])) <= 5 and texts[1].startswith(text_of(said[1]))
    assert text_of(said[2]) == texts[2], "another's stop string means nothing to it"


def test_with_room_for_one_tokens_experts_alone_several_still_go_together(opened):
    model = opened("quantised", "least")
    requests = [ask(question(n), f"r{n}") for n in range(3)]
    alone = [tokens_of(reply(batch(model), request)) for request in requests]
    assert [tokens_of(events) for events in together(batch(model), requests)] == alone


def test_experts_are_read_once_for_all(opened):
    model = opened("quantised", 0.25)
    requests = [ask(question(1), f"r{n}", max_tokens=24) for n in range(4)]

    def bytes_read(work) -> int:
        before = model.stats().bytes_read
        work()
        return model.stats().bytes_read - before

    replies, said = batch(model), []
    reply(replies, requests[0])  # from now on the prompt is known
    one = bytes_read(lambda: reply(replies, requests[0]))
    joined = bytes_read(lambda: said.extend(together(replies, requests)))
    assert 0.8 * one < joined < 1.2 * one, "four that say the same need what one needs"
    shares = [end_of(events).bytes_read for events in said]
    assert 0.9 * joined < sum(shares) <= joined


ARRIVAL = st.tuples(
    st.integers(0, 7),  # which question
    st.integers(0, 6),  # after so many steps
    st.integers(1, 12),  # as many tokens at most
    st.one_of(st.none(), st.integers(0, 8)),  # stopped after so many steps
    st.booleans(),  # drawn, not greedy
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrivals=st.lists(ARRIVAL, min_size=1, max_size=6), most=st.integers(1, 4), piece=st.integers(1, 20))
def test_whoever_comes_and_goes_nobodys_tokens_change(opened, monkeypatch, arrivals, most, piece):
    come_and_go(opened("quantised"), monkeypatch, arrivals, most, piece)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_every_kind_of_cache_whoever_comes_and_goes_nobodys_tokens_change(opened, monkeypatch, family):
    draw = random.Random(family)
    stops = (None, None, 2, 5)
    arrivals = [
        (draw.randrange(4), draw.randrange(5), draw.randrange(1, 9), draw.choice(stops), draw.random() < 0.4)
        for _ in range(5)
    ]
    come_and_go(opened(family), monkeypatch, arrivals, most=3, piece=draw.randrange(2, 12))


def come_and_go(model, monkeypatch, arrivals, most: int, piece: int) -> None:
    """Replies as ARRIVAL says, `most` at once, prompts read in pieces; each is compared with itself alone."""
    monkeypatch.setattr(batches, "REPLIES_AT_ONCE", most)
    monkeypatch.setattr(batches, "FIRST_SLICE", piece)
    replies = batch(model)
    waiting, stops, said = [], [], []
    for number, (which, after, limit, stopped, drawn) in enumerate(arrivals):
        more = {"temperature": 0.8, "seed": which} if drawn else {}
        request = ask(question(which, 3 + 2 * which), f"r{number}", max_tokens=limit, **more)
        abort, events = threading.Event(), []
        said.append((request, events, stopped))
        waiting.append((after, request, events, abort))
        if stopped is not None:
            stops.append((after + stopped, abort))
    step = 0
    while waiting or replies.busy:
        for one in [one for one in waiting if one[0] <= step]:
            waiting.remove(one)
            replies.add(one[1], one[2].append, one[3])
        for when, abort in stops:
            if when <= step:
                abort.set()
        replies.step()
        step += 1
    for request, events, stopped in said:
        end = end_of(events)
        assert isinstance(end, Finished)
        got, whole = tokens_of(events), tokens_of(reply(batch(model), request))
        assert got == whole[: len(got)]
        if end.reason != "aborted":
            assert got == whole
        else:
            assert stopped is not None


def test_whoever_stops_is_told_at_the_next_layer_while_the_others_go_on(opened):
    model = opened("quantised")
    replies, aborts = batch(model), [threading.Event() for _ in range(3)]
    said = [[] for _ in aborts]
    requests = [ask(question(n), f"r{n}", max_tokens=12) for n in range(3)]
    for request, events, abort in zip(requests, said, aborts, strict=True):
        replies.add(request, events.append, abort)
    while not all(len(tokens_of(events)) >= 3 for events in said):
        replies.step()
    at_layer, seen = model.watch.at_layer, []

    def stop_one(layer: int) -> None:
        if layer == 1:
            aborts[1].set()
        at_layer(layer)
        seen.append((layer, bool([e for e in said[1] if isinstance(e, Finished)])))

    model.watch.at_layer = stop_one
    replies.step()
    model.watch.at_layer = at_layer
    assert seen == [(0, False), (1, True), (2, True)]
    replies.finish()
    for number in (0, 2):
        assert tokens_of(said[number]) == tokens_of(reply(batch(model), requests[number]))


def test_a_failure_ends_only_the_reply_that_it_is_about(opened):
    model = opened("quantised", 0.25)
    requests = [ask(question(n), f"r{n}", max_tokens=16) for n in range(3)]
    alone = [tokens_of(reply(batch(model), request)) for request in requests]
    replies, said = batch(model), [[] for _ in requests]
    for request, events in zip(requests, said, strict=True):
        replies.add(request, events.append)
    while not all(len(tokens_of(events)) >= 2 for events in said):
        replies.step()
    victim = replies.writing[1]
    step, check = model.next_logits, model._disk.check_unchanged

    def broken(files):
        raise DiskError("this expert cannot be read")

    def only_for_the_victim(tokens, states):
        if any(state is victim.state for state in states):
            model._disk.check_unchanged = broken
        try:
            return step(tokens, states)
        finally:
            model._disk.check_unchanged = check

    object.__setattr__(model, "next_logits", only_for_the_victim)
    replies.finish()
    object.__delattr__(model, "next_logits")
    ends = [end_of(events) for events in said]
    assert isinstance(ends[1], RunFailed) and "cannot be read" in ends[1].message
    for number in (0, 2):
        assert tokens_of(said[number]) == alone[number]


def test_a_long_prompt_lets_those_who_write_go_on_between_its_slices(opened, monkeypatch):
    monkeypatch.setattr(batches, "WAIT_S", 0.0)
    monkeypatch.setattr(batches, "WAIT_PASSES", 0.0)
    model = opened("quantised")
    replies, order = batch(model), []
    replies.add(ask(question(1), "writes", max_tokens=60), order.append)
    while not tokens_of(order):
        replies.step()
    replies.add(ask(question(2, 400), "reads", max_tokens=2), order.append)
    replies.finish()
    begun = next(i for i, e in enumerate(order) if e.run_id == "reads")
    first = next(i for i, e in enumerate(order) if e.run_id == "reads" and isinstance(e, Token))
    between = [e for e in order[begun:first] if e.run_id == "writes" and isinstance(e, Token)]
    assert len(between) >= 20


def test_who_has_no_room_waits_and_who_is_in_goes_on(opened, monkeypatch):
    """States may take next to nothing, so replies are made one after the other: none fails, none changes."""
    model = opened("quantised")
    monkeypatch.setattr(batches.Batch, "_most_bytes", 1)
    monkeypatch.setattr(batches, "GROWTH_TOKENS", 4)
    requests = [ask(question(n), f"r{n}", max_tokens=10) for n in range(3)]
    order = []
    replies = batch(model)
    for request in requests:
        replies.add(request, order.append)
    replies.finish()
    for request in requests:
        events = [event for event in order if event.run_id == request.run_id]
        assert tokens_of(events) == tokens_of(reply(batch(model), request))
    firsts = [next(i for i, e in enumerate(order) if e.run_id == r.run_id and isinstance(e, Token)) for r in requests]
    ends = [next(i for i, e in enumerate(order) if e.run_id == r.run_id and isinstance(e, Finished)) for r in requests]
    assert firsts[1] > ends[0] and firsts[2] > ends[1]


def test_a_reply_that_must_make_room_for_others_goes_on_later_as_if_nothing_had_been(opened, monkeypatch):
    model = opened("quantised")
    monkeypatch.setattr(batches, "GROWTH_TOKENS", 4)
    requests = [ask(question(n), f"r{n}", max_tokens=20) for n in range(2)]
    replies, said = batch(model), [[], []]
    for request, events in zip(requests, said, strict=True):
        replies.add(request, events.append)
    while not all(len(tokens_of(events)) >= 3 for events in said):
        replies.step()
    monkeypatch.setattr(batches.Batch, "_most_bytes", 1)
    while len(replies.writing) > 1:
        replies.step()
    assert len(replies.waiting) == 1
    replies.finish()
    for request, events in zip(requests, said, strict=True):
        assert tokens_of(events) == tokens_of(reply(batch(model), request))


def test_progress_is_each_replys_own(opened):
    model = opened("quantised")
    said = together(batch(model), [ask(question(n), f"r{n}") for n in range(3)])
    for number, events in enumerate(said):
        assert {event.run_id for event in events} == {f"r{number}"}
        assert isinstance(events[0], Progress) and events[0].stage == "prefill"
