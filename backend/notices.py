"""What subscribers hear besides chunks: rows of the sidebar, messages and the model, whenever one of them changed."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Notice:
    """`data` by kind:

    conversation  the sidebar's row (new, renamed, running, percent, unread, failed: whatever changed)
    deleted       {"id"}: the conversation is gone
    branch        {"id"}: other messages of the conversation are on screen now (edited, deleted, another branch)
    message       a message in the shape of `Gateway.conversation` (new, a new attempt, another version selected)
    model         what `Gateway.model_status` says now
    downloads     {"rows"}: what is on its way from the hub (backend/downloads.py)
    closing       Pagoda is shutting down: nothing follows
    """

    kind: Literal["conversation", "deleted", "branch", "message", "model", "downloads", "closing"]
    conversation_id: str | None
    data: dict[str, Any]
