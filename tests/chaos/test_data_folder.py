"""A database that was damaged, is held, is older or newer; a folder that may not be written; a clock that jumps."""

import hashlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from backend import migrations
from backend.errors import ForeignData
from tests.backend.served import serve
from tests.browser.running_pagoda import REPOSITORY, START, RunningPagoda
from tests.browser.written import write_turns
from tests.chaos.conftest import Disk
from tests.chaos.ledger import Ledger
from tests.chaos.reader import Reader

# No engine at all: these tests are about the folder.
NO_MODEL = ("--model", "far/none", "--upstream", "far=http://127.0.0.1:9/v1")
TURNS = [(f"Question {n}", f"Answer {n}. " * 200) for n in range(40)]


def start_and_end(folder: Path) -> subprocess.CompletedProcess:
    """A `pagoda serve` that is expected not to start."""
    command = [sys.executable, "-c", START, "serve", "--no-open", "--port", "0", "--data", str(folder), *NO_MODEL]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


def fingerprint(folder: Path) -> dict[str, str]:
    """Of the files that a database is made of."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("pagoda.db*"))}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_turns(folder, "c_old", TURNS)
    return folder


def damage(path: Path, draw: random.Random) -> str:
    """One of the ways in which disks and people damage a file."""
    content = bytearray(path.read_bytes())
    how = draw.choice(["cut short", "a page of zeros", "bytes changed", "not a database"])
    place = draw.randrange(0, len(content) - 4096)
    if how == "cut short":
        content = content[: draw.randrange(1, len(content))]
    elif how == "a page of zeros":
        content[place : place + 4096] = bytes(4096)
    elif how == "bytes changed":
        for _ in range(50):
            content[draw.randrange(len(content))] = draw.randrange(256)
    else:
        content[:100] = draw.randbytes(100)
    path.write_bytes(content)
    return how


async def test_a_damaged_database_is_refused_in_words_and_left_as_it_is_or_reads_as_far_as_it_goes(
    written: Path, tmp_path: Path, ledger: Ledger
):
    draw = ledger.draw("damaged database")
    for number in range(20 * ledger.rounds):
        folder = tmp_path / str(number)
        shutil.copytree(written, folder)
        how = damage(folder / "pagoda.db", draw)
        before = fingerprint(folder)
        try:
            async with serve(folder) as served:
                for path in ("/api/conversations", "/api/conversations/c_old", "/api/search?q=Answer", "/api/export"):
                    answer = await served.client.get(path)
                    words = "" if answer.status_code == 200 else answer.json()["error"]["message"]
                    assert answer.status_code == 200 or "backup" in words, f"{how}: {answer.text}"
        except ForeignData as refused:
            assert str(folder / "pagoda.db") in refused.message and "backup" in refused.message, how
            assert fingerprint(folder)["pagoda.db"] == before["pagoda.db"], how
        shutil.rmtree(folder)
        ledger.survived("database damaged", "it refuses, or says what cannot be read", "all that can still be read")


def test_a_start_on_a_damaged_database_ends_in_words(written: Path, tmp_path: Path):
    shutil.copytree(written, folder := tmp_path / "cut")
    os.truncate(folder / "pagoda.db", 10_000)
    ended = start_and_end(folder)
    assert ended.returncode == 1 and "backup" in ended.stderr and "Traceback" not in ended.stderr, ended.stderr


async def test_a_database_that_another_program_holds_is_read_and_what_is_not_written_is_said(
    written: Path, tmp_path: Path, ledger: Ledger
):
    shutil.copytree(written, folder := tmp_path / "held")
    holder = sqlite3.connect(folder / "pagoda.db", isolation_level=None, check_same_thread=False)
    async with serve(folder) as served:
        holder.execute("BEGIN IMMEDIATE")
        refused = await served.client.post("/api/conversations", json={})
        assert refused.status_code == 507 and "Another program" in refused.json()["error"]["message"]
        messages = (await served.client.get("/api/conversations/c_old")).json()["messages"]
        assert len(messages) == 2 * len(TURNS)
        holder.execute("ROLLBACK")
        assert (await served.client.post("/api/conversations", json={})).status_code == 200
    holder.close()
    ledger.survived("database held by another program", "what could not be written, and why", "everything; it reads")


async def test_an_older_database_is_brought_forward_and_a_newer_one_is_refused_untouched(
    written: Path, tmp_path: Path, ledger: Ledger
):
    for steps in range(1, len(migrations.STEPS)):
        folder = tmp_path / f"older {steps}"
        folder.mkdir(mode=0o700)
        database = sqlite3.connect(folder / "pagoda.db", isolation_level=None)
        migrations.migrate(database, migrations.STEPS[:steps])
        database.execute(
            "INSERT INTO conversations (id, title, model, sampling, created_at, updated_at) "
            "VALUES ('c_1', 'Of long ago', 'default', '{}', 1, 1)"
        )
        database.close()
        async with serve(folder) as served:
            [row] = (await served.client.get("/api/conversations")).json()
            assert row["title"] == "Of long ago"
        ledger.survived("database of an older Pagoda", "nothing", "everything, brought forward")
    newer = tmp_path / "newer"
    shutil.copytree(written, newer)
    database = sqlite3.connect(newer / "pagoda.db")
    database.execute("INSERT INTO migrations (name, applied_at) VALUES ('of_next_year', 1)")
    database.commit()
    database.close()
    before = fingerprint(newer)
    ended = start_and_end(newer)
    assert ended.returncode == 1 and "newer" in ended.stderr, ended.stderr
    assert fingerprint(newer)["pagoda.db"] == before["pagoda.db"]
    ledger.survived("database of a newer Pagoda", "it refuses", "the file, untouched")


def test_a_folder_that_may_not_be_written_is_said(small_disk: Disk, tmp_path: Path, ledger: Ledger):
    disk = small_disk(64)

    def make(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)

    make("ro")
    ended = start_and_end(disk)
    assert ended.returncode == 1 and "Read-only" in ended.stderr and str(disk) in ended.stderr, ended.stderr
    make("rw")
    pagoda = RunningPagoda(disk, *NO_MODEL, log=tmp_path / "serve.log")  # and nothing is wrong with it afterwards
    try:
        conversation = pagoda.new_conversation(max_tokens=1)
    finally:
        pagoda.stop()
    make("ro")
    assert start_and_end(disk).returncode == 1
    make("rw")
    database = sqlite3.connect(disk / "pagoda.db")
    assert database.execute("SELECT id FROM conversations").fetchall() == [(conversation,)]
    database.close()
    ledger.survived("data folder that may not be written", "it refuses, naming the folder", "everything")


# The clock of the page's process, moved by the number of seconds that stand in a file.
JUMPING = """
import os, time
real = time.time
def moved():
    try:
        return real() + float(open(os.environ["PAGODA_TEST_CLOCK"]).read() or 0)
    except OSError:
        return real()
time.time = moved
"""


def test_a_clock_that_jumps_harms_nothing(tmp_path: Path, model: Path, ledger: Ledger):
    far = 400 * 86_400.0
    draw = ledger.draw("clock")
    clock = tmp_path / "clock"
    clock.write_text("0")
    (tmp_path / "data").mkdir()
    pagoda = RunningPagoda(
        tmp_path / "data", "--model", str(model), env={"PAGODA_TEST_CLOCK": str(clock)}, start=JUMPING + START
    )
    try:
        pagoda.wait_until_ready()
        conversation = pagoda.new_conversation(max_tokens=400, temperature=1.0)
        for number in range(1 + ledger.rounds):
            reader = Reader(pagoda.url, conversation, pagoda.send(conversation, f"Jump {number}")["attempt_id"])
            reader.wait_for(draw.randrange(1, 300))
            aside = clock.with_suffix(".new")
            aside.write_text(str(draw.uniform(-far, far)))
            os.replace(aside, clock)
            reader.finish()
            attempt = pagoda.attempts(conversation)[-1]
            assert attempt["state"] == "complete"
            assert all(value >= 0 for value in attempt["timings"].values() if isinstance(value, int | float)), attempt
            assert [m["text"] for m in pagoda.conversation(conversation)["messages"][::2]] == [
                f"Jump {n}" for n in range(number + 1)
            ]
            ledger.survived("clock set forward or back by up to 400 days", "nothing", "the whole reply")
    finally:
        pagoda.stop()
