"""A conversation changes its model, and keeps what was said."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from engine.synth import synthesise
from tests.browser.person import Person
from tests.browser.running_pagoda import RunningPagoda, give_model


@pytest.fixture(scope="module")
def pagoda(
    tmp_path_factory: pytest.TempPathFactory, default_data_dir: Path, monkeypatch_module: pytest.MonkeyPatch
) -> Iterator[RunningPagoda]:
    data_dir = tmp_path_factory.mktemp("data")
    give_model(data_dir, default_data_dir)
    snapshot = tmp_path_factory.mktemp("hub") / "models--org--tiny" / "snapshots" / "0123"
    synthesise(snapshot, "olmoe", layers=2, experts=4, hidden=64, expert_hidden=64)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0123")
    monkeypatch_module.setenv("HF_HUB_CACHE", str(snapshot.parents[2]))
    running = RunningPagoda(data_dir)
    running.wait_until_ready()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def test_another_model_goes_on_with_the_conversation(person: Person, pagoda: RunningPagoda):
    chat = pagoda.new_conversation(max_tokens=3)
    person.open_conversation(chat).say("First").wait_until("complete")
    picker = person.page.get_by_role("button", name="Choose another")
    expect(picker).to_contain_text("SmolLM2")
    picker.click()
    tiny = person.page.get_by_role("dialog").get_by_role("button", name="org/tiny")
    expect(tiny).to_contain_text("from the hub")
    tiny.click()
    expect(picker).to_contain_text("org/tiny")
    person.say("Second").wait_until("complete")
    expect(person.prompts.locator(".pg-bubble")).to_have_text(["First", "Second"])
    models = [m["attempts"][0]["model"] for m in pagoda.conversation(chat)["messages"][1::2]]
    assert models == ["default", "org/tiny"]
    picker.click()
    expect(tiny).to_contain_text("in memory")
    expect(tiny).to_have_attribute("aria-pressed", "true")
