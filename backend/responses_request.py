"""A response as clients of OpenAI's responses API ask for it: read strictly, turned into what sources take."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.chat_request import refusal
from backend.errors import Invalid
from backend.sampling import MOST_TOKENS, to_engine
from backend.strict import Strict
from backend.tool_request import Name, Tool, call_of, choice_of
from backend.wording import sound, words_of
from engine.events import Generate

Status = Literal["in_progress", "completed", "incomplete"]


class Part(Strict):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[Any] | None = None


class Said(Strict):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[Part], Field(min_length=1)]
    id: str | None = None
    status: Status | None = None


class FunctionCall(Strict):
    type: Literal["function_call"]
    call_id: str
    name: Name
    arguments: str
    id: str | None = None
    status: Status | None = None
    caller: dict[str, Any] | None = None
    namespace: str | None = None


class FunctionOutput(Strict):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Part]
    id: str | None = None
    status: Status | None = None


class Thought(BaseModel):
    """What was thought before; a client sends it back as it got it."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: Literal["reasoning"]
    content: list[dict[str, Any]] | None = None


Item = Annotated[Said | FunctionCall | FunctionOutput | Thought, Field(discriminator="type")]


class Function(Strict):
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Format(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    wanted: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Strict):
    format: Format | None = None


class Reasoning(Strict):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None  # the thoughts themselves are told


class Body(Strict):
    model: str
    input: Annotated[str, Field(min_length=1)] | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: list[Function] = Field(default_factory=list)
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    # Agents ask for it always; thoughts are told openly here, so there is nothing encrypted to include.
    include: list[Literal["reasoning.encrypted_content"]] = Field(default_factory=list)
    truncation: Literal["disabled"] | None = None
    store: Any = None  # nothing is kept of it, whatever is asked; `previous_response_id` is refused
    metadata: dict[str, Any] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    client_metadata: dict[str, Any] | None = None


def read(body: dict[str, Any]) -> Body:
    """The request in a body. Raises Invalid naming the field that cannot be honoured."""
    asked = {key: value for key, value in body.items() if value is not None}
    if isinstance(items := asked.get("input"), list):
        asked["input"] = [_with_type(item) for item in items]
    try:
        found = Body.model_validate(asked)
    except ValidationError as error:
        raise refusal(error, asked) from error
    choice(found)
    schema(found)
    return found


def choice(asked: Body) -> str:
    """none, auto, required, or the name of a tool. Raises Invalid."""
    wanted = asked.tool_choice
    if isinstance(wanted, dict) and "name" in wanted:  # flatter here than in a chat completion
        wanted = {"type": wanted.get("type"), "function": {"name": wanted["name"]}}
    return choice_of(wanted, [_tool(tool) for tool in asked.tools])


def schema(asked: Body) -> dict[str, Any] | None:
    """What the answer must match. Raises Invalid."""
    wanted = asked.text.format if asked.text is not None else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_schema" and wanted.wanted is None:
        raise Invalid("text.format.schema: a format of this type needs one.", "text.format.schema")
    return wanted.wanted or {"type": "object"}


def generate(run_id: str, asked: Body) -> Generate:
    """For the engine or an upstream."""
    wishes: dict[str, Any] = asked.model_dump(include={"temperature", "top_p"}, exclude_none=True)
    if asked.max_output_tokens is not None:
        wishes["max_tokens"] = asked.max_output_tokens
    effort, wanted = asked.reasoning.effort if asked.reasoning is not None else None, choice(asked)
    return Generate(
        run_id,
        tuple(_messages(asked)),
        to_engine(wishes),
        template={"reasoning_effort": effort} if effort else {},
        tools=tuple(_tool(tool).plain() for tool in asked.tools) if wanted != "none" else (),
        tool_choice="auto" if wanted == "none" else wanted,
        parallel_calls=asked.parallel_tool_calls,
        schema=schema(asked),
        apart=True,
    )


def _messages(asked: Body) -> Iterator[dict[str, Any]]:
    """As chat completions have them: calls and thoughts belong to the assistant's message that they came with."""
    if asked.instructions:
        yield {"role": "system", "content": sound(asked.instructions)}
    if isinstance(asked.input, str):
        yield {"role": "user", "content": sound(asked.input)}
        return
    assistant: dict[str, Any] = {}
    for item in asked.input:
        if isinstance(item, FunctionOutput) or (isinstance(item, Said) and item.role != "assistant"):
            if assistant.keys() - {"reasoning_content"}:
                yield {"role": "assistant", "content": "", **assistant}
            assistant = {}
        match item:
            case FunctionOutput():
                yield {"role": "tool", "content": words_of(item.output), "tool_call_id": item.call_id}
            case FunctionCall():
                call = call_of(item.call_id, item.name, item.arguments)
                assistant.setdefault("tool_calls", []).append(call)
            case Thought():
                assistant["reasoning_content"] = "".join(str(part.get("text", "")) for part in item.content or ())
            case Said(role="assistant"):
                assistant["content"] = assistant.get("content", "") + words_of(item.content)
            case Said():
                yield {"role": "system" if item.role == "developer" else item.role, "content": words_of(item.content)}
    if assistant.keys() - {"reasoning_content"}:
        yield {"role": "assistant", "content": "", **assistant}


def _tool(tool: Function) -> Tool:
    return Tool.model_validate({"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)})


def _with_type(item: Any) -> Any:
    """Messages may come without their type; fields that are null say nothing."""
    if not isinstance(item, dict):
        return item
    found = {key: value for key, value in item.items() if value is not None}
    return found if "type" in found else {"type": "message", **found}
