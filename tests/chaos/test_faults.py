"""Pagoda is broken while two replies stream, at moments drawn from a seed that is printed, and nothing is lost."""

import random
from pathlib import Path

from tests.browser.running_pagoda import RunningPagoda, alive, until
from tests.chaos.faults import FAULTS, HARMLESS, SLOW
from tests.chaos.invariant import check, check_copy, states
from tests.chaos.ledger import Ledger
from tests.chaos.reader import Reader

TOKENS = 400
SLOW_EVERY = 5  # rounds


def test_whatever_breaks_nothing_that_was_received_is_lost_or_mixed(tmp_path: Path, model: Path, ledger: Ledger):
    draw = ledger.draw("faults")
    (tmp_path / "data").mkdir()
    pagoda = RunningPagoda(tmp_path / "data", "--model", str(model))
    try:
        pagoda.wait_until_ready()
        prompts: dict[str, list[str]] = {
            pagoda.new_conversation(max_tokens=TOKENS, temperature=1.0): [] for _ in range(2)
        }
        for number in range(ledger.rounds):
            slow = SLOW if ledger.long and number % SLOW_EVERY == 0 else set()
            for name in draw.sample(names := sorted(set(FAULTS) - SLOW | slow), len(names)):
                ledger.chunks += _round(pagoda, name, f"{number} {name}", draw, prompts, tmp_path)
                ledger.survived(name, *FAULTS[name][1:])
    finally:
        pagoda.stop()


def _round(
    pagoda: RunningPagoda, name: str, label: str, draw: random.Random, prompts: dict[str, list[str]], folder: Path
) -> int:
    """Two replies, one fault in the middle of them, and the check. Returns how many chunks were checked."""
    pids = pagoda.pid, pagoda.engine_pid
    handles = {pid: open_files(pid) for pid in pids}
    readers = []
    for conversation, said in prompts.items():
        said.append(f"Tell me of {label}.")
        sent = pagoda.send(conversation, said[-1], f"{conversation} {label}")
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
    for pid in {pagoda.pid, pagoda.engine_pid} & set(pids):
        until(lambda pid=pid: open_files(pid) <= handles[pid] + 2, f"the files opened during {name} are closed")
    return checked


def open_files(pid: int) -> int:
    """Of a process, where the system tells."""
    folder = Path(f"/proc/{pid}/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0
