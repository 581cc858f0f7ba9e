"""Another server dies at every byte of a reply: what it had said is kept, the reply is interrupted, and never mixed."""

from pathlib import Path

from tests.backend.other_server import Answer, delta, sse
from tests.backend.test_upstream import ended, joined
from tests.chaos.ledger import Ledger

WORDS = ["Grüß ", "dich, ", "你好 ", "👋 and ", "good night."]
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
RECORDED = b": ping\n\n" + sse(*map(delta, WORDS[:-1]), delta(WORDS[-1], "stop"), USAGE, "[DONE]")
SHORT_STEP = 11  # `make test` takes every eleventh byte, `make chaos` each one


def said_within(body: bytes) -> str:
    """The words whose whole line had arrived, and those of a last line that lacks nothing but its end."""
    count = sum(body.count(line) for line in (sse(delta(word)).strip() for word in WORDS[:-1]))
    return "".join(WORDS[:count])


async def test_an_upstream_that_dies_at_any_byte_leaves_what_it_said(tmp_path: Path, ledger: Ledger):
    places = range(len(RECORDED)) if ledger.long else range(0, len(RECORDED), SHORT_STEP)
    whole, finished = "".join(WORDS), RECORDED.index(b'"stop"') + len('"stop"')
    async with joined(tmp_path) as (served, other):
        conversation = served.gateway.create_conversation(model="other/small")["id"]
        for place in places:
            body = RECORDED[:place]
            other.answers = [Answer([body[: place // 2], body[place // 2 :]], cut=True)]
            sent = served.gateway.send(conversation, f"r{place}", f"Question {place}")
            attempt = await ended(served, sent.attempt_id)
            assert attempt["text"] in (said_within(body), whole), place
            if place < finished:
                assert attempt["state"] == "interrupted", (place, attempt)
            else:
                assert attempt["state"] in ("interrupted", "complete"), (place, attempt)
        messages = served.gateway.conversation(conversation)["messages"]
        assert [m["text"] for m in messages if m["role"] == "user"] == [f"Question {place}" for place in places]
        assert all(len(m["attempts"]) == 1 for m in messages if m["role"] == "assistant")
    ledger.survived(
        "another server dies at every byte of a reply", "the reply is interrupted", "every word", len(places)
    )
