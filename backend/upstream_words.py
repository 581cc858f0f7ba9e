"""What a person is told when an upstream cannot be reached or refuses: what happened, why, and what to do."""

import json
from dataclasses import dataclass
from typing import Any

import httpx

from backend.upstream_reply import error_words
from backend.upstream_settings import UpstreamSettings

# Extras of ours that older or stricter servers refuse by name; a reply comes without them too.
OPTIONAL = ("stream_options", "return_progress", "pagoda", "max_tokens", "chat_template_kwargs")


@dataclass(frozen=True)
class Refusal:
    """`kind` is for programs, `param` the field the server named."""

    kind: str
    message: str
    said: str = ""
    param: str | None = None

    def field(self, body: dict[str, Any]) -> str | None:
        """The field of ours that it is about, if the request can go without that one."""
        if self.kind != "upstream_invalid":
            return None
        return next((name for name in OPTIONAL if name in body and name in f"{self.param} {self.said}"), None)


def refused(settings: UpstreamSettings, status: int, body: str, model: str = "") -> Refusal:
    """An answer that is no reply."""
    name, said, param = settings.name, "", None
    try:
        found = json.loads(body)
        said = error_words(found)
        error = found.get("error") if isinstance(found, dict) else None
        param = error.get("param") if isinstance(error, dict) else None
    except ValueError:
        said = "" if body.lstrip().startswith("<") else body.strip()[:300]
    quoted = f" It says: {said}" if said else ""
    if status in (401, 403):
        key = settings.key_variable
        what = f"The key in {key} is not accepted" if settings.key else f"It needs a key: put it in {key}"
        return Refusal("upstream_unauthorized", f"{name} refuses ({status}). {what}, then start Pagoda again.{quoted}")
    if status == 404:
        words = f"{name} has no model {model!r}, or its base URL {settings.base_url} is wrong (it mostly ends in /v1)."
        return Refusal("upstream_not_found", f"{words}{quoted}")
    if status == 429:
        return Refusal("upstream_busy", f"{name} has too many requests now. Wait a little, then try again.{quoted}")
    if 300 <= status < 400:
        return Refusal("upstream_error", f"{name} has moved ({status}). Correct its base URL {settings.base_url}.")
    if status in (400, 422, 413):
        param = param if isinstance(param, str) else None
        return Refusal("upstream_invalid", f"{name} does not accept the request.{quoted}", said, param)
    return Refusal("upstream_error", f"{name} failed with status {status}. Try again, or look at its log.{quoted}")


def unreachable(settings: UpstreamSettings, error: httpx.HTTPError) -> str:
    """A connection that did not come about, or broke."""
    name, url, said = settings.name, settings.base_url, str(error)
    lower = said.lower()
    if isinstance(error, httpx.ConnectTimeout):
        return f"{name} at {url} does not answer. Is that machine on, and the address right?"
    if isinstance(error, httpx.ConnectError):
        if "certificate" in lower or "ssl" in lower:
            return f"{name} at {url} shows no certificate that can be trusted ({said}). Check the address."
        if "name or service" in lower or "nodename" in lower or "resolution" in lower or "getaddrinfo" in lower:
            return f"There is no machine of that name: {url}. Check the base URL of {name} and the network."
        return f"{name} is not running at {url}. Start it, or correct its base URL."
    if isinstance(error, httpx.ReadTimeout):
        return f"{name} was silent for longer than the patience that is set for it. Raise it, or ask again."
    return f"The connection to {name} broke ({said or type(error).__name__}). What came is kept: ask again or continue."
