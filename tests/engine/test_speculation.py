"""Guessed tokens change nothing but the time; and they stop where they cost too much of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import loader, speculation
from engine.batch import Batch
from engine.draft import load_draft, speaks_like
from engine.speculation import LONGEST, MAY_COST, MEASURE, SETTLE, Speculation
from engine.synth import synthesise
from tests.engine.conftest import TINY
from tests.engine.replies import ask, batch, end_of, reply, text_of, tokens_of


@pytest.fixture(scope="module")
def model(tiny_model):
    model = loader.load(tiny_model, expert_bytes=0.5)
    yield model
    model.close()


def guesses_of(monkeypatch, guess) -> list[tuple[int, int]]:
    """Have all replies guess with `guess(tokens)`; collects (guessed, kept) of each pass."""
    passes = []
    monkeypatch.setattr(Speculation, "guess", lambda self, tokens: guess(list(tokens)))
    monkeypatch.setattr(Speculation, "passed", lambda self, guessed, kept, _: passes.append((guessed, kept)))
    return passes


WISHES = (
    {"max_tokens": 40},
    {"max_tokens": 40, "repetition_penalty": 1.3},
    {"max_tokens": 40, "temperature": 0.9, "top_p": 0.95, "seed": 3},
    {"max_tokens": 40, "logprobs": 2},
)


@pytest.mark.parametrize("wish", WISHES)
def test_right_and_wrong_guesses_give_the_tokens_of_none(model, monkeypatch, wish):
    plain = reply(batch(model), ask("Say it again", **wish))
    right = tokens_of(plain)
    prompt = end_of(plain).prompt_tokens

    def now_right_now_wrong(tokens: list[int]) -> list[int]:
        done = len(tokens) - prompt
        following = right[done : done + done % 6]
        return following if done % 3 else [*following[:1], 7, 8]

    passes = guesses_of(monkeypatch, now_right_now_wrong)
    guessed = reply(batch(model), ask("Say it again", **wish))
    assert tokens_of(guessed) == right and text_of(guessed) == text_of(plain)
    assert [e.logprobs for e in guessed if hasattr(e, "logprobs")] == [
        e.logprobs for e in plain if hasattr(e, "logprobs")
    ]
    assert end_of(guessed).completion_tokens == end_of(plain).completion_tokens
    assert sum(kept for _, kept in passes) >= 8 and any(kept < count for count, kept in passes)


def test_what_was_rejected_leaves_no_trace_in_the_state(model, monkeypatch):
    guesses_of(monkeypatch, lambda tokens: [9, 9, 9, 9])
    replies = batch(model)
    first = reply(replies, ask("Say it again", max_tokens=12))
    rest = reply(
        replies,
        ask("Say it again", max_tokens=12, prefix_tokens=tuple(tokens_of(first)), prefix_text=text_of(first)),
    )
    monkeypatch.undo()
    assert tokens_of(first) + tokens_of(rest) == tokens_of(reply(batch(model), ask("Say it again", max_tokens=24)))
    assert end_of(rest).cached_tokens >= end_of(rest).prompt_tokens - 2


def test_a_stop_string_among_guessed_tokens_ends_the_reply_there(model, monkeypatch):
    whole = reply(batch(model), ask("Say it again", max_tokens=30))
    text, right = text_of(whole), tokens_of(whole)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    prompt = end_of(whole).prompt_tokens
    guesses_of(monkeypatch, lambda tokens: right[len(tokens) - prompt :][:5])
    events = reply(batch(model), ask("Say it again", max_tokens=30, stop=(stop,)))
    assert text_of(events) == text[: text.index(stop)]


def test_it_guesses_what_followed_the_same_words_before(monkeypatch):
    monkeypatch.setattr(speculation, "MAY_COST", 1e9)
    monkeypatch.setattr(speculation, "RISK", 0)
    one = Speculation([[50, 51, 52, 53, 54]])
    for _ in range(SETTLE + MEASURE):
        one.passed(0, 0, 1.0)
    said = [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert one.guess(said) == [4]
    for kept in (1, 2, 4):
        one.passed(kept, kept, 1.0)
    assert one.guess(said) == [4, 5, 6, 1, 2, 3]
    assert one.guess([*said, 50, 51, 52]) == [53, 54], "from an earlier version, and not beyond its end"
    assert one.guess([*said, 50, 51, 52, 99]) == []


@pytest.fixture(scope="module")
def drafts(tiny_model, tmp_path_factory):
    """One that says what the model would say, and one that doesn't."""
    other = synthesise(tmp_path_factory.mktemp("draft") / "other", "qwen3-moe", seed=5, **TINY)
    made = [load_draft(tiny_model), load_draft(other)]
    yield made
    for draft in made:
        draft.close()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("wish", WISHES)
def test_a_draft_that_is_right_or_wrong_changes_no_token(model, drafts, monkeypatch, which, wish):
    monkeypatch.setattr(speculation.Pays, "may_try", lambda *_: True)
    right, passed = [], Speculation.passed

    def noted(self, guessed: int, kept: int, seconds: float) -> None:
        right.append((guessed, kept))
        passed(self, guessed, kept, seconds)

    monkeypatch.setattr(Speculation, "passed", noted)
    guessing = Batch(model, 0, draft=drafts[which])
    for text in ("Say it again", "Say it again, please", "Something else"):  # it follows from one reply to another
        plain = reply(Batch(model, 0, guesses=False), ask(text, **wish))
        right.clear()
        guessed = reply(guessing, ask(text, **wish))
        assert tokens_of(guessed) == tokens_of(plain) and text_of(guessed) == text_of(plain)
        assert any(count for count, _ in right)
        if which == 0 and wish == WISHES[0]:
            assert sum(kept for _, kept in right) > 20, "the same model guesses right"


def test_a_draft_is_not_asked_for_more_than_its_time_may_cost():
    class Slow:
        asked = 0

        def seconds(self, tokens, count):
            return 50.0

        def guess(self, tokens, count):
            self.asked += 1
            return [0] * count

    slow = Slow()
    one = Speculation(draft=slow)
    for number in range(200):
        assert one.guess([number, number + 1, number + 2]) == []
        one.passed(0, 0, 1.0)
    assert slow.asked == 0


def test_a_draft_with_other_tokens_is_found_out(model, drafts, tmp_path):
    assert speaks_like(drafts[1], model)
    other = load_draft(synthesise(tmp_path / "other", "qwen3-moe", **TINY | {"vocab": 700}))
    assert not speaks_like(other, model)
    other.close()


def spent_and_alone(each: float, rights: list[int]) -> tuple[float, float]:
    """The time of a reply whose words repeat, and what it would have taken without guesses. A token alone takes 1, a
    guessed one `each`; so many of each guess are right."""
    one, tokens = Speculation(), [1, 2, 3] * 3
    spent = alone = 0.0
    for right in rights:
        guessed = one.guess(tokens)
        kept = min(right, len(guessed))
        seconds = 1 + each * len(guessed)
        one.passed(len(guessed), kept, seconds)
        spent += seconds
        alone += 1 + kept
        tokens += [1, 2, 3]
    return spent, alone


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, LONGEST), min_size=100, max_size=400), st.floats(0.1, 1.2))
def test_whatever_guesses_cost_the_reply_is_never_much_slower(rights, each):
    spent, alone = spent_and_alone(each, rights)
    assert spent <= alone * (1 + MAY_COST) / (1 - MAY_COST) + LONGEST * each, "but for the last try"


def test_guesses_that_are_right_and_cheap_are_made_and_others_are_not():
    spent, alone = spent_and_alone(0.2, [LONGEST] * 200)
    assert spent < 0.6 * alone
    spent, alone = spent_and_alone(1.0, [0] * 400)
    assert alone < spent < 1.03 * alone
