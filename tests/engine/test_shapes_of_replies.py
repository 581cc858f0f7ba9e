"""Replies that have to have a shape, JSON by a schema and tool calls, on real models whatever they would rather say."""

import json

import pytest

from engine import loader
from engine.errors import Unsupported
from engine.events import Finished, Generate, RunFailed, Sampling, Token, decode_command, decode_event, encode
from engine.prompt import prompt_tokens
from tests.engine.replies import batch, reply
from tests.engine.tool_models import TEMPLATE, thinking_model, with_template

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "rice"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "Tells the weather.", "parameters": {
    "type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"],
    "additionalProperties": False, "$defs": {"city": {"enum": ["Paris", "Xi'an"]}},
}}  # fmt: skip
TIME = {"name": "time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOLS = ({"type": "function", "function": TIME}, {"type": "function", "function": WEATHER})
STRICT = ({"type": "function", "function": TIME | {"strict": True}},)


@pytest.fixture(scope="module")
def default(default_model_dir, tmp_path_factory):
    """The default model, taught by its template that there are tools; its marks are several tokens each."""
    model = loader.load(with_template(default_model_dir, tmp_path_factory.mktemp("m") / "tools"))
    yield model
    model.close()


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    model = loader.load(thinking_model(tmp_path_factory.mktemp("m") / "thinker"))
    yield model
    model.close()


def run(model, text="Describe a person.", max_tokens=120, seed=1, temperature=0.0, **wishes) -> list:
    bias, stop = wishes.pop("logit_bias", ()), wishes.pop("stop", ())
    sampling = Sampling(temperature, max_tokens=max_tokens, seed=seed, stop=stop, logit_bias=bias)
    messages = wishes.pop("messages", ({"role": "user", "content": text},))
    request = decode_command(encode(Generate("r", messages, sampling, apart=True, **wishes)))
    assert isinstance(request, Generate)
    events = reply(batch(model), request)
    if failed := [event for event in events if isinstance(event, RunFailed)]:
        assert failed[0].kind == "Unsupported"
        raise Unsupported(failed[0].message, failed[0].param)
    return [decode_event(encode(event)) for event in events if isinstance(event, Token | Finished)]


def text(events: list) -> str:
    return "".join(event.text for event in events)


def calls(events: list) -> list[dict]:
    return [call["function"] for event in events for call in event.calls]


@pytest.mark.parametrize(("model", "temperature"), [("default", 0.0), ("thinker", 1.5), ("thinker", 0.0)])
def test_an_answer_matches_the_schema_and_then_ends(model, temperature, request):
    events = run(request.getfixturevalue(model), schema=PERSON, temperature=temperature, max_tokens=2000)
    person = json.loads(text(events))
    assert list(person) == ["name", "age", "likes"] and 0 <= person["age"] <= 120
    assert set(person["likes"]) <= {"tea", "rice"} and len(person["name"]) <= 12
    assert events[-1].reason == "stop"


def test_a_random_model_writes_what_the_schema_leaves_it_no_choice_about(thinker):
    events = run(thinker, schema={"const": {"a": [1, True, "é塔"]}}, max_tokens=2000)
    assert json.loads(text(events)) == {"a": [1, True, "é塔"]} and events[-1].reason == "stop"


def test_a_thought_comes_before_the_json_and_is_told_apart(thinker):
    tokenizer = thinker.tokenizer
    opened = ({"role": "user", "content": "x"}, {"role": "user", "content": "<think>"})
    assert tokenizer.has_thinking
    for messages in (opened, opened[:1]):
        for seed in range(3):
            events = run(thinker, schema={"const": [1]}, messages=messages, seed=seed, temperature=1.0, max_tokens=4000)
            assert json.loads(text(events)) == [1] and events[-1].reason == "stop"
            if messages is opened:
                assert any(event.thought for event in events)


def test_a_schema_that_cannot_be_held_to_is_refused_by_its_keyword(default):
    with pytest.raises(Unsupported, match="uniqueItems") as refusal:
        run(default, schema={"type": "array", "uniqueItems": True})
    assert refusal.value.param == "response_format"
    with pytest.raises(Unsupported, match="uniqueItems"):
        run(default, schema={"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}})


@pytest.mark.parametrize("model", ["default", "thinker"])
def test_a_call_that_must_come_comes_and_matches_its_tool(model, request):
    model = request.getfixturevalue(model)
    for choice in ("weather", "required"):
        events = run(model, tools=TOOLS, tool_choice=choice, max_tokens=2000, temperature=0.7)
        (call,) = calls(events)
        arguments = json.loads(call["arguments"])
        assert call["name"] == choice or choice == "required"
        assert arguments.get("city", "Paris") in ("Paris", "Xi'an") and events[-1].reason == "stop"
        assert "tool_call" not in text(events)


def test_a_call_that_a_model_begins_by_itself_is_made_right(thinker):
    (start,) = thinker.tokenizer.tool_call_start_tokens
    said = run(thinker, tools=TOOLS, parallel_calls=False, logit_bias=((start, 100.0),), max_tokens=2000)
    (call,) = calls(said)
    assert call["name"] in ("time", "weather") and json.loads(call["arguments"]) is not None
    assert said[-1].reason == "stop"


def test_calls_and_their_results_are_given_to_the_model_to_read(default):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    messages = (
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "Rain.", "tool_call_id": "c1"},
    )
    read = default.tokenizer.decode(prompt_tokens(default, Generate("r", messages, tools=TOOLS)))
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in read
    assert "tool\nRain." in read and '"description": "Tells the weather."' in read


def test_a_model_without_tools_says_so_and_names_the_field(default_model_dir):
    model = loader.load(default_model_dir)
    for wishes, param in (
        ({"tools": TOOLS}, "tools"),
        ({"messages": ({"role": "tool", "content": "x", "tool_call_id": "c"},)}, "messages"),
    ):
        with pytest.raises(Unsupported) as refusal:
            run(model, **wishes)
        assert refusal.value.param == param
    model.close()


def test_calls_in_a_form_of_the_models_own_are_read_but_cannot_be_forced(tmp_path):
    model = loader.load(thinking_model(tmp_path / "m", TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]")))
    for wishes, param in (
        ({"tool_choice": "required"}, "tool_choice"),
        ({"schema": PERSON}, "response_format"),
        ({"tools": STRICT}, "tools.0.function.strict"),
    ):
        with pytest.raises(Unsupported) as refusal:
            run(model, **{"tools": TOOLS} | wishes)
        assert refusal.value.param == param
    model.close()


def test_the_stop_string_that_ended_a_reply_is_told(default):
    whole = text(run(default, max_tokens=12))
    stop = whole[3:9]
    assert run(default, max_tokens=12, stop=("###", stop))[-1].stop == stop
    assert run(default, max_tokens=3)[-1].stop is None


def test_an_answer_that_a_client_began_is_no_part_of_the_thought_that_the_template_begins(thinker, tmp_path):
    template = TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    asked = {"messages": ({"role": "user", "content": "x"},), "apart": True}
    model = loader.load(with_template(thinker.path, tmp_path / "begins", template))
    try:
        prompt, tokenizer = prompt_tokens(model, Generate("r", **asked)), model.tokenizer
        assert tokenizer.decode(prompt).endswith("<think>\n")
        begun = prompt_tokens(model, Generate("r", prefix_text="The answer", **asked))
        assert tokenizer.decode(begun[len(prompt) :]) == "\n</think>\n\n"
        own = Generate("r", prefix_text="Hm.</think>The answer", **asked)
        assert prompt_tokens(model, own) == prompt
        assert not any(event.thought for event in run(model, prefix_text="The answer", max_tokens=8))
    finally:
        model.close()


def test_a_reply_that_is_known_by_its_text_alone_goes_on_from_there(default):
    half, whole = run(default, "Tell me of pagodas.", 12), run(default, "Tell me of pagodas.", 24)
    rest = run(default, "Tell me of pagodas.", 12, prefix_text=text(half))
    assert text(half) + text(rest) == text(whole)
    assert rest[-1].prompt_tokens == half[-1].prompt_tokens + half[-1].completion_tokens
