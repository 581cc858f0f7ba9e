"""A chunk: the only thing that travels from the gateway to a page, and what the journal keeps.

Within an attempt `seq` counts from 0 without a gap, and `offset` is the number of characters before this chunk.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from backend.states import State

Kind = Literal["text", "progress", "state"]


@dataclass(frozen=True)
class Text:
    """More of the reply. `tokens` are the ids behind it where the engine made them (for an exact Continue).

    `channel` "reasoning" is what a model thought, "mark" a tag around that; None is the reply itself. `logprobs` and
    `extra` (tool calls) are there only for API clients that asked.
    """

    text: str
    tokens: tuple[int, ...] = ()
    channel: str | None = None
    logprobs: tuple[Any, ...] | None = None
    extra: dict[str, Any] | None = None


@dataclass(frozen=True)
class Progress:
    """What the source says of its work. Nothing here is made up: a field no event filled stays None.

    `stage`: queued | begun | loading | prefill | decode; "begun" after a wait in the queue, while the source has said
    nothing yet. Queue positions count from 1 (1 = next); `queued_behind` is the model that has to finish first, where
    it is another one. Counters are cumulative over the attempt; `elapsed_s` counts from the moment the attempt was
    accepted. `eta_low_s` and `eta_high_s`, from measured rates, count from this event: in prefill to the first token,
    in decode to the limit a person set.
    `thinking_s` is how long the model thought before its answer, once that is known.
    """

    stage: str
    elapsed_s: float
    queue_position: int | None = None
    queued_behind: str | None = None
    load_stage: str | None = None  # download | convert | open | compile | trunk | experts | warm-up
    load_done: int | None = None
    load_total: int | None = None
    load_unit: str | None = None
    tokens_done: int | None = None
    tokens_total: int | None = None
    layer: int | None = None
    layers: int | None = None
    expert_hits: int | None = None
    expert_reads: int | None = None
    bytes_read: int | None = None
    eta_low_s: float | None = None
    eta_high_s: float | None = None
    thinking_s: float | None = None


@dataclass(frozen=True)
class StateChange:
    """The attempt entered `state`. The terminal one carries why, usage and timings.

    `kind` names the sort of failure for programs, `param` the field of a request that it is about. `stop` is the stop
    string that ended it.
    """

    state: State
    reason: str | None = None
    detail: str | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    kind: str | None = None
    param: str | None = None
    stop: str | None = None


Payload = Text | Progress | StateChange


@dataclass(frozen=True)
class Chunk:
    conversation_id: str
    message_id: str
    attempt_id: str
    seq: int
    offset: int
    kind: Kind
    data: Payload

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the payload's fields under `data`; fields that are None are left out."""
        return {**{k: getattr(self, k) for k in _ADDRESS}, "kind": self.kind, "data": plain(self.data)}

    @cached_property
    def payload_json(self) -> str:
        """The payload, for the journal and all readers alike: made once."""
        return compact(plain(self.data))

    def to_json(self) -> str:
        """`to_dict` as one line of JSON."""
        address = compact({k: getattr(self, k) for k in _ADDRESS} | {"kind": self.kind})
        return f'{address[:-1]},"data":{self.payload_json}}}'

    @classmethod
    def restore(cls, *, kind: Kind, payload: str, **address: Any) -> "Chunk":
        """The chunk whose payload was written by `payload_json`."""
        data = json.loads(payload)
        if kind == "text":
            data["tokens"] = tuple(data.get("tokens", ()))
        elif kind == "state":
            data["state"] = State(data["state"])
        chunk = cls(kind=kind, data=_PAYLOADS[kind](**data), **address)
        vars(chunk)["payload_json"] = payload
        return chunk


def plain(payload: Payload) -> dict[str, Any]:
    """Its fields that are not None, as they are: `asdict` copies each of them deeply, for every chunk."""
    return {name: value for name, value in vars(payload).items() if value is not None}


def compact(value: Any) -> str:
    """JSON without spaces, on one line."""
    return _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # `dumps` makes a new one for every call


class Cursor:
    """Where the next chunk of an attempt goes: its tags, and the `seq` and `offset` it will carry."""

    def __init__(
        self, conversation_id: str, message_id: str, attempt_id: str, last_seq: int = -1, length: int = 0
    ) -> None:
        self._address = {"conversation_id": conversation_id, "message_id": message_id, "attempt_id": attempt_id}
        self._seq, self._offset = last_seq + 1, length

    def tag(self, data: Payload) -> Chunk:
        """The next chunk; the cursor moves only when `passed` is told that it was accepted."""
        return Chunk(**self._address, seq=self._seq, offset=self._offset, kind=_KINDS[type(data)], data=data)

    def back_to(self, chunk: Chunk) -> None:
        """That chunk was not accepted after all, nor what came after it."""
        self._seq, self._offset = chunk.seq, chunk.offset

    def passed(self, chunk: Chunk) -> None:
        self._seq = chunk.seq + 1
        if isinstance(chunk.data, Text):
            self._offset = chunk.offset + len(chunk.data.text)


_ADDRESS = ("conversation_id", "message_id", "attempt_id", "seq", "offset")
_PAYLOADS: dict[str, type] = {"text": Text, "progress": Progress, "state": StateChange}
_KINDS: dict[type, Kind] = {Text: "text", Progress: "progress", StateChange: "state"}
