"""What can go wrong in the gateway, each with a sentence for a person and the HTTP status it becomes.

GatewayError
├── Invalid       400  the request says something that cannot be done
├── NotFound      404  no such conversation, message or attempt
├── TooLarge      413  a message longer than any model here reads
├── Conflict      409  it is there, but not in a state where this can be done
├── Busy          429  too many requests wait already
├── NotReady      503  the model is still loading, or failed to
├── Unavailable   503  Pagoda is shutting down
├── CannotWrite   507  the journal could not be written: nothing that is not on disk is shown
└── CannotStart        Pagoda cannot start on this data folder
    ├── FolderInUse    another Pagoda holds it
    └── ForeignData    the database was written by a newer Pagoda, or is no database of ours
"""


class GatewayError(Exception):
    """Base of all. `message` says what happened, why, and what to do next; `param` names the field it is about."""

    status = 500
    kind = "internal_error"
    retry_after: int | None = None  # seconds after which asking again may help

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param


class Invalid(GatewayError):
    """The request asks for something that cannot be done."""

    status = 400
    kind = "invalid_request"


class NotFound(GatewayError):
    """The conversation, message or attempt does not exist (any more)."""

    status = 404
    kind = "not_found"


class TooLarge(GatewayError):
    """The message is longer than what is taken."""

    status = 413
    kind = "too_large"


class Conflict(GatewayError):
    """The thing exists, but what was asked does not fit its present state."""

    status = 409
    kind = "conflict"


class Busy(GatewayError):
    """Too many requests wait already."""

    status = 429
    kind = "rate_limit_exceeded"
    retry_after = 5


class NotReady(GatewayError):
    """The model cannot reply yet. `retry_after` None: waiting alone will not help."""

    status = 503
    kind = "model_not_ready"


class Unavailable(GatewayError):
    """Pagoda is on its way out and accepts nothing new."""

    status = 503
    kind = "unavailable"


class CannotWrite(GatewayError):
    """The journal could not be written, so nothing was done."""

    status = 507
    kind = "cannot_write"


class CannotStart(GatewayError):
    """Pagoda cannot run on this data folder; nothing in it was changed."""

    kind = "cannot_start"


class FolderInUse(CannotStart):
    """Another Pagoda has this data folder open."""


class ForeignData(CannotStart):
    """The database in the data folder is not one that this Pagoda can read."""
