"""Pagoda is broken while two replies stream, at moments drawn from a seed that is printed, and nothing is lost.

PAGODA_CHAOS_ROUNDS (1), PAGODA_CHAOS_SEED (drawn) and PAGODA_CHAOS_REPORT (none) are what `make chaos` sets.
"""

import os
import random
import secrets
from datetime import date
from pathlib import Path

from tests.browser.running_pagoda import RunningPagoda, alive, until
from tests.chaos.faults import FAULTS, HARMLESS
from tests.chaos.invariant import check, check_copy, states
from tests.chaos.reader import Reader
from tests.engine.tool_models import thinking_model

TOKENS = 400


def test_whatever_breaks_nothing_that_was_received_is_lost_or_mixed(tmp_path: Path):
    rounds = int(os.environ.get("PAGODA_CHAOS_ROUNDS") or 1)
    seed = int(os.environ.get("PAGODA_CHAOS_SEED") or secrets.randbelow(10**6))
    print(f"PAGODA_CHAOS_SEED={seed} PAGODA_CHAOS_ROUNDS={rounds}")
    draw = random.Random(seed)
    model = thinking_model(tmp_path / "model")
    (tmp_path / "data").mkdir()
    counts = dict.fromkeys(FAULTS, 0)
    checked = 0
    pagoda = RunningPagoda(tmp_path / "data", "--model", str(model))
    try:
        pagoda.wait_until_ready()
        prompts: dict[str, list[str]] = {
            pagoda.new_conversation(max_tokens=TOKENS, temperature=1.0): [] for _ in range(2)
        }
        for number in range(rounds):
            for name in draw.sample(list(FAULTS), len(FAULTS)):
                checked += _round(pagoda, name, f"{number} {name}", draw, prompts, tmp_path)
                counts[name] += 1
    finally:
        pagoda.stop()
    if report := os.environ.get("PAGODA_CHAOS_REPORT"):
        Path(report).write_text(_report(counts, checked, rounds, seed))


def _round(
    pagoda: RunningPagoda, name: str, label: str, draw: random.Random, prompts: dict[str, list[str]], folder: Path
) -> int:
    """Two replies, one fault in the middle of them, and the check. Returns how many chunks were checked."""
    pids, handles = (pagoda.pid, pagoda.engine_pid), _handles(pagoda)
    readers = []
    for conversation, said in prompts.items():
        said.append(f"Tell me of {label}.")
        body = {"request_id": f"{conversation} {label}", "text": said[-1]}
        sent = pagoda._call("POST", f"/api/conversations/{conversation}/messages", body)
        readers.append(Reader(pagoda.url, conversation, sent["attempt_id"]))
    draw.choice(readers).wait_for(draw.randrange(1, TOKENS))
    fault, _, _ = FAULTS[name]
    copy = folder / f"copy of {label}".replace(" ", "_").replace("/", "_")
    received = [(reader, len(reader.chunks)) for reader in readers]
    fault(pagoda, copy)
    if copy.exists():
        check_copy(copy, received)
    for reader in readers:
        reader.finish()
    pagoda.wait_until_ready()
    checked = check(pagoda, readers, prompts, folder / "check")
    ended = states(pagoda, readers)
    assert ended <= ({"complete"} if name in HARMLESS else {"complete", "interrupted"}), f"{label}: {ended}"
    for pid in set(pids) - {pagoda.pid, pagoda.engine_pid}:
        assert not alive(pid), f"a process of before {name} is left over"
    if pids[0] == pagoda.pid:
        until(lambda: _handles(pagoda) <= handles + 2, f"the files opened during {name} are closed")
    return checked


def _handles(pagoda: RunningPagoda) -> int:
    """Open files of the process that serves, where the system tells."""
    folder = Path(f"/proc/{pagoda.pid}/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def _report(counts: dict[str, int], checked: int, rounds: int, seed: int) -> str:
    rows = [f"| {name} | {FAULTS[name][1]} | {FAULTS[name][2]} | {count} |" for name, count in counts.items()]
    head = "| what breaks while two replies stream | what you see | what is kept | times |\n|---|---|---|---|\n"
    facts = f"{checked:,} received chunks were all found again, on disk and over HTTP"
    return head + "\n".join(rows) + f"\n\n`make chaos ROUNDS={rounds} SEED={seed}`, {date.today()}: {facts}.\n"
