"""Replies in the form of gpt-oss: told apart whatever the pieces, gone on with, given back to read, held to a shape."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import loader
from engine.events import Finished, Generate, Token
from engine.harmony import for_template, speaks
from engine.harmony_course import harmony_course
from engine.harmony_speech import HarmonySpeech
from engine.prompt import prompt_tokens
from tests.engine.replies import ask, batch, reply
from tests.engine.test_shapes_of_replies import PERSON, TOOLS, calls, run, text
from tests.engine.tool_models import thinking_model

MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
# What the published template does that matters here, with its refusals.
TEMPLATE = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>{% if tools %}<|start|>developer"
    "<|message|>{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}{% if '<|channel|>' in message.content %}{{ raise_exception('channels in content') }}"
    "{% endif %}{% if message.tool_calls %}{% if message.content and message.thinking %}{{ raise_exception('both') }}"
    "{% endif %}{% set call = message.tool_calls[0].function %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ message.thinking or message.content }}<|end|><|start|>assistant to=functions.{{ call.name }}<|channel|>"
    "commentary json<|message|>{{ call.arguments | tojson }}<|call|>{% else %}<|start|>{{ message.role }}<|message|>"
    "{{ message.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
THOUGHT = "<|channel|>analysis<|message|>Hm. "
ANSWER = "<|end|><|start|>assistant<|channel|>final<|message|>It <|rains.\nYes"
CALL = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"at": "塔"}<|call|>'
OTHER_CALL = ' to=functions.look<|channel|>commentary json<|message|>{"at": 1}'
LOOK = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},)


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory):
    model = loader.load(thinking_model(tmp_path_factory.mktemp("m") / "oss", TEMPLATE, MARKS))
    assert speaks(model.tokenizer)
    yield model
    model.close()


def told(pieces: list[str], stop: tuple[str, ...] = (), **wishes) -> tuple[str, str, list[tuple]]:
    """(answer, thought, calls) of these pieces."""
    speech = HarmonySpeech(Generate("r", (), **{"apart": True, "tools": LOOK} | wishes), stop)
    said = [speech.add(piece) for piece in pieces[:-1]] + [speech.finish(pieces[-1])]
    made = [call["function"] for one in said for call in one.calls]
    return (
        "".join(one.text for one in said),
        "".join(one.thought for one in said),
        [(call["name"], json.loads(call["arguments"])) for call in made],
    )


@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        (THOUGHT + ANSWER + "<|return|>", ("It <|rains.\nYes", "Hm. ", [])),
        (THOUGHT, ("", "Hm. ", [])),
        (CALL, ("", "", [("look", {"at": "塔"})])),
        (f"{THOUGHT}<|end|><|start|>assistant{CALL}", ("", "Hm. ", [("look", {"at": "塔"})])),
        (OTHER_CALL, ("", "", [("look", {"at": 1})])),
        ("<|channel|>commentary<|message|>First.<|end|><|start|>assistant<|channel|>final<|message|>Then.",
         ("First.\n\nThen.", "", [])),
        (f"{THOUGHT}<|end|><|start|>assistant<|channel|>analysis<|message|>More.", ("", "Hm. \n\nMore.", [])),
        ("No headers at all <|en", ("No headers at all <|en", "", [])),
        (OTHER_CALL.replace("}", ""), (OTHER_CALL.replace("}", ""), "", [])),
        ("", ("", "", [])),
    ],
)  # fmt: skip
@given(data=st.data())
def test_any_pieces_of_a_reply_say_the_same(whole, parts, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=8)) | {0, len(whole)})
    assert told([whole[a:b] for a, b in pairwise(cuts)] or [""]) == parts


def test_on_a_page_the_thoughts_stand_in_the_text_as_other_models_write_them():
    shown = "<think>\nHm. \n</think>\n\nIt <|rains.\nYes"
    assert told([*(THOUGHT + ANSWER)], apart=False) == (shown, "", [])
    assert told([THOUGHT], apart=False) == ("<think>\nHm. ", "", [])
    offered_none = told([*CALL], apart=False, tools=())
    assert offered_none == (CALL.removesuffix("<|call|>"), "", [])


def test_a_stop_string_is_looked_for_in_the_answer_and_never_in_a_header_or_a_thought():
    stop = ("final", "assistant", "Hm", "rains")
    assert told([*(THOUGHT + ANSWER)], stop) == ("It <|", "Hm. ", [])
    speech = HarmonySpeech(Generate("r", (), apart=True), stop)
    speech.add(THOUGHT + ANSWER)
    assert speech.stopped == "rains"


@pytest.mark.parametrize("seed", range(6))
def test_a_reply_goes_on_from_the_very_token_where_it_stopped(gpt_oss, seed):
    """Whatever it wrote, headers and all, the two halves say what the whole says."""
    wishes = {"temperature": 1.0, "seed": seed, "logit_bias": bias(gpt_oss, 9.0)}
    whole = reply(batch(gpt_oss), ask(max_tokens=60, **wishes))
    tokens = [event.token for event in whole if isinstance(event, Token)]
    for cut in (1, 7, 20, 33):
        first = reply(batch(gpt_oss), ask(max_tokens=cut, **wishes))
        shown = text([event for event in first if isinstance(event, Token | Finished)])
        sampled = tuple(event.token for event in first if isinstance(event, Token))
        rest = ask(max_tokens=60 - cut, prefix_tokens=sampled, prefix_text=shown, **wishes)
        second = reply(batch(gpt_oss), rest)
        assert [event.token for event in second if isinstance(event, Token)] == tokens[len(sampled) :]
        both = shown + text([event for event in second if isinstance(event, Token | Finished)])
        assert both == text([event for event in whole if isinstance(event, Token | Finished)])


def bias(model, weight: float) -> tuple[tuple[int, float], ...]:
    """Towards headers: a random model hardly begins one."""
    ids = model.tokenizer.convert_tokens_to_ids(list(MARKS[:5]))
    words = model.tokenizer.encode("analysisfinal", add_special_tokens=False)
    return tuple((token, weight) for token in {*ids, *words})


def test_a_reply_that_another_model_began_goes_on_in_the_form_of_this_one(gpt_oss):
    for shown, form in (
        ("<think>\nHm", "<|channel|>analysis<|message|>Hm"),
        ("<think>\nHm\n</think>\n\nYes", "<|channel|>analysis<|message|>Hm" + ANSWER.split("It")[0] + "Yes"),
        ("Yes", "<|channel|>final<|message|>Yes"),
    ):
        assert told([form], apart=False)[0] == shown
        events = reply(batch(gpt_oss), ask(max_tokens=4, prefix_text=shown))
        alone = gpt_oss.tokenizer.encode(form, add_special_tokens=False)
        (end,) = [event for event in events if isinstance(event, Finished)]
        assert end.prompt_tokens == len(prompt_tokens(gpt_oss, ask())) + len(alone)


def test_what_was_thought_and_called_is_given_back_in_the_words_of_the_template(gpt_oss):
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": "time", "arguments": json.dumps({"n": n})}}
        for n in range(2)
    ]
    messages = (
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": made},
        {"role": "tool", "content": "One.", "tool_call_id": "c0"},
        {"role": "tool", "content": "Two.", "tool_call_id": "c1"},
        {"role": "assistant", "content": "<think>\nSo.\n</think>\n\nIt is <|channel|>two."},
        {"role": "user", "content": "Thanks."},
    )
    roles = [(m["role"], m.get("thinking"), m["content"]) for m in for_template(messages)]
    assert roles == [
        ("user", None, "What time is it?"),
        ("assistant", "Hm.\n\nI look.", ""),
        ("tool", None, "One."),
        ("assistant", None, ""),
        ("tool", None, "Two."),
        ("assistant", "So.", "It is two."),
        ("user", None, "Thanks."),
    ]
    read = gpt_oss.tokenizer.decode(prompt_tokens(gpt_oss, Generate("r", messages, tools=TOOLS)))
    assert 'to=functions.time<|channel|>commentary json<|message|>{"n": 1}<|call|>' in read
    assert read.endswith("<|start|>assistant") and "time weather" in read


@pytest.mark.parametrize("seed", range(3))
def test_the_answer_matches_its_schema_and_thoughts_are_counted(gpt_oss, seed):
    events = run(gpt_oss, schema=PERSON, temperature=1.0, seed=seed, max_tokens=3000, logit_bias=bias(gpt_oss, 2.0))
    assert list(json.loads(text(events))) == ["name", "age", "likes"] and events[-1].reason == "stop"
    thought = sum(bool(event.thought) for event in events)
    assert thought <= events[-1].reasoning_tokens <= len(events)
    assert bool(thought) == (events[-1].reasoning_tokens > 0)


def test_a_call_that_must_come_comes_and_matches_its_tool(gpt_oss):
    for choice in ("weather", "required"):
        events = run(gpt_oss, tools=TOOLS, tool_choice=choice, max_tokens=3000, temperature=0.7)
        (call,) = calls(events)
        assert call["name"] == choice or choice == "required"
        assert json.loads(call["arguments"]).get("city", "Paris") in ("Paris", "Xi'an") and text(events) == ""
        assert events[-1].reason == "stop"


def test_a_call_that_a_model_begins_by_itself_is_made_right(gpt_oss):
    begun = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    course = harmony_course(gpt_oss.tokenizer, Generate("r", (), tools=TOOLS))
    assert course is not None and next(course) is None
    for token in gpt_oss.tokenizer.encode(begun, add_special_tokens=False):
        allowed = course.send(token)
    written: list[int] = []
    with pytest.raises(StopIteration):
        while allowed is not None:
            written.append(int(allowed(600).nonzero()[0][-1]))
            allowed = course.send(written[-1])
    assert json.loads(gpt_oss.tokenizer.decode(written))["city"] in ("Paris", "Xi'an")
