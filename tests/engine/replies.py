"""Replies of a model in this process, made as the engine's child makes them."""

import threading
from collections.abc import Sequence
from pathlib import Path

from engine.batch import Batch, room_for_states
from engine.events import Event, Finished, Generate, RunFailed, Sampling, Token
from engine.loader import PagedModel
from engine.prefix_files import PrefixFiles


def batch(model: PagedModel, folder: Path | None = None, room: int | None = None) -> Batch:
    """A batch whose states go to `folder`, if there is one."""
    files = PrefixFiles(folder, "model") if folder else None
    return Batch(model, room_for_states(model) if room is None else room, files)


def ask(text: str = "Count for me, please.", run_id: str = "r", **more) -> Generate:
    """A greedy request of a single message. Names of Sampling go there, others to the request."""
    wishes = {name: more.pop(name) for name in list(more) if name in Sampling.__dataclass_fields__}
    sampling = Sampling(**{"temperature": 0.0, "max_tokens": 8, **wishes})
    messages = more.pop("messages", ({"role": "user", "content": text},))
    return Generate(run_id, tuple(messages), sampling, **more)


def reply(replies: Batch, request: Generate, abort: threading.Event | None = None) -> list[Event]:
    """All events of one reply."""
    events: list[Event] = []
    replies.add(request, events.append, abort)
    replies.finish()
    return events


def tokens_of(events: Sequence[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, Token)]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Token | Finished))


def end_of(events: Sequence[Event]) -> Finished | RunFailed:
    """The last event, which is the only end."""
    (end,) = [event for event in events if isinstance(event, Finished | RunFailed)]
    assert events[-1] is end
    return end
