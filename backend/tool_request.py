"""Tools, tool calls and the form of the answer, as clients of the OpenAI API ask for them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from backend.errors import Invalid
from backend.strict import Strict

Name = Annotated[str, Field(pattern=r"^[\w.:-]{1,128}$")]


class Function(Strict):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """For the chat template, without what was left out."""
        return self.model_dump(exclude_none=True)


class Called(Strict):
    name: Name
    arguments: str


class ToolCall(Strict):
    id: str
    type: Literal["function"] = "function"
    function: Called


class JsonSchema(Strict):
    name: Name
    wanted: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def schema_of_answer(self) -> dict[str, Any] | None:
        """What the answer must match; None: it may be any text."""
        if self.type == "json_schema":
            if self.json_schema is None:
                words = "response_format.json_schema: a format of this type needs one, with a name and a schema."
                raise Invalid(words, "response_format.json_schema")
            return self.json_schema.wanted or {"type": "object"}
        if self.json_schema is not None:
            words = f"response_format.json_schema: it does not go with the type {self.type!r}. Use json_schema."
            raise Invalid(words, "response_format.json_schema")
        return {"type": "object"} if self.type == "json_object" else None


def call_of(id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as chat templates and chat completions have it."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def choice_of(choice: Any, tools: Sequence[Tool]) -> str:
    """none, auto, required, or the name of a tool. Raises Invalid."""
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise Invalid("tools: two of them have the same name.", "tools")
    if choice is None or choice in ("none", "auto", "required"):
        if choice == "required" and not tools:
            raise Invalid("tool_choice: there are no tools to call. Send some in tools.", "tool_choice")
        return choice or "auto"
    match choice:
        case {"type": "function", "function": {"name": str(name)}} if name in names:
            return name
        case {"type": "function", "function": {"name": str(name)}}:
            raise Invalid(f"tool_choice: there is no tool {name!r} in tools.", "tool_choice")
    words = 'tool_choice: it is none, auto, required, or {"type": "function", "function": {"name": ...}}.'
    raise Invalid(words, "tool_choice")
