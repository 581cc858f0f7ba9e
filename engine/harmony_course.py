"""What a reply of gpt-oss has to be like: an answer that matches a schema, a call that must come, calls made right.

Where something must come the whole reply is one grammar: thoughts first, if it likes, then that. Where calls may come,
only the text of one that was begun is held to its tool's schema.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from engine.courses import Course, within
from engine.events import Generate
from engine.grammar import Grammar, grammar
from engine.grammar import within as json_within
from engine.harmony import called
from engine.tools import arguments_schema, wanted_tools

_HEAD = """start: thought? rest
thought: <|channel|> "analysis" <|message|> TEXT <|end|> <|start|> "assistant"
TEXT: /(.|\\n)*/
"""


def harmony_course(tokenizer: TokenizerWrapper, request: Generate) -> Course | None:
    """The course that the request asks for, if any. Raises Unsupported naming what it cannot be held to."""
    must_call = bool(request.tools) and request.tool_choice != "auto"
    tools = wanted_tools(request.tools, request.tool_choice)
    schemas = {function["name"]: arguments_schema(function, param) for param, function in tools}
    answer = None if must_call else request.schema
    if answer is not None:
        grammar(answer, "response_format")
    if answer is not None or must_call:
        param = "response_format" if answer is not None else "tools"
        return within(Grammar(tokenizer, _HEAD + "".join(_ways(answer, schemas)), param))
    if not schemas:
        return None
    grammars = {name: grammar(schema, "tools") for name, schema in schemas.items()}
    for made in grammars.values():
        Grammar(tokenizer, made, "tools")  # what cannot be done is told before the prompt is read
    return _calls_made_right(tokenizer, grammars)


def _ways(answer: Mapping[str, Any] | None, calls: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The rules for what may follow the thoughts."""
    names = ["answer"] if answer is not None else []
    yield f"rest: {' | '.join([*names, *(f'call_{n}' for n in range(len(calls)))])}\n"
    if answer is not None:
        yield f'answer: <|channel|> "final" <|message|> json\njson: {json_within(answer)}\n'
    for n, (name, schema) in enumerate(calls.items()):
        head = json.dumps(f"commentary to=functions.{name} ")
        yield f'call_{n}: <|channel|> {head} <|constrain|> "json" <|message|> arguments_{n}\n'
        yield f"arguments_{n}: {json_within(schema)}\n"


def _calls_made_right(tokenizer: TokenizerWrapper, grammars: dict[str, str]) -> Course:
    start, message = (tokenizer.convert_tokens_to_ids(mark) for mark in ("<|start|>", "<|message|>"))
    header: list[int] = []
    while True:
        token = yield None
        if token == start:
            header = []
        elif token != message:
            header.append(token)
        elif (name := called(tokenizer.decode(header))) and name in grammars:
            yield from within(Grammar(tokenizer, grammars[name], "tools"))
            return
