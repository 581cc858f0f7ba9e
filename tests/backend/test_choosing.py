"""What a person is told before choosing a model, the folders that are looked in, and the memory the engine gets."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import constants

from backend.app import Pagoda
from backend.choosing import Choosing
from backend.engine_source import EngineSource
from backend.gateway import Gateway
from backend.journal import Journal
from engine.client import EngineClient
from engine.synth import synthesise
from tests.backend.scripted import ScriptedSource
from tests.backend.served import Served, serve


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model in it, and one in a folder below."""
    folder = tmp_path_factory.mktemp("models")
    synthesise(folder / "tiny", "olmoe", layers=2, experts=8, hidden=64, expert_hidden=64)
    (folder / "below" / "broken").mkdir(parents=True)
    (folder / "below" / "broken" / "config.json").write_text("{}")
    (folder / "below" / "broken" / "model.safetensors").write_bytes(b"not at all")
    return folder


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    async with serve(tmp_path) as one:
        yield one


async def test_models_of_a_folder_join_in_and_are_forgotten_with_it(served: Served, models: Path, tmp_path: Path):
    choosing = served.pagoda.choosing
    answer = await served.client.post("/api/folders", json={"path": str(models)})
    tiny, broken = str(models / "tiny"), str(models / "below" / "broken")
    assert answer.json() == {"found": [broken, tiny], "folders": [str(models)]}
    assert tiny in [model.name for model in choosing.local_models()]
    again = Choosing(served.gateway, tmp_path)
    assert again.folders() == [str(models)], "a restart remembers"
    await served.client.delete("/api/folders", params={"path": str(models)})
    assert tiny not in [model.name for model in choosing.local_models()]


@pytest.mark.parametrize(
    ("path", "words"), [("/no/such", "no folder"), ("rel/ative", "whole path"), ("{tmp}", "No model")]
)
async def test_a_folder_without_models_is_told(served: Served, tmp_path: Path, path: str, words: str):
    (tmp_path / "empty").mkdir()
    answer = await served.client.post("/api/folders", json={"path": path.replace("{tmp}", str(tmp_path / "empty"))})
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]


async def test_a_forecast_says_what_each_budget_buys_and_is_remembered(served: Served, models: Path, tmp_path: Path):
    await served.client.post("/api/folders", json={"path": str(models)})
    name = str(models / "tiny")
    answer = await served.client.get("/api/forecast", params={"model": name}, timeout=None)
    said = answer.json()["forecast"]
    steps = said["steps"]
    assert (steps[0]["budget_bytes"], steps[-1]["budget_bytes"]) == (said["least_bytes"], said["whole_bytes"])
    assert steps[-1]["share"] == 1.0 and 0 < steps[0]["share"] < 1
    assert [s["tokens_per_s"] for s in steps] == sorted(s["tokens_per_s"] for s in steps)
    assert said["whole_bytes"] - said["least_bytes"] < said["expert_bytes"]
    assert answer.json()["measured"] == []
    again = Choosing(served.gateway, tmp_path)
    assert (await again.forecast(name))["forecast"] == said
    broken = await served.client.get("/api/forecast", params={"model": str(models / "below" / "broken")}, timeout=None)
    assert broken.json()["forecast"]["problem"]


async def test_only_models_of_this_computer_are_looked_at(served: Served, models: Path):
    answer = await served.client.get("/api/forecast", params={"model": str(models / "tiny")})
    assert answer.status_code == 400, "its folder was not named"
    answer = await served.client.get("/api/forecast", params={"model": "default"})
    assert answer.json()["forecast"] is None, "it is not made yet"


async def test_memory_is_set_between_two_replies_and_kept(tmp_path: Path, models: Path):
    engine = EngineClient(str(models / "tiny"), tmp_path)
    pagoda = Pagoda(tmp_path, [EngineSource(engine.model, engine)], engine, model=engine.model)
    pagoda.gateway.start()
    await engine.start()
    loaded = await asyncio.wait_for(engine.wait_ready(), 60)
    assert not loaded.paged
    chat = pagoda.gateway.create_conversation(sampling={"max_tokens": 40})["id"]
    sent = pagoda.gateway.send(chat, "r", "Go on")
    while pagoda.gateway.attempt(sent.attempt_id).state != "streaming":
        await asyncio.sleep(0.01)
    least = loaded.budget_bytes - loaded.slot_bytes
    said = pagoda.choosing.set_memory(loaded.budget_bytes + 1)
    assert said["waits"] and engine.status.state == "ready", "not under a reply that is being written"
    while not pagoda.gateway.attempt(sent.attempt_id).state.terminal:
        await asyncio.sleep(0.01)
    assert pagoda.gateway.attempt(sent.attempt_id).state == "complete"
    while engine.status.loaded is None or engine.status.loaded.budget_bytes != loaded.budget_bytes + 1:
        await asyncio.sleep(0.01)
    assert not pagoda.choosing.memory()["waits"]
    pagoda.choosing.set_memory(None)
    assert least > 0
    await pagoda.choosing.close()
    await pagoda.gateway.close()
    await engine.close()
    pagoda.journal.close()


async def test_what_was_set_holds_after_a_restart_unless_the_start_names_another(tmp_path: Path):
    journal = Journal(tmp_path)
    gateway = Gateway(journal, [ScriptedSource()])
    engine = EngineClient("default", tmp_path)
    Choosing(gateway, tmp_path, engine).set_memory(3_000_000_000)
    again = EngineClient("default", tmp_path)
    Choosing(gateway, tmp_path, again)
    assert again.memory_bytes == 3_000_000_000
    named = EngineClient("default", tmp_path)
    Choosing(gateway, tmp_path, named, memory_bytes=5_000_000_000)
    assert named.memory_bytes == 5_000_000_000
    await gateway.close()
    journal.close()


async def test_where_nothing_runs_there_is_nothing_to_set(served: Served):
    assert (await served.client.get("/api/memory")).json() == {}
    answer: httpx.Response = await served.client.put("/api/memory", json={"memory_bytes": 1_000_000_000})
    assert answer.status_code == 409
    assert (await served.client.post("/api/downloads", json={"name": "org/name"})).status_code == 409
