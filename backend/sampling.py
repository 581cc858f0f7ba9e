"""Sampling as a person sets it: validated, stored as the few fields that were set, handed to the engine typed."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.errors import Invalid
from engine.events import Sampling

MOST_TOKENS = 10_000_000  # beyond any context
GREEDY_BELOW = 1e-4  # dividing logits by less leaves nothing but the largest, or an overflow


class SamplingFields(BaseModel):
    """The ranges in which each field means something. A field left out is the model's own choice.

    Strict: "0.5" and true are no numbers, and whoever sends them has a mistake to find.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.1, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    stop: list[Annotated[str, Field(min_length=1, max_length=1000)]] | None = Field(default=None, max_length=16)


def clean(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Only the fields that were set, checked. Raises Invalid naming the field."""
    try:
        return SamplingFields.model_validate(dict(values or {})).model_dump(exclude_none=True)
    except ValidationError as error:
        raise Invalid(f"Sampling: {in_words(error)}") from error


def to_engine(values: Mapping[str, Any]) -> Sampling:
    """What `clean` returned, as the engine takes it."""
    temperature = values.get("temperature")
    greedy = {"temperature": 0.0} if temperature is not None and temperature < GREEDY_BELOW else {}
    return Sampling(**{**values, **greedy, "stop": tuple(values.get("stop", ()))})


def in_words(error: ValidationError) -> str:
    """The first thing wrong, as `field: what is wrong with it`."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
