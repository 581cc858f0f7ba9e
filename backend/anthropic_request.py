"""A message as clients of Anthropic's API ask for it: read strictly, turned into what the engine and upstreams take."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from backend.chat_request import refusal
from backend.errors import Invalid
from backend.sampling import MOST_TOKENS, to_engine
from backend.strict import Strict
from backend.tool_request import Name, call_of
from backend.wording import sound, words_of
from engine.events import Generate


class _Cached(Strict):
    cache_control: dict[str, Any] | None = None  # says what to keep for later; it changes nothing in a reply


class TextBlock(_Cached):
    type: Literal["text"]
    text: str
    citations: None = None


class Thinking(Strict):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUse(_Cached):
    type: Literal["tool_use"]
    id: str
    name: Name
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResult(_Cached):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] = ""
    is_error: bool = False


Block = Annotated[TextBlock | Thinking | ToolUse | ToolResult, Field(discriminator="type")]


class Said(Strict):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[Block], Field(min_length=1)]


class Tool(_Cached):
    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    def plain(self) -> dict[str, Any]:
        """In OpenAI's shape, which chat templates read."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        found = {key: value for key, value in (function | {"strict": self.strict}).items() if value is not None}
        return {"type": "function", "function": found}


class Choice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thought(Strict):
    type: Literal["disabled", "enabled", "adaptive"]
    budget_tokens: int | None = None  # a target, not a limit, says the API
    display: str | None = None


class Prompt(Strict):
    """What the model is given to read; `Body` adds what it is to do with it."""

    model: str
    messages: Annotated[list[Said], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: Choice | None = None
    thinking: Thought | None = None


class Body(Prompt):
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field(default=[], max_length=16)
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


def read(body: dict[str, Any], kind: type[Prompt] = Body) -> Any:
    """The request in a body. Raises Invalid naming the field that cannot be honoured."""
    try:
        asked = kind.model_validate({key: value for key, value in body.items() if value is not None})
    except ValidationError as error:
        raise refusal(error, body) from error
    names = [tool.name for tool in asked.tools]
    choice = asked.tool_choice
    if choice is not None and choice.type in ("any", "tool"):
        if choice.type == "tool" and choice.name not in names:
            raise Invalid(f"tool_choice.name: there is no tool {choice.name!r} in tools.", "tool_choice.name")
        if not names:
            raise Invalid("tool_choice: there are no tools to call. Send some in tools.", "tool_choice")
    if len(set(names)) < len(names):
        raise Invalid("tools: two of them have the same name.", "tools")
    return asked


def generate(run_id: str, asked: Prompt, count_only: bool = False) -> Generate:
    """For the engine or an upstream."""
    messages = list(_messages(asked))
    # Where the assistant spoke last, its reply goes on from there.
    last = messages[-1]
    begun = messages.pop()["content"] if last["role"] == "assistant" and "tool_calls" not in last else ""
    wishes = asked.model_dump(include={"max_tokens", "temperature", "top_p", "top_k"}, exclude_none=True)
    choice = asked.tool_choice or Choice(type="auto")
    return Generate(
        run_id,
        tuple(messages),
        to_engine(wishes | {"stop": getattr(asked, "stop_sequences", [])}),
        prefix_text=begun,
        template={"enable_thinking": asked.thinking.type != "disabled"} if asked.thinking else {},
        tools=tuple(tool.plain() for tool in asked.tools) if choice.type != "none" else (),
        tool_choice={"any": "required", "tool": choice.name or ""}.get(choice.type, "auto"),
        parallel_calls=not choice.disable_parallel_tool_use,
        apart=True,
        count_only=count_only,
    )


def _messages(asked: Prompt) -> Iterator[dict[str, Any]]:
    """As the OpenAI API has them. What one side said in several messages is one, because many templates insist."""
    if system := words_of(asked.system or ""):
        yield {"role": "system", "content": system}
    waiting: dict[str, Any] | None = None
    for said in asked.messages:
        for message in _parts(said):
            if waiting is not None and _goes_on(waiting, message):
                waiting["content"] += f"\n\n{message['content']}"
                continue
            if waiting is not None:
                yield waiting
            waiting = message
    if waiting is not None:
        yield waiting


def _goes_on(before: dict[str, Any], message: dict[str, Any]) -> bool:
    return before.keys() == message.keys() == {"role", "content"} and before["role"] == message["role"]


def _parts(said: Said) -> Iterator[dict[str, Any]]:
    if isinstance(said.content, str):
        yield {"role": said.role, "content": sound(said.content)}
        return
    for block in said.content:
        if isinstance(block, ToolResult):
            words = f"Error: {words_of(block.content)}" if block.is_error else words_of(block.content)
            yield {"role": "tool", "content": words, "tool_call_id": block.tool_use_id}
    words = words_of([block for block in said.content if isinstance(block, TextBlock)])
    calls = [_call(block) for block in said.content if isinstance(block, ToolUse)]
    thought = "".join(block.thinking for block in said.content if isinstance(block, Thinking))
    if words or calls or said.role == "assistant":
        found: dict[str, Any] = {"role": said.role, "content": words}
        yield found | ({"tool_calls": calls} if calls else {}) | ({"reasoning_content": thought} if thought else {})


def _call(block: ToolUse) -> dict[str, Any]:
    return call_of(block.id, block.name, json.dumps(block.input, ensure_ascii=False))
