"""A model's files are cut short, replaced or gone while its experts are read from them: said, and nothing made up."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.synth import synthesise
from tests.browser.running_pagoda import RunningPagoda, until
from tests.chaos.ledger import Ledger
from tests.chaos.reader import Reader

MEMORY = "500MB"  # the process and a quarter of the experts


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "model"
    synthesise(folder, "qwen3-moe", layers=4, experts=128, hidden=512, expert_hidden=768, top_k=8, vocab=2000)
    return folder


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "model")


@pytest.fixture
def pagoda(copy: Path, tmp_path: Path) -> Iterator[RunningPagoda]:
    (tmp_path / "data").mkdir()
    running = RunningPagoda(tmp_path / "data", "--model", str(copy), "--memory", MEMORY)
    running.wait_until_ready()
    yield running
    running.stop()


def weights(folder: Path) -> Path:
    return max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)


def cut_short(model: Path, original: Path) -> None:
    os.truncate(weights(model), weights(model).stat().st_size // 2)


def changed_in_place(model: Path, original: Path) -> None:
    with weights(model).open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(bytes(1000))


def replaced(model: Path, original: Path) -> None:
    aside = model / "aside"
    shutil.copyfile(weights(original), aside)
    os.replace(aside, weights(model))


def deleted(model: Path, original: Path) -> None:
    shutil.rmtree(model)


def mend(model: Path, original: Path) -> None:
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(original, model)


FAULTS = {
    "model file cut short": cut_short,
    "model file changed": changed_in_place,
    "model file replaced": replaced,
    "model folder deleted": deleted,
}

UNUSABLE = {"model file cut short"}
HARMLESS = {"model file replaced", "model folder deleted"}  # what is open stays as it was


def test_a_model_whose_files_change_while_it_writes_says_so_and_goes_on_when_they_are_back(
    pagoda: RunningPagoda, copy: Path, original: Path, ledger: Ledger
):
    draw = ledger.draw("model files")
    conversation = pagoda.new_conversation(max_tokens=300, temperature=1.0)
    for number in range(ledger.rounds):
        for name in draw.sample(sorted(FAULTS), len(FAULTS)):
            reader = Reader(pagoda.url, conversation, pagoda.send(conversation, f"{number} {name}")["attempt_id"])
            reader.wait_for(draw.randrange(1, 40))
            print(f"{name} after {len(reader.chunks)} chunks")  # pytest shows it when the test fails
            FAULTS[name](copy, original)
            reader.finish()
            attempt = pagoda.attempts(conversation)[-1]
            assert attempt["text"] == reader.text(), name
            if name in HARMLESS:
                assert attempt["state"] == "complete", attempt
                if not copy.exists():
                    mend(copy, original)
                ledger.survived(name, "nothing: open files stay", "the whole reply")
                # The engine still reads what is no longer at this path: the next fault has to meet what it reads.
                pagoda.stop()
                pagoda.start()
                pagoda.wait_until_ready()
                continue
            assert attempt["state"] == "failed" and str(copy) in attempt["detail"], f"{name}: {attempt}"
            # It is loaded again by itself; where nothing is left to load, a person is told.
            until(lambda: pagoda.get("/healthz")["model"]["state"] != "loading", f"{name}: it is loaded or not")
            model = pagoda.get("/healthz")["model"]
            if name in UNUSABLE:
                assert model["state"] == "failed" and str(copy) in model["detail"], f"{name}: {model}"
                mend(copy, original)
                pagoda.post("/api/model/retry")
            pagoda.wait_until_ready()
            ledger.survived(name, "the reply ends and names the file; the model is loaded again", "every chunk")
    attempt = pagoda.send(conversation, "And now?")["attempt_id"]
    Reader(pagoda.url, conversation, attempt).wait_for(5)
    pagoda.post(f"/api/attempts/{attempt}/stop")
