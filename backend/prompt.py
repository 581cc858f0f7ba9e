"""What the model is given to read: the turns before a message, each with the version a person selected.

Failed, unfinished and empty replies never enter, nor do messages that were too long for the model. User messages
that this leaves next to each other are merged, because many chat templates insist on alternating roles.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from backend.chunks import Chunk, Text
from backend.rows import Attempt, Message
from backend.states import Reason, State


def build(
    system: str | None, messages: Sequence[Message], attempts: Mapping[str, Sequence[Attempt]], until: str
) -> tuple[dict[str, str], ...]:
    """The messages for the chat template that the assistant message `until` answers."""
    prompt = [{"role": "system", "content": system}] if system else []
    too_long = _too_long(messages, attempts, until)
    for message in messages:
        if message.id in too_long:
            continue
        if message.id == until:
            break
        if message.role == "assistant":
            reply = _selected(message, attempts.get(message.id, ()))
            if reply is not None and enters_prompt(reply):
                prompt.append({"role": "assistant", "content": reply.text})
        elif prompt and prompt[-1]["role"] == "user":
            prompt[-1]["content"] += f"\n\n{message.text}"
        else:
            prompt.append({"role": "user", "content": message.text})
    return tuple(prompt)


def enters_prompt(attempt: Attempt) -> bool:
    """Whether later turns may read this reply."""
    return attempt.state.terminal and attempt.state != State.FAILED and bool(attempt.text.strip())


def exact_tokens(chunks: Sequence[Chunk]) -> tuple[int, ...] | None:
    """The ids behind the whole text of an attempt, or None when some of it came without (from another source).

    The first text tells: what follows without ids is only what the engine's detokenizer still held at the end.
    """
    texts = [chunk.data for chunk in chunks if isinstance(chunk.data, Text)]
    first = next((text for text in texts if text.text), None)
    if first is None or not first.tokens:
        return None
    return tuple(token for text in texts for token in text.tokens)


def _too_long(messages: Sequence[Message], attempts: Mapping[str, Sequence[Attempt]], until: str) -> set[str]:
    """The user messages of earlier turns to which every answer failed because the prompt did not fit. Read again,
    such a message would make every later prompt fail as well."""
    found = set()
    for user, reply in pairwise(messages):
        tried = attempts.get(reply.id, ())
        answered = user.role == "user" and reply.role == "assistant" and reply.id != until and len(tried) > 0
        if answered and all(attempt.reason == Reason.TOO_LONG for attempt in tried):
            found.add(user.id)
    return found


def _selected(message: Message, attempts: Sequence[Attempt]) -> Attempt | None:
    return next((attempt for attempt in attempts if attempt.id == message.selected_attempt), None)
