"""A source: whatever produces a reply as typed events. The gateway knows nothing else about where text comes from."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from backend.abort import AbortSignal
from backend.states import Reason
from engine.events import Finished, Generate, Loaded, Loading, Progress, RunFailed, Token


@dataclass(frozen=True)
class Delta:
    """More of a reply from a source that tells no token ids.

    `channel` is None for the reply itself, "reasoning" for what the model thought before it, "mark" for the tags
    that we put around that. `extra` has what an upstream's delta says besides text: tool calls, a refusal.
    """

    text: str
    channel: str | None = None
    extra: dict[str, Any] | None = None


@dataclass(frozen=True)
class Reading:
    """How much of the prompt an upstream has read."""

    tokens_done: int
    tokens_total: int


@dataclass(frozen=True)
class Ended:
    """The proper end of an upstream's reply. `reason`: stop | length | aborted. What it did not tell stays None."""

    reason: str
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True)
class Forwarded(Generate):
    """A request of an API client for an upstream: its own body goes on as it came, with all it asks for."""

    body: dict[str, Any] = field(default_factory=dict)
    path: str = "chat/completions"


Messages = tuple[dict[str, Any], ...]

SourceEvent = Loading | Progress | Token | Finished | RunFailed | Delta | Reading | Ended


class SourceInterrupted(Exception):
    """The stream ended without a proper end. `reason` says how, `message` is for a person."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


@dataclass(frozen=True)
class ModelStatus:
    """Whether a source can reply now. `detail` is for a person; `progress` is the newest step of loading."""

    name: str
    state: Literal["loading", "ready", "failed"]
    detail: str | None = None
    progress: Loading | None = None
    loaded: Loaded | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "state": self.state,
            "detail": self.detail,
            "progress": asdict(self.progress) if self.progress else None,
            "loaded": asdict(self.loaded) if self.loaded else None,
        }


class Source(Protocol):
    """Runs replies, `capacity` of them at a time (the gateway queues the rest). Sources that stand on the same machine
    share a `lane` and its capacity. `elsewhere`: another server answers, to which a client's request goes on as it
    came; sources that are not elsewhere have their lane to themselves."""

    name: str
    lane: str
    capacity: int
    elsewhere: bool

    def status(self) -> ModelStatus:
        """How it stands now."""
        ...

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every change of `status`, in the event loop. Returns what ends that."""
        ...

    def retry(self) -> None:
        """Try again what failed; harmless otherwise."""
        ...

    def restart(self) -> None:
        """End what no longer answers, so that the next run can begin; its run breaks off."""
        ...

    def warm(self, messages: Messages) -> None:
        """Somebody looks at the conversation with these messages: get ready for the next one, if that costs nobody."""
        ...

    def run(self, request: Generate, abort: AbortSignal) -> AsyncGenerator[SourceEvent, None]:
        """One reply. Ends after Finished or RunFailed; raises SourceInterrupted when the stream breaks.

        Waits, yielding Loading, until the model is there. After `abort` it ends promptly, with
        Finished(reason="aborted") where something had begun.
        """
        ...
