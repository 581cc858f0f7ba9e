"""Page and engine are killed in the middle of a reply; Continue gives what it would have been, and reads little."""

from pathlib import Path

import pytest

from tests.browser.running_pagoda import RunningPagoda, until
from tests.chaos.faults import both_killed
from tests.chaos.reader import Reader
from tests.engine.tool_models import thinking_model

TOKENS = 1200
TRIES = 5  # the model is small: on a fast machine a reply can be over before this test hears of its beginning
QUESTIONS = ("What grows in the shade of the old wall? " * 12, "And what grows there in the sun?")


@pytest.mark.parametrize("drawn", [{"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.95, "seed": 7}])
def test_a_reply_of_killed_processes_goes_on_as_if_it_had_never_ended(tmp_path: Path, drawn: dict):
    model, data = thinking_model(tmp_path / "model"), tmp_path / "data"
    data.mkdir()
    pagoda = RunningPagoda(data, "--model", str(model))

    def conversation() -> str:
        """With one whole turn in it."""
        made = pagoda.call("POST", "/api/conversations", {"sampling": {**drawn, "max_tokens": 40}})["id"]
        ended(made, say(made, QUESTIONS[0]))
        pagoda.call("PATCH", f"/api/conversations/{made}", {"sampling": {**drawn, "max_tokens": TOKENS}})
        return made

    def say(made: str, text: str) -> dict:
        body = {"request_id": f"{made} {text[:9]}", "text": text}
        return pagoda.call("POST", f"/api/conversations/{made}/messages", body)

    def ended(made: str, sent: dict) -> dict:
        Reader(pagoda.url, made, sent["attempt_id"]).finish()
        last = pagoda.conversation(made)["messages"][-1]["attempts"]
        return next(attempt for attempt in last if attempt["id"] == sent["attempt_id"])

    try:
        pagoda.wait_until_ready()
        quiet = conversation()
        whole = ended(quiet, say(quiet, QUESTIONS[1]))
        assert whole["state"] == "complete" and whole["usage"]["completion_tokens"] > 200

        for _ in range(TRIES):
            broken = conversation()
            until(lambda: list((data / "prefixes").glob("*/*-*.safetensors")), "the first turn is on disk")
            reader = Reader(pagoda.url, broken, say(broken, QUESTIONS[1])["attempt_id"])
            reader.wait_for(20)
            with pagoda.engine_held():
                both_killed(pagoda, tmp_path)
            reader.finish()
            pagoda.wait_until_ready()
            part = pagoda.conversation(broken)["messages"][-1]
            if part["attempts"][-1]["state"] == "interrupted":
                break
        else:
            pytest.fail("each reply was over before it could be killed")
        assert part["text"]
        on = pagoda.call("POST", f"/api/messages/{part['id']}/continue", {})
        rest = ended(broken, on)
        assert rest["text"].startswith(whole["text"]), "the reply that was never interrupted"
        assert rest["usage"]["cached_tokens"] >= 80, "the first turn was not read again"
    finally:
        pagoda.stop()
