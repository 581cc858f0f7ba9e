"""Finds rows for the gateway, or says in words that they are gone."""

from backend.branches import Branches
from backend.columns import damage_told
from backend.errors import Conflict, Invalid, NotFound
from backend.journal import Journal
from backend.rows import Attempt, Conversation, Message, Summary


class Lookup:
    """Every method raises NotFound when there is no such thing (any more)."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def conversation(self, id: str) -> Conversation:
        if (row := self._journal.conversation(id)) is None:
            raise NotFound("This conversation does not exist any more.")
        return row

    def summary(self, id: str) -> Summary:
        rows = self._journal.summaries(id)
        if not rows:
            raise NotFound("This conversation does not exist any more.")
        return rows[0]

    def reply(self, message_id: str) -> Message:
        """An assistant message; raises Invalid for a user message."""
        if (message := self._journal.message(message_id)) is None:
            raise NotFound("This message does not exist any more.")
        if message.role != "assistant":
            raise Invalid("Only a reply has versions, not a message that you wrote.")
        return message

    def turn(self, message_id: str) -> tuple[Message, Branches]:
        """The user message of the turn that a message belongs to, and the branches around it."""
        if (message := self._journal.message(message_id)) is None:
            raise NotFound("This message does not exist any more.")
        branches = self.branches(message.conversation_id)
        return branches.user_of(message_id), branches

    @damage_told()
    def branches(self, conversation_id: str) -> Branches:
        """All turns of a conversation."""
        return Branches(self._journal.messages(conversation_id))

    def attempt(self, id: str | None) -> Attempt:
        if id is None or (attempt := self._journal.attempt(id)) is None:
            raise NotFound("This version of the reply does not exist any more.")
        return attempt

    def place_of(self, attempt_id: str) -> tuple[str, bool]:
        """The conversation of an attempt, and whether it has ended."""
        if (place := self._journal.place_of(attempt_id)) is None:
            raise NotFound("This version of the reply does not exist any more.")
        return place

    def repeated(self, request_id: str | None, message_id: str) -> str | None:
        """The attempt that this request id made before, if it did; Conflict when it was for another message."""
        attempt = self._journal.attempt_of_request(request_id) if request_id else None
        if attempt is not None and attempt.message_id != message_id:
            raise Conflict("This request id was used for another message.")
        return attempt.id if attempt else None
