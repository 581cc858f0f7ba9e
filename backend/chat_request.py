"""A chat completion as clients of the OpenAI API ask for it: read strictly, refused by the name of the field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.errors import Invalid
from backend.sampling import SamplingFields, to_engine
from backend.wording import sound
from engine.events import Sampling

# Fields that we do not have, at the value that asks for nothing: many clients send them all.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    def plain(self) -> dict[str, str]:
        """For the chat template; `developer` is the newer word for `system`."""
        parts = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": sound(parts)}


class StreamOptions(_Strict):
    include_usage: bool = False


class PagodaOptions(_Strict):
    progress: bool = False


class _Body(SamplingFields):
    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None  # type: ignore[assignment]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    user: str | None = None  # says who asks; it changes nothing in a reply
    pagoda: PagodaOptions | None = None


@dataclass(frozen=True)
class ChatRequest:
    model: str
    messages: tuple[dict[str, str], ...]
    sampling: Sampling
    stream: bool
    include_usage: bool
    progress: bool


def read(body: Any) -> ChatRequest:
    """The request in a body. Raises Invalid whose `param` names the field that cannot be honoured."""
    if not isinstance(body, dict):
        raise Invalid("The body of a chat completion is a JSON object.")
    asked = {key: value for key, value in body.items() if value is not None and not _asks_for_nothing(key, value)}
    try:
        parsed = _Body.model_validate(asked)
        stop = [parsed.stop] if isinstance(parsed.stop, str) else parsed.stop
        both = {parsed.max_tokens, parsed.max_completion_tokens} - {None}
        if len(both) > 1:
            raise Invalid("max_tokens and max_completion_tokens differ. Send one of them.", "max_completion_tokens")
        fields = SamplingFields.model_validate(
            {**{name: getattr(parsed, name) for name in SamplingFields.model_fields}, "stop": stop}
            | ({"max_tokens": both.pop()} if both else {})
        )
    except ValidationError as error:
        raise _refusal(error) from error
    if parsed.messages[-1].role == "assistant":
        raise Invalid("The last message is the assistant's: there is nothing to reply to.", "messages")
    return ChatRequest(
        model=parsed.model,
        messages=tuple(message.plain() for message in parsed.messages),
        sampling=to_engine(fields.model_dump(exclude_none=True)),
        stream=parsed.stream,
        include_usage=parsed.stream_options is not None and parsed.stream_options.include_usage,
        progress=parsed.pagoda is not None and parsed.pagoda.progress,
    )


def _asks_for_nothing(key: str, value: Any) -> bool:
    # `1 == True` in Python, and n=true is a mistake.
    return any(type(value) is type(neutral) and value == neutral for neutral in _NEUTRAL.get(key, ()))


def _refusal(error: ValidationError) -> Invalid:
    # Where a field may be one of several types there is an error for each: the deepest one knows best.
    first: Mapping[str, Any] = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))
    param = ".".join(str(part) for part in first["loc"] if part not in ("str", "list[TextPart]"))
    if first["type"] == "extra_forbidden":
        return Invalid(f"{param} is not supported here. Leave it out.", param)
    return Invalid(f"{param}: {first['msg']}" if param else first["msg"], param)
