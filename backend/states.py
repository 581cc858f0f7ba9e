"""The life of an attempt: five states after it was accepted, and the only transitions that exist.

sending -> streaming -> complete | failed | cancelled | interrupted; terminal states are final.
"""

from enum import StrEnum


class State(StrEnum):
    SENDING = "sending"
    STREAMING = "streaming"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def terminal(self) -> bool:
        return self not in (State.SENDING, State.STREAMING)


class Reason(StrEnum):
    """Why an attempt ended, for the page to say in words."""

    STOP = "stop"  # complete: the model ended its reply
    LENGTH = "length"  # complete: a token limit was reached
    CONTEXT_FULL = "context_full"  # complete: the model's context is used up
    STOPPED_BY_PERSON = "stopped_by_person"  # cancelled
    CLIENT_LEFT = "client_left"  # cancelled: the API client that asked for it has gone
    ENGINE_DIED = "engine_died"  # interrupted: the engine process was killed
    RESTARTED = "restarted"  # interrupted: Pagoda itself was killed or shut down
    UPSTREAM_ENDED = "upstream_ended"  # interrupted: end of stream without a proper end
    NETWORK = "network"  # interrupted: the connection to an upstream broke
    TOO_LONG = "too_long"  # failed: the prompt does not fit into the model's context
    ERROR = "error"  # failed: `detail` says what and what to do


_NEXT = {
    State.SENDING: frozenset(State) - {State.SENDING},
    State.STREAMING: frozenset(s for s in State if s.terminal),
}


def can_become(now: State, then: State) -> bool:
    """Whether `now -> then` is one of the transitions that exist."""
    return then in _NEXT.get(now, ())
