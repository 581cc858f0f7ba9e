"""The turns of a conversation as the tree they are, and the one branch of it that is on screen.

A turn is a user message and its reply. An edited message begins another branch beside the old one; a deleted turn
stays in its place unseen until it is purged, so that Undo puts it back where it was.
"""

import sqlite3
from collections.abc import Iterable, Sequence

from backend.rows import Message


class Branches:
    """Built from all messages of one conversation, deleted ones too, in the order of their positions.

    Raises ValueError or KeyError when they are no tree: a message without its reply, or before its parent.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._users = {m.id: m for m in messages if m.role == "user"}
        self._replies = {m.parent: m for m in messages if m.role == "assistant"}
        self._turn_of = {m.id: m.id if m.role == "user" else m.parent for m in messages}
        self._next = {self._before(user): user for user in self._users.values() if user.chosen}
        if alone := self._users.keys() - self._replies.keys():
            raise ValueError(f"no reply to {', '.join(sorted(alone))}")
        # Parents come before their children, so the nearest turn that can be seen is known when it is asked for.
        self._seen_before: dict[str, str | None] = {}
        self._group: dict[str | None, list[str]] = {}
        for user in self._users.values():
            before = self._before(user)
            if before is not None:
                seen_before = self._seen_before[before]
                before = before if self._users[before].deleted_at is None else seen_before
            self._seen_before[user.id] = before
            if user.deleted_at is None:
                self._group.setdefault(before, []).append(user.id)

    def _before(self, user: Message) -> str | None:
        return None if user.parent is None else self._turn_of[user.parent]

    def _chosen(self) -> Iterable[Message]:
        """The user messages of the branch on screen, deleted ones too."""
        user = self._next.get(None)
        while user is not None:
            yield user
            user = self._next.get(user.id)

    def _with_replies(self, users: Iterable[Message]) -> list[Message]:
        return [m for user in users if user.deleted_at is None for m in (user, self._replies[user.id])]

    def on_screen(self) -> list[Message]:
        """The messages of the chosen branch, in order."""
        return self._with_replies(self._chosen())

    def all(self) -> list[tuple[Message, str | None, bool]]:
        """Every message that is not deleted, with the one before it that is not, and whether its branch is chosen."""
        result = []
        for user in self._users.values():
            if user.deleted_at is not None:
                continue
            before, chosen, id = self._seen_before[user.id], user.chosen, self._before(user)
            while id != before and id is not None:  # a chosen branch may lead through deleted turns
                chosen, id = chosen and self._users[id].chosen, self._before(self._users[id])
            parent = None if before is None else self._replies[before].id
            result += [(user, parent, chosen), (self._replies[user.id], user.id, True)]
        return result

    def tip(self) -> str | None:
        """The message that the next one sent will follow."""
        users = list(self._chosen())
        return self._replies[users[-1].id].id if users else None

    def user_of(self, message_id: str) -> Message:
        """The user message of the turn that a message belongs to."""
        turn = self._turn_of[message_id]
        assert turn is not None
        return self._users[turn]

    def line_to(self, message_id: str) -> list[Message]:
        """What was said up to a message and with it, on whatever branch it is."""
        return self._with_replies(self._users[id] for id in self.way_to(message_id))

    def way_to(self, message_id: str | None) -> list[str]:
        """The user messages to choose so that a message is on screen, deleted ones too. None: no message."""
        way: list[str] = []
        turn = self._turn_of[message_id] if message_id is not None else None
        while turn is not None:
            way.append(turn)
            turn = self._before(self._users[turn])
        return way[::-1]

    def versions(self, message_id: str) -> list[str]:
        """The user messages that stand, each with what followed it, in the place of this one; oldest first."""
        return self._group.get(self._seen_before[self.user_of(message_id).id], [])

    def following(self, message_id: str) -> list[Message]:
        """The replies of the chosen branch from this turn on; none where the turn is not on screen."""
        messages, user = self.on_screen(), self.user_of(message_id)
        start = next((i for i, m in enumerate(messages) if m.id == user.id), len(messages))
        return [m for m in messages[start:] if m.role == "assistant"]


def choose(db: sqlite3.Connection, way: Sequence[str]) -> None:
    """Put the branch of these user messages on screen, each before the next."""
    for id in way:
        db.execute(
            """UPDATE messages SET chosen = (messages.id = this.id) FROM (SELECT * FROM messages WHERE id = ?) AS this
               WHERE messages.conversation_id = this.conversation_id AND messages.role = 'user'
               AND messages.parent IS this.parent""",
            (id,),
        )
