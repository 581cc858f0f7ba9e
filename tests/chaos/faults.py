"""The ways in which Pagoda is broken while it answers. Each leaves it running again, to be checked."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.browser.running_pagoda import REPOSITORY, START, RunningPagoda, alive
from tests.chaos.invariant import copy_database

Fault = Callable[[RunningPagoda, Path], None]


def engine_killed(pagoda: RunningPagoda, spare: Path) -> None:
    pagoda.kill_engine()


def app_killed(pagoda: RunningPagoda, spare: Path) -> None:
    pagoda.kill()
    pagoda.start()


def both_killed(pagoda: RunningPagoda, spare: Path) -> None:
    pagoda.kill_both()
    pagoda.start()


def engine_held(pagoda: RunningPagoda, spare: Path) -> None:
    with pagoda.engine_held():
        assert pagoda.get("/healthz")["status"] == "ok"


def engine_held_long(pagoda: RunningPagoda, spare: Path) -> None:
    """Longer than any patience: only a person ends a reply."""
    with pagoda.engine_held():
        until = time.monotonic() + 40
        while time.monotonic() < until:
            assert pagoda.get("/healthz")["status"] == "ok"
            time.sleep(1)


def terminated(pagoda: RunningPagoda, spare: Path) -> None:
    _ended_by(pagoda, signal.SIGTERM)


def control_c(pagoda: RunningPagoda, spare: Path) -> None:
    _ended_by(pagoda, signal.SIGINT)


def _ended_by(pagoda: RunningPagoda, how: signal.Signals) -> None:
    engine = pagoda.engine_pid
    status, seconds = pagoda.end(how)
    assert status == 0 and seconds < 5  # the promise itself
    assert not alive(engine), "the engine outlived an orderly end"
    pagoda.start()


def second_pagoda(pagoda: RunningPagoda, spare: Path) -> None:
    command = [sys.executable, "-c", START, "serve", "--no-open", "--port", "0", "--data", str(pagoda.data_dir)]
    second = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert second.returncode == 1 and f"process {pagoda.pid}" in second.stderr, second.stderr


def folder_copied(pagoda: RunningPagoda, spare: Path) -> None:
    """What a power cut leaves: the files of one moment. The copy is opened by a Pagoda of its own."""
    os.kill(pagoda.pid, signal.SIGSTOP)
    try:
        copy_database(pagoda.data_dir, spare)
    finally:
        os.kill(pagoda.pid, signal.SIGCONT)
    copy = RunningPagoda(spare, *pagoda.options)
    try:
        for row in copy.get("/api/conversations"):
            assert copy.conversation(row["id"])["id"] == row["id"] and not row["running"]
    finally:
        copy.stop()


# What is broken -> (how, what a person sees, what is kept), the words for the table of the report.
FAULTS: dict[str, tuple[Fault, str, str]] = {
    "engine killed (SIGKILL)": (engine_killed, "the reply is interrupted, Continue goes on", "every chunk"),
    "Pagoda killed (SIGKILL)": (app_killed, "the page reconnects, the reply is interrupted", "every chunk"),
    "both killed": (both_killed, "the page reconnects, the reply is interrupted", "every chunk"),
    "engine frozen (SIGSTOP, SIGCONT)": (engine_held, "the reply waits, then goes on", "the whole reply"),
    "engine frozen for 40 s": (engine_held_long, "the page says that it is silent; it goes on", "the whole reply"),
    "SIGTERM": (terminated, "it ends within 5 s; the reply is interrupted", "every chunk"),
    "Ctrl-C": (control_c, "it ends within 5 s; the reply is interrupted", "every chunk"),
    "second Pagoda on the folder": (second_pagoda, "it refuses, naming the first", "the whole reply"),
    "power cut (copy of the folder)": (folder_copied, "the copy opens", "what was written by that moment"),
}

# These end no reply: all of them become complete.
_ENDS_NOTHING = (engine_held, engine_held_long, second_pagoda, folder_copied)
HARMLESS = {name for name, (fault, _, _) in FAULTS.items() if fault in _ENDS_NOTHING}
# Too slow for `make test`, and not for every round.
SLOW = {name for name, (fault, _, _) in FAULTS.items() if fault is engine_held_long}
