"""A chat completion as clients of the OpenAI API ask for it: read strictly, refused by the name of the field."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError

from backend.errors import Invalid
from backend.sampling import MOST_TOKENS, SamplingFields, to_engine
from backend.sources import Forwarded
from backend.strict import Strict
from backend.tool_request import ResponseFormat, Tool, ToolCall, choice_of
from backend.wording import sound
from engine.events import Generate, Sampling

MOST_STOPS = 4

# Fields that we do not have, at the value that asks for nothing: many clients send them all.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
}


class TextPart(Strict):
    type: Literal["text"]
    text: str


# What says who asks, or where to look for something kept: it changes nothing in a reply.
_WITHOUT_EFFECT = ("user", "safety_identifier", "prompt_cache_key")
# What clients send back of a reply they got, and no template reads; `prefix` is a wish that we grant anyway.
_ECHO = ("reasoning", "annotations", "refusal", "audio", "function_call", "prefix")


class ChatMessage(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None  # between the calls of one turn some templates show it to the model again

    def plain(self) -> dict[str, Any]:
        """For the chat template; `developer` is the newer word for `system`."""
        parts = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content or ())
        found: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": sound(parts)}
        if self.tool_calls:
            found["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            found["tool_call_id"] = self.tool_call_id
        for name in ("name", "reasoning_content"):
            if value := getattr(self, name):
                found[name] = value
        return found

    def check(self, number: int) -> None:
        """What belongs to which role. Raises Invalid."""
        here = f"messages.{number}"
        if self.content is None and not self.tool_calls:
            raise Invalid(f"{here}.content: a message needs a text.", f"{here}.content")
        if self.tool_calls and self.role != "assistant":
            raise Invalid(f"{here}.tool_calls: only the assistant calls tools.", f"{here}.tool_calls")
        if (self.tool_call_id is None) == (self.role == "tool"):
            words = "a tool's message names the call that it answers, and no other message does."
            raise Invalid(f"{here}.tool_call_id: {words}", f"{here}.tool_call_id")


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class PagodaOptions(Strict):
    progress: bool = False


TokenId = Annotated[str, Field(pattern=r"^\d{1,9}$")]
LogitBias = dict[TokenId, Annotated[float, Field(ge=-100, le=100)]]


def biases(given: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
    """As the engine takes them."""
    return tuple((int(token), bias) for token, bias in (given or {}).items())


class _Body(SamplingFields):
    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None  # type: ignore[assignment]
    logit_bias: LogitBias | None = None
    logprobs: StrictBool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: Any = None
    parallel_tool_calls: StrictBool = True
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    # As vLLM, llama.cpp and transformers call it; without them a last message of the assistant says the same.
    continue_final_message: StrictBool | None = None
    add_generation_prompt: StrictBool | None = None
    pagoda: PagodaOptions | None = None


@dataclass(frozen=True)
class ChatRequest:
    model: str
    messages: tuple[dict[str, Any], ...]
    sampling: Sampling
    stream: bool
    include_usage: bool
    progress: bool
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str = "auto"
    parallel_calls: bool = True
    schema: dict[str, Any] | None = None
    template: dict[str, Any] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    path: str = "chat/completions"
    raw: str | None = None
    begun: str = ""  # the beginning of the reply, which goes on from there

    def generate(self, run_id: str) -> Generate:
        """For the engine; for an upstream the body goes on as it came."""
        if self.body:
            return Forwarded(run_id, self.messages, self.sampling, body=self.body, path=self.path)
        return Generate(
            run_id,
            self.messages,
            self.sampling,
            prefix_text=self.begun,
            template=self.template,
            raw=self.raw,
            tools=self.tools,
            tool_choice=self.tool_choice,
            parallel_calls=self.parallel_calls,
            schema=self.schema,
            apart=self.raw is None,
        )


def read(body: Any) -> ChatRequest:
    """The request in a body. Raises Invalid whose `param` names the field that cannot be honoured."""
    if not isinstance(body, dict):
        raise Invalid("The body of a chat completion is a JSON object.")
    asked = {key: value for key, value in body.items() if value is not None and not _asks_for_nothing(key, value)}
    for name in _WITHOUT_EFFECT:
        if not isinstance(asked.pop(name, ""), str):
            raise Invalid(f"{name}: it is a text.", name)
    if isinstance(messages := asked.get("messages"), list):
        asked["messages"] = [_as_said(message) for message in messages]
    try:
        parsed = _Body.model_validate(asked)
        stop = [parsed.stop] if isinstance(parsed.stop, str) else parsed.stop
        both = {parsed.max_tokens, parsed.max_completion_tokens} - {None}
        if len(both) > 1:
            raise Invalid("max_tokens and max_completion_tokens differ. Send one of them.", "max_completion_tokens")
        if stop is not None and len(stop) > MOST_STOPS:
            raise Invalid(f"stop: at most {MOST_STOPS} strings can be given.", "stop")
        if parsed.top_logprobs and not parsed.logprobs:
            raise Invalid("top_logprobs needs logprobs: true.", "top_logprobs")
        fields = SamplingFields.model_validate(
            {**{name: getattr(parsed, name) for name in SamplingFields.model_fields}, "stop": stop}
            | ({"max_tokens": both.pop()} if both else {})
        )
    except ValidationError as error:
        raise refusal(error, asked) from error
    for number, message in enumerate(parsed.messages):
        message.check(number)
    messages = [message.plain() for message in parsed.messages]
    begun = messages.pop()["content"] if _goes_on(parsed) else ""
    choice = choice_of(parsed.tool_choice, parsed.tools)
    return ChatRequest(
        model=parsed.model,
        messages=tuple(messages),
        begun=begun,
        sampling=replace(
            to_engine(fields.model_dump(exclude_none=True)),
            logit_bias=biases(parsed.logit_bias),
            logprobs=parsed.top_logprobs if parsed.logprobs else None,
        ),
        stream=parsed.stream,
        include_usage=parsed.stream_options is not None and parsed.stream_options.include_usage,
        progress=parsed.pagoda is not None and parsed.pagoda.progress,
        tools=tuple(tool.plain() for tool in parsed.tools) if choice != "none" else (),
        tool_choice="auto" if choice == "none" else choice,
        parallel_calls=parsed.parallel_tool_calls,
        schema=parsed.response_format.schema_of_answer() if parsed.response_format else None,
        template=(parsed.chat_template_kwargs or {})
        | ({"reasoning_effort": parsed.reasoning_effort} if parsed.reasoning_effort else {}),
    )


def _goes_on(parsed: _Body) -> bool:
    """Whether the last message is the beginning of the reply. Raises Invalid where there is nothing to reply to."""
    last, asks = parsed.messages[-1], parsed.continue_final_message
    if last.role != "assistant":
        if asks:
            words = "the last message is not the assistant's: there is nothing to go on from."
            raise Invalid(f"continue_final_message: {words}", "continue_final_message")
        if parsed.add_generation_prompt is False:
            words = "without it only a last message of the assistant can be gone on with."
            raise Invalid(f"add_generation_prompt: {words}", "add_generation_prompt")
        return False
    if asks is False or last.tool_calls:
        raise Invalid("The last message is the assistant's: there is nothing to reply to.", "messages")
    if parsed.add_generation_prompt and asks:
        words = "it begins a new message, and continue_final_message goes on with the last one. Send one of them."
        raise Invalid(f"add_generation_prompt: {words}", "add_generation_prompt")
    if len(parsed.messages) == 1:
        raise Invalid("messages: nothing comes before the reply that is to go on.", "messages")
    if parsed.response_format and parsed.response_format.schema_of_answer() is not None:
        words = "a reply that goes on cannot be held to a form any more. Leave it out."
        raise Invalid(f"response_format: {words}", "response_format")
    return True


class _Open(BaseModel):
    """What we must understand of a request that an upstream answers; the rest is its business."""

    model_config = ConfigDict(extra="ignore")

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    pagoda: PagodaOptions | None = None


def read_open(body: Any, path: str) -> ChatRequest:
    """The request for an upstream: checked only where it touches us. Raises Invalid."""
    try:
        parsed = _Open.model_validate(body)
    except ValidationError as error:
        raise refusal(error, body) from error
    asked = {key: value for key, value in body.items() if value is not None}
    return ChatRequest(
        model=parsed.model,
        messages=(),
        sampling=Sampling(),
        stream=parsed.stream,
        include_usage=parsed.stream_options is not None and parsed.stream_options.include_usage,
        progress=parsed.pagoda is not None and parsed.pagoda.progress,
        body=asked,
        path=path,
    )


def _as_said(message: Any) -> Any:
    """A message without the empty fields and echoes that clients send back with a reply they got."""
    if not isinstance(message, dict):
        return message
    return {key: value for key, value in message.items() if value is not None and key not in _ECHO}


def _asks_for_nothing(key: str, value: Any) -> bool:
    # `1 == True` in Python, and n=true is a mistake.
    return any(type(value) is type(neutral) and value == neutral for neutral in _NEUTRAL.get(key, ()))


def _place(path: Sequence[Any], body: Any) -> Iterator[str]:
    """The path without the names of types that pydantic tried on its way: those are not the client's."""
    for number, part in enumerate(path):
        if isinstance(part, str) and (part == "str" or "[" in part):
            continue
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            if number < len(path) - 1:
                continue
        yield str(part)


# Where pydantic's own words are those of a program.
_WORDS = {"too_short": "it is empty. Send at least one.", "missing": "it is missing."}


def refusal(error: ValidationError, body: Any) -> Invalid:
    """What pydantic found in a body, as a refusal that names the field."""
    # Where a field may be one of several types there is an error for each: the deepest one knows best.
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first: Mapping[str, Any] = max(found, key=lambda one: len(one["loc"]))
    param = ".".join(_place(first["loc"], body))
    if first["type"] == "extra_forbidden":
        return Invalid(f"{param} is not supported here. Leave it out.", param)
    words = _WORDS.get(first["type"], first["msg"])
    return Invalid(f"{param}: {words}" if param else words, param)
