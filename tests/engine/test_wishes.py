"""What a request may wish of the engine beyond its messages, on the real default model."""

import pytest

from engine import loader
from engine.events import Finished, RunFailed, Token, decode_event, encode
from engine.loader import PagedModel
from tests.engine.replies import ask, batch, reply


@pytest.fixture(scope="module")
def model(default_model_dir) -> PagedModel:
    model = loader.load(default_model_dir)
    yield model
    model.close()


def run(model: PagedModel, **wishes) -> list:
    """The events of a short greedy reply, as they cross the pipe."""
    request = ask(wishes.pop("text", "Say hello."), **{"max_tokens": 4, **wishes.pop("sampling", {})}, **wishes)
    return [decode_event(encode(event)) for event in reply(batch(model), request)]


def tokens(events: list) -> list[Token]:
    return [event for event in events if isinstance(event, Token)]


def test_log_probabilities_are_told_where_asked_and_the_greedy_token_is_the_likeliest(model):
    said = tokens(run(model, sampling={"logprobs": 3}))
    for token in said:
        chosen, *likeliest = token.logprobs
        assert chosen[0] == token.token and chosen[2] <= 0 and len(likeliest) == 3
        assert tuple(likeliest[0]) == tuple(chosen)
        assert [one[2] for one in likeliest] == sorted((one[2] for one in likeliest), reverse=True)
    assert all(len(token.logprobs) == 1 for token in tokens(run(model, sampling={"logprobs": 0})))
    assert all(token.logprobs == () for token in tokens(run(model)))


def test_a_token_with_a_bias_of_minus_100_never_comes(model):
    first = tokens(run(model))[0].token
    others = tokens(run(model, sampling={"logit_bias": ((first, -100.0),)}))
    assert first not in [token.token for token in others]


def test_a_raw_prompt_goes_on_without_a_template(model):
    (end,) = [event for event in run(model, raw="Once upon a") if isinstance(event, Finished)]
    assert end.prompt_tokens == len(model.tokenizer.encode("Once upon a"))


def test_a_stop_string_across_tokens_ends_the_reply_and_is_not_shown(model):
    def text(events: list) -> str:
        return "".join(event.text for event in events if isinstance(event, Token | Finished))

    whole = text(run(model, sampling={"max_tokens": 12}))
    stop = whole[3:9]
    events = run(model, sampling={"max_tokens": 12, "stop": (stop,)})
    assert text(events) == whole[: whole.index(stop)] and events[-1].reason == "stop"


def test_what_the_template_does_not_know_is_refused_by_name(model):
    (refusal,) = run(model, template={"reasoning_effort": "low"})
    assert isinstance(refusal, RunFailed)
    assert (refusal.kind, refusal.param) == ("Unsupported", "reasoning_effort")


def test_a_prompt_that_is_too_long_is_refused_before_any_work(model):
    (refusal,) = run(model, text="word " * (model.sizes.context_tokens + 1))
    assert isinstance(refusal, RunFailed)
    assert refusal.kind == "PromptTooLong" and "tokens" in refusal.message
