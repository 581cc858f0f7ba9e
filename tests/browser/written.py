"""Conversations that are there already when Pagoda starts, as an earlier Pagoda left them."""

import time
from pathlib import Path

from backend.chunks import Chunk, StateChange, Text
from backend.journal import Journal
from backend.rows import Attempt, Conversation, Message
from backend.states import Reason, State


def write_turns(data_dir: Path, id: str, turns: list[tuple[str, str]]) -> None:
    """A conversation of these prompts and replies."""
    journal = Journal(data_dir)
    now = time.time()
    journal.add_conversation(Conversation(id, "Written elsewhere", "default", now, now))
    for number, (prompt, reply) in enumerate(turns):
        attempt = Attempt(f"{id}_a{number}", f"{id}_m{2 * number + 1}", id, 0, "default", now)
        before = f"{id}_m{2 * number - 1}" if number else None
        user = Message(f"{id}_m{2 * number}", id, 2 * number, "user", now, prompt, f"{id}_r{number}", parent=before)
        answer = Message(
            attempt.message_id, id, 2 * number + 1, "assistant", now,
            current_attempt=attempt.id, selected_attempt=attempt.id,
        )  # fmt: skip
        journal.add_turn(user, answer, attempt, "Written elsewhere")
        address = {"conversation_id": id, "message_id": answer.id, "attempt_id": attempt.id}
        journal.append(Chunk(**address, seq=0, offset=0, kind="text", data=Text(reply)))
        end = StateChange(State.COMPLETE, Reason.STOP)
        journal.append(Chunk(**address, seq=1, offset=len(reply), kind="state", data=end))
    journal.change_conversation(id, unread=False)
    journal.close()
