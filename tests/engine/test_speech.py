"""The parts of a reply told apart from its text, in whatever pieces it comes."""

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tool_parsers import json_tools, mistral, qwen3_coder

from engine.events import Generate
from engine.speech import Speech

TOOLS = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},)
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "塔 <b>"}}\n</tool_call>'


def tokenizer(parser=json_tools) -> SimpleNamespace:
    """As much of mlx-lm's as this needs."""
    return SimpleNamespace(
        has_thinking=True,
        think_start="<think>",
        think_end="</think>",
        has_tool_calling=True,
        tool_call_start=parser.tool_call_start,
        tool_call_end=parser.tool_call_end,
        tool_parser=parser.parse_tool_call,
        structural_markers=(),
        response_transitions={},
        response_initial_state=None,
    )


def told(pieces: list[str], parser=json_tools, thinking=False, **wishes) -> tuple[str, str, list[tuple]]:
    """(answer, thought, calls) of these pieces."""
    request = Generate("r", (), apart=wishes.pop("apart", True), tools=wishes.pop("tools", TOOLS), **wishes)
    speech = Speech(tokenizer(parser), request, thinking)  # type: ignore[arg-type]
    said = [speech.add(piece) for piece in pieces[:-1]] + [speech.finish(pieces[-1])]
    calls = [call["function"] for one in said for call in one.calls]
    ids = [call["id"] for one in said for call in one.calls]
    assert len(set(ids)) == len(ids)
    return (
        "".join(one.text for one in said),
        "".join(one.thought for one in said),
        [(call["name"], json.loads(call["arguments"])) for call in calls],
    )


LOOKED = ("look", {"at": "塔 <b>"})


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Just words < and > more", ("Just words < and > more", "", [])),
        ("<think>\nHm.\n</think>\n\nYes.", ("Yes.", "Hm.\n", [])),
        (f"<think>Hm.</think>Let me look.\n{CALL}\n{CALL}", ("Let me look.\n", "Hm.", [LOOKED, LOOKED])),
        (f"<think>Hm.{CALL}", ("", "Hm.", [LOOKED])),
        ("Never ends <tool_", ("Never ends <tool_", "", [])),
        ("<tool_call>cut", ("<tool_call>cut", "", [])),
        ("a<tool_call>{}</tool_call>b", ("a<tool_call>{}</tool_call>b", "", [])),
        ("<tool_call>[1]</tool_call>", ("<tool_call>[1]</tool_call>", "", [])),
    ],
)
@given(data=st.data())
def test_any_pieces_of_a_reply_say_the_same(text, parts, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    assert told([text[a:b] for a, b in pairwise(cuts)]) == parts


def test_a_prompt_that_began_the_thought_is_gone_on_with():
    assert told(["Hm.</think>", "Yes."], thinking=True) == ("Yes.", "Hm.", [])


def test_forms_of_calls_that_other_models_write_are_read():
    coder = "<tool_call>\n<function=look>\n<parameter=at>\nhere\n</parameter>\n</function>\n</tool_call>"
    assert told([coder], qwen3_coder)[2] == [("look", {"at": "here"})]
    both = '[TOOL_CALLS]look[ARGS]{"at": 1}look[ARGS]{"at": 2}'
    assert told([*both], mistral)[2] == [("look", {"at": 1}), ("look", {"at": 2})]


def test_where_nobody_offers_tools_or_asks_for_parts_the_text_stays_as_it_is():
    assert told([CALL], tools=()) == (CALL, "", [])
    whole = f"<think>Hm.</think> {CALL}"
    assert told([whole], apart=False) == (whole, "", [])


def test_where_one_call_is_allowed_nothing_follows_it():
    assert told([f"{CALL}{CALL}more"], parallel_calls=False) == ("", "", [LOOKED])
