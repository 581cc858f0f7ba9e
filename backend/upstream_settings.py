"""What a person says of an upstream: its name, where it is, and the name of the variable with its key."""

import os
import re
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit


@dataclass(frozen=True)
class UpstreamSettings:
    """`key_env` names the environment variable with the key; the key itself is kept nowhere. `patience_s` is the
    longest silence in a reply, None for any."""

    name: str
    base_url: str
    key_env: str | None = None
    concurrency: int = 4
    patience_s: float | None = None
    models: tuple[str, ...] = field(default_factory=tuple)

    @property
    def key(self) -> str | None:
        """The key, as the environment has it now."""
        return os.environ.get(self.key_variable, "").strip() or None

    @property
    def key_variable(self) -> str:
        return self.key_env or re.sub(r"\W", "_", self.name).upper() + "_API_KEY"


def checked(settings: UpstreamSettings) -> UpstreamSettings:
    """The same with a whole base URL. Raises ValueError in words."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", settings.name):
        raise ValueError(f"{settings.name!r} is no name for an upstream. Use letters, digits and - _ . only.")
    try:
        parts = urlsplit(settings.base_url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{settings.base_url!r} is no base URL. Write it like http://localhost:11434/v1.")
    if parts.username or parts.password:
        raise ValueError(
            f"The base URL of {settings.name} has a password in it, which would end in logs. "
            f"Put the key into the environment variable {settings.key_variable}."
        )
    path = parts.path.rstrip("/") or "/v1"
    return replace(settings, base_url=f"{parts.scheme}://{parts.netloc}{path}")
