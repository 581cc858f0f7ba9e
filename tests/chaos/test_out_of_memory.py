"""The system ends the engine because memory runs out: a person is told how much it may be given, and that works."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.synth import synthesise
from tests.browser.running_pagoda import RunningPagoda, until
from tests.chaos.ledger import Ledger
from tests.chaos.reader import Reader

GROUPS = Path("/sys/fs/cgroup/memory")  # version 1; where version 2 rules, a test may not make groups so simply
LIMIT = 720 << 20


@pytest.fixture
def group() -> Iterator[Path]:
    if sys.platform != "linux" or os.geteuid() != 0 or not (GROUPS / "memory.limit_in_bytes").exists():
        pytest.skip("needs root on Linux with control groups of version 1")
    group = GROUPS / f"pagoda-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"a control group cannot be made here: {error}")
    (group / "memory.limit_in_bytes").write_text(str(LIMIT))
    yield group
    group.rmdir()


@pytest.mark.timeout(400)
def test_an_engine_that_ran_out_of_memory_names_a_budget_and_that_budget_works(
    group: Path, tmp_path: Path, ledger: Ledger
):
    if not ledger.long:
        pytest.skip("takes minutes: make chaos")
    model, data = tmp_path / "model", tmp_path / "data"
    data.mkdir()
    synthesise(model, "qwen3-moe", layers=6, experts=160, hidden=512, expert_hidden=768, top_k=8, vocab=2000)
    join = ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
    greedy = RunningPagoda(data, "--model", str(model), "--memory", "4GB", before=join)
    try:
        until(lambda: greedy.get("/healthz")["model"]["state"] != "loading", "it gave up or loaded", 120)
        status = greedy.get("/healthz")["model"]
        words = status["detail"] or ""
        if status["state"] == "ready":  # the experts come with the tokens
            conversation = greedy.new_conversation(max_tokens=200, temperature=1.0)
            long = " ".join(f"word {number}" for number in range(600))  # its tokens need every expert
            Reader(greedy.url, conversation, greedy.send(conversation, long, "long")["attempt_id"]).finish()
            words = greedy.attempts(conversation)[0]["detail"] or ""
    finally:
        greedy.stop()
    named = re.search(r"--memory (\d+MB)", words)
    assert named and "memory runs out" in words, words
    modest = RunningPagoda(data, "--model", str(model), "--memory", named[1], before=join)
    try:
        modest.wait_until_ready()
        conversation = modest.new_conversation(max_tokens=60)
        Reader(modest.url, conversation, modest.send(conversation, "And now?")["attempt_id"]).finish()
        assert modest.attempts(conversation)[0]["state"] == "complete"
    finally:
        modest.stop()
    ledger.survived("engine out of memory", "the reply is interrupted; it names a --memory that works", "every chunk")
