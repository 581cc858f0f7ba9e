"""Tools in a request: whether this model can be given any, and the JSON schema of a call to one of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools

from engine import harmony
from engine.errors import Unsupported
from engine.events import Generate
from engine.grammar import grammar

ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


def calls_are_json(tokenizer: TokenizerWrapper) -> bool:
    """Whether the model writes a call as `{"name": …, "arguments": …}`: then it can be held to the tools' schemas."""
    return tokenizer.tool_parser is json_tools.parse_tool_call


def check_tools(tokenizer: TokenizerWrapper, request: Generate) -> None:
    """Raises Unsupported naming the field of the request that this model cannot honour."""
    if harmony.speaks(tokenizer):
        return
    if not tokenizer.has_tool_calling:
        if request.tools:
            raise Unsupported("tools: the chat template of this model knows no tools. Leave them out.", "tools")
        if any(message.get("tool_calls") or message["role"] == "tool" for message in request.messages):
            words = "messages: the chat template of this model knows no tool calls. Leave those messages out."
            raise Unsupported(words, "messages")
    if not request.tools or calls_are_json(tokenizer):
        return
    own = "this model writes its calls in a form of its own, which cannot be"
    if request.tool_choice != "auto":
        raise Unsupported(f"tool_choice: {own} forced. Use auto.", "tool_choice")
    if request.schema is not None:
        words = f"response_format: {own} offered beside JSON. Leave out the tools or the format."
        raise Unsupported(words, "response_format")
    for number, tool in enumerate(request.tools):
        if tool["function"].get("strict"):
            param = f"tools.{number}.function.strict"
            raise Unsupported(f"{param}: {own} held to a schema. Leave strict out.", param)


def wanted_tools(tools: Sequence[Mapping[str, Any]], choice: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The functions that may be called, each with the name of its field in the request."""
    return [
        (f"tools.{number}.function", tool["function"])
        for number, tool in enumerate(tools)
        if choice in ("auto", "required", tool["function"]["name"])
    ]


def arguments_schema(function: Mapping[str, Any], param: str) -> Mapping[str, Any]:
    """What the arguments of a call have to match. Raises Unsupported."""
    arguments = function.get("parameters") or ANY_ARGUMENTS
    try:
        grammar(arguments, f"{param}.parameters")
    except Unsupported:
        if function.get("strict"):
            raise
        return ANY_ARGUMENTS  # without strict the schema is a wish, which the model reads in the prompt
    return arguments


def call_grammar(tools: Sequence[Mapping[str, Any]], choice: str) -> str:
    """The grammar of a call to one of the tools, or to the one that was chosen by name. Raises Unsupported."""
    wanted = wanted_tools(tools, choice)
    calls = [_call(function, param, place) for place, (param, function) in enumerate(wanted)]
    return grammar({"anyOf": calls}, "tools")


def _call(function: Mapping[str, Any], param: str, place: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": _moved(arguments_schema(function, param), f"#/anyOf/{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """The schema as a part of another: its references point from the root."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: place + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, place)
        for key, value in schema.items()
        if key != "x-guidance"
    }


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as chat templates read them: a text in each, and arguments as objects, not as JSON in a text."""
    return [_readable(message) for message in messages]


def _readable(message: Mapping[str, Any]) -> dict[str, Any]:
    found = {**message, "content": message.get("content") or ""}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _object(call["function"].get("arguments"))}}
            for call in calls
        ]
    return found


def _object(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if arguments else {}
    except (TypeError, ValueError):
        return arguments
