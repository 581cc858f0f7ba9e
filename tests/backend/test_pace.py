"""Estimates are ranges from measured rates, or nothing; a reply's course is what was journalled."""

import math
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend import meter as meter_module
from backend.meter import Meter
from backend.pace import Pace, Track, course, remaining
from engine.events import Progress, Token
from tests.backend.conftest import House


class Clock:
    """Time as the test says it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(meter_module, "time", clock)
    return clock


def say(meter: Meter, stage: str, done: int, total: int, layer: int = 0):
    event = Progress("r", stage, done, total, layer, 10, 0, 0, 0)
    meter.see(event)
    return meter.progress(event)


def test_nothing_is_estimated_before_something_was_measured(clock: Clock):
    told = say(Meter(), "prefill", 0, 1000)
    assert told.eta_low_s is None and told.eta_high_s is None
    assert remaining(10, [], []) is None


def test_the_first_token_is_estimated_from_the_prompt_read_so_far(clock: Clock):
    meter = Meter()
    say(meter, "prefill", 0, 1000)
    clock.now += 10
    told = say(meter, "prefill", 200, 1000)  # 20 tokens a second, 800 to go
    assert told.eta_low_s == pytest.approx(36) and told.eta_high_s == pytest.approx(44)


def test_layers_within_a_pass_count_once_a_pass_has_shown_its_size(clock: Clock):
    meter = Meter()
    say(meter, "prefill", 0, 1000)
    clock.now += 10
    say(meter, "prefill", 200, 1000)
    clock.now += 5
    told = say(meter, "prefill", 200, 1000, layer=5)  # half of the next 200
    assert told.eta_high_s == pytest.approx(1.1 * 700 / 20)


def test_an_earlier_reply_lends_its_rate_until_there_is_an_own_one(clock: Clock):
    meter = Meter(Pace([{"prefill_tokens_per_s": 50.0}, None, {}]))
    assert say(meter, "prefill", 0, 500).eta_high_s == pytest.approx(11)


def test_a_whole_reply_is_estimated_only_against_a_limit_that_somebody_set(clock: Clock):
    for limit, known in ((None, False), (100, True)):
        meter = Meter()
        meter.asked(limit)
        say(meter, "decode", 0, 100)
        clock.now += 20
        told = say(meter, "decode", 2, 100)
        assert (told.eta_low_s is not None) == known
    assert told.eta_low_s == pytest.approx(0.9 * 980) and told.eta_high_s == pytest.approx(1.1 * 980)


def test_a_pace_that_changes_makes_the_range_wider():
    track = Track()
    for second in range(10):
        track.mark(second, second)
    for second in range(10, 20):
        track.mark(second, 10 + 0.1 * (second - 10))
    whole, newest = track.rates()
    assert newest < whole


def test_the_time_spent_thinking_is_measured(clock: Clock):
    meter = Meter()
    for text in ("<thi", "nk>", "Hm. "):
        meter.see(Token("r", 1, text))
    clock.now += 180
    meter.see(Token("r", 1, "</think>Yes."))
    assert say(meter, "decode", 4, 100).thinking_s == pytest.approx(180)
    assert meter.timings()["thinking_s"] == pytest.approx(180)


STEPS = st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 5000), st.integers(0, 12)), max_size=60)


@given(
    stage=st.sampled_from(["prefill", "decode"]),
    steps=STEPS,
    total=st.integers(0, 50_000),
    earlier=st.lists(st.floats(1e-6, 1e9), max_size=5),
)
def test_however_a_reply_goes_its_estimate_is_a_range_of_seconds_or_nothing(stage, steps, total, earlier):
    """Seconds between two events, tokens done in them, the layer of the next: also standstill, leaps, and more tokens
    than were announced."""
    clock = Clock()
    with patch.object(meter_module, "time", clock):
        rates = [{"prefill_tokens_per_s": rate, "tokens_per_s": rate} for rate in earlier]
        meter = Meter(Pace(rates))
        meter.asked(max_tokens=total)
        done = 0
        for seconds, tokens, layer in steps:
            clock.now += seconds
            done += tokens
            told = say(meter, stage, done, total, layer)
            if told.eta_low_s is None or told.eta_high_s is None:
                assert told.eta_low_s is told.eta_high_s is None
            else:
                assert 0 <= told.eta_low_s <= told.eta_high_s < math.inf
        if done < total:
            clock.now += 1
            last = say(meter, stage, total, total)
            assert last.eta_low_s in (0, None) and last.eta_high_s in (0, None), "at the end nothing is left"


@given(rate=st.floats(0.01, 1000), total=st.integers(5, 200), stage=st.sampled_from(["prefill", "decode"]))
def test_the_estimate_of_a_steady_reply_shrinks_to_nothing_and_holds_what_comes(rate, total, stage):
    clock = Clock()
    with patch.object(meter_module, "time", clock):
        meter = Meter()
        meter.asked(max_tokens=total)
        before, least = math.inf, 0.05  # seconds are told in tenths
        for done in range(total + 1):
            told = say(meter, stage, done, total)
            if told.eta_low_s is not None and told.eta_high_s is not None:
                assert told.eta_high_s <= before
                assert told.eta_low_s - least <= (total - done) / rate <= told.eta_high_s + least
                before = told.eta_high_s
            clock.now += 1 / rate
        assert before in (0, math.inf), "nothing is left, or all was over too soon to tell"


def test_text_that_does_not_think_has_no_thinking_time(clock: Clock):
    meter = Meter()
    meter.see(Token("r", 1, "The tag </think> ends thoughts."))
    assert "thinking_s" not in meter.timings()


async def test_the_course_of_a_reply_is_what_progress_told(house: House):
    sent, call = await house.send(house.conversation(), "q")
    await call.prefill(3, 7)
    await call.token("a")
    for done in (1, 2):
        await call.say(Progress(call.run_id, "decode", done, 9, 3, 30, 10 * done, done, 100 * done))
        await call.token(" b")
    await call.finish()
    points = course(house.gateway.chunks(sent.attempt_id))
    assert (points[0]["stage"], points[0]["tokens_done"]) == ("prefill", 3)
    assert points[-1]["stage"] == "decode" and points[-1]["expert_hits"] == 20


async def test_silence_is_known_of_what_runs_and_not_of_what_waits(house: House):
    conversation = house.conversation()
    first, call = await house.send(conversation, "q")
    waiting = house.gateway.send(conversation, "r-2", "next")
    assert set(house.gateway.silences(conversation)) == {first.attempt_id}
    assert waiting.attempt_id not in house.gateway.silences(conversation)
    await call.finish()
    await (await house.source.next_call()).finish()
