"""A text completion as clients of the OpenAI API ask for it: a prompt that goes on, without a chat template."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, ValidationError

from backend.chat_request import (
    MOST_STOPS,
    ChatRequest,
    LogitBias,
    PagodaOptions,
    StreamOptions,
    biases,
    refusal,
)
from backend.errors import Invalid
from backend.sampling import SamplingFields, to_engine
from backend.wording import sound

# What asks for nothing, at the value that asks for nothing.
_NEUTRAL: dict[str, Any] = {"n": 1, "best_of": 1, "echo": False, "suffix": ""}
DEFAULT_TOKENS = 16  # as the OpenAI API has it


class _Body(SamplingFields):
    model: str
    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1, max_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None  # type: ignore[assignment]
    logit_bias: LogitBias | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    pagoda: PagodaOptions | None = None


def read(body: Any) -> ChatRequest:
    """The request in a body. Raises Invalid whose `param` names the field that cannot be honoured."""
    nothing = {key for key, neutral in _NEUTRAL.items() if body.get(key) == neutral} | {"user"}
    asked = {key: value for key, value in body.items() if value is not None and key not in nothing}
    try:
        parsed = _Body.model_validate(asked)
        stop = [parsed.stop] if isinstance(parsed.stop, str) else parsed.stop
        if stop is not None and len(stop) > MOST_STOPS:
            raise Invalid(f"stop: at most {MOST_STOPS} strings can be given.", "stop")
        given = {name: getattr(parsed, name) for name in SamplingFields.model_fields} | {"stop": stop}
        fields = SamplingFields.model_validate(given | {"max_tokens": parsed.max_tokens or DEFAULT_TOKENS})
    except ValidationError as error:
        raise refusal(error, asked) from error
    return ChatRequest(
        model=parsed.model,
        messages=(),
        sampling=replace(
            to_engine(fields.model_dump(exclude_none=True)),
            logit_bias=biases(parsed.logit_bias),
            logprobs=parsed.logprobs,
        ),
        stream=parsed.stream,
        include_usage=parsed.stream_options is not None and parsed.stream_options.include_usage,
        progress=parsed.pagoda is not None and parsed.pagoda.progress,
        raw=sound(parsed.prompt if isinstance(parsed.prompt, str) else parsed.prompt[0]),
    )
