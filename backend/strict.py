"""What the bodies of all APIs have in common: a field that is not known, or of another type, is refused."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Nothing is guessed: no text for a number, no number that JSON does not have."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)
