"""Choosing a model: what it needs, what memory buys, folders, and downloads from the hub with all that can happen."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from engine.synth import synthesise
from tests.browser.conftest import Room
from tests.browser.model_hub import ModelHub, model_hub
from tests.browser.person import Person
from tests.browser.running_pagoda import RunningPagoda, give_model, until
from tests.browser.test_keyboard import CONTRAST


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models: one that works, one that doesn't."""
    folder = tmp_path_factory.mktemp("models")
    synthesise(folder / "tiny", "olmoe", layers=2, experts=8, hidden=64, expert_hidden=256)
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{}")
    (folder / "broken" / "model.safetensors").write_bytes(b"x" * 2000)
    return folder


@pytest.fixture(scope="module")
def hub(models: Path) -> Iterator[ModelHub]:
    with model_hub() as hub:
        hub.offer("org/tiny", models / "tiny")
        yield hub


@pytest.fixture(scope="module")
def pagoda(tmp_path_factory: pytest.TempPathFactory, default_data_dir: Path, hub: ModelHub) -> Iterator[RunningPagoda]:
    data_dir = tmp_path_factory.mktemp("data")
    give_model(data_dir, default_data_dir)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.server.url)
        patch.setenv("HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
        running = RunningPagoda(data_dir)
        running.wait_until_ready()
        yield running
        running.stop()


def picker(person: Person) -> Locator:
    person.page.get_by_role("button", name="Choose another").click()
    return person.page.get_by_role("dialog", name="Which model answers here")


def row(dialog: Locator, name: str) -> Locator:
    return dialog.locator("li > button").filter(has_text=name)


def ask_for(dialog: Locator, name: str) -> Locator:
    """Type the name of a model of the hub, and look at its download."""
    dialog.get_by_label("Name of a model on the hub").fill(name)
    dialog.get_by_role("button", name="Download", exact=True).click()
    return dialog.locator("[data-download]").filter(has_text="/".join(name.split("/")[-2:]))


def loaded(pagoda: RunningPagoda) -> dict:
    """What the engine says of the model that it has in memory; empty while there is none."""
    return pagoda.get("/api/model")["loaded"] or {}


def test_each_model_says_its_size_what_fits_and_how_fast_it_may_be(person: Person, models: Path):
    dialog = picker(person.open())
    expect(row(dialog, "SmolLM2")).to_contain_text(re.compile(r"comes with Pagoda · 130 MB · in memory"))
    expect(row(dialog, "SmolLM2")).to_contain_text(re.compile(r"all 61 MB of experts fit · at most about [\d,]+ tok/s"))
    dialog.get_by_label("Folder on the computer").fill(str(models))
    dialog.get_by_role("button", name="Look there").click()
    expect(dialog).to_contain_text("Models found: 2")
    expect(row(dialog, "/tiny")).to_contain_text("in a folder")
    expect(row(dialog, "/tiny")).to_contain_text(re.compile(r"of experts fit · at most about [\d,]+ tok/s"))
    expect(row(dialog, "/broken").locator(".bad")).to_be_visible()
    expect(row(dialog, "/broken")).to_be_disabled()
    dialog.get_by_role("button", name=f"Look no more in {models}").click()
    expect(row(dialog, "/tiny")).to_have_count(0)
    dialog.get_by_label("Folder on the computer").fill("/no/such/folder")
    dialog.get_by_role("button", name="Look there").click()
    expect(dialog.get_by_role("alert")).to_contain_text("no folder /no/such/folder")


def test_memory_is_set_with_a_slider_that_says_what_it_buys_and_kept(person: Person, pagoda: RunningPagoda):
    dialog = picker(person.open())
    slider = dialog.get_by_role("slider", name="Memory for the model")
    expect(dialog.get_by_label("As much as this machine can spare")).to_be_checked()
    slider.fill("100")
    expect(dialog.locator("#pg-memory-buys")).to_contain_text(
        re.compile(r"experts: [4-6]\d% of 61 MB fit · at most about")
    )
    slider.fill("0")
    expect(dialog.locator("#pg-memory-buys")).to_contain_text(re.compile(r"experts: \d% of 61 MB fit · at most about"))
    expect(dialog.get_by_label("As much as this machine can spare")).not_to_be_checked()
    dialog.get_by_role("button", name="Apply").click()
    expect(dialog.get_by_role("button", name="Apply")).to_be_disabled()
    until(lambda: loaded(pagoda).get("paged"), "the model has less memory")
    chosen = pagoda.get("/api/memory")["chosen_bytes"]
    assert loaded(pagoda)["budget_bytes"] == chosen
    person.page.keyboard.press("Escape")
    reply = person.open_conversation(pagoda.new_conversation(max_tokens=6)).say("Hello").wait_until("complete")
    assert reply.text()
    pagoda.stop()
    pagoda.start()
    pagoda.wait_until_ready()
    assert loaded(pagoda)["budget_bytes"] == chosen
    person.open()
    dialog = picker(person)
    dialog.get_by_label("As much as this machine can spare").check()
    dialog.get_by_role("button", name="Apply").click()
    until(lambda: loaded(pagoda).get("paged") is False, "all of it fits again")


def test_a_download_shows_how_far_it_is_pauses_and_goes_on_then_answers(
    person: Person, pagoda: RunningPagoda, hub: ModelHub
):
    hub.hold()
    dialog = picker(person.open())
    download = ask_for(dialog, "https://huggingface.co/org/tiny")
    expect(download).to_have_attribute("data-download", "loading")
    expect(download).to_contain_text(re.compile(r"[\d.]+ [kM]B of [\d.]+ MB"))
    expect(person.page.get_by_role("button", name="Choose another")).to_contain_text("%")
    download.get_by_role("button", name="Pause").click()
    expect(download).to_contain_text("Paused")
    person.reload()
    dialog = picker(person)
    download = dialog.locator("[data-download]")
    expect(download).to_contain_text("Paused")
    hub.let_go()
    download.get_by_role("button", name=re.compile("Go on|Retry")).click()
    expect(download).to_have_attribute("data-download", "done")
    expect(row(dialog, "org/tiny")).to_contain_text("from the hub")
    expect(row(dialog, "org/tiny")).to_contain_text("of experts fit")
    row(dialog, "org/tiny").click()
    reply = person.say("Hello").wait_for_text()
    person.stop()
    reply.wait_until("cancelled")
    dialog = picker(person)
    dialog.get_by_role("button", name="Dismiss").click()
    expect(download).to_have_count(0)


def test_a_cancelled_download_is_gone_and_what_cannot_be_had_is_said(person: Person, models: Path, hub: ModelHub):
    hub.offer("org/other", models / "tiny")
    hub.offer("org/gated", models / "tiny")
    hub.server.gated.add("org/gated")
    hub.hold()
    dialog = picker(person.open())
    download = ask_for(dialog, "org/other")
    expect(download).to_have_attribute("data-download", "loading")
    download.get_by_role("button", name="Cancel").click()
    expect(download).to_have_count(0)
    hub.let_go()
    for name, words in (("org/gated", "accept terms"), ("org/nothing", "knows no model org/nothing")):
        refused = ask_for(dialog, name)
        expect(refused).to_contain_text(words)
        refused.get_by_role("button", name="Cancel").click()
        expect(refused).to_have_count(0)
    dialog.get_by_label("Name of a model on the hub").fill("not a name")
    dialog.get_by_role("button", name="Download", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("organisation/name")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_about_models_has_enough_contrast(room: Room, pagoda: RunningPagoda, scheme: str):
    person = room.seat(pagoda.url, color_scheme=scheme, reduced_motion="reduce").open()
    dialog = picker(person)
    expect(row(dialog, "SmolLM2")).to_contain_text("tok/s")
    assert person.page.evaluate(CONTRAST) == []


def test_the_list_of_models_fits_on_a_phone(room: Room, pagoda: RunningPagoda):
    phone = {"width": 360, "height": 740}
    person = room.seat(pagoda.url, viewport=phone, has_touch=True, is_mobile=True).open()
    dialog = picker(person)
    expect(row(dialog, "SmolLM2")).to_contain_text("tok/s")
    assert dialog.evaluate("e => e.scrollWidth <= e.clientWidth")
    small = dialog.evaluate(
        """dialog => [...dialog.querySelectorAll("button, input:not([type=checkbox]), label")]
          .filter(e => e.checkVisibility()).map(e => [e.textContent, e.getBoundingClientRect()])
          .filter(([, box]) => box.height < 43.99).map(([words, box]) => `${words} ${box.height}`)"""
    )
    assert small == []


def test_a_message_for_another_model_waits_and_says_so_and_so_does_going_on_from_text_alone(
    person: Person, pagoda: RunningPagoda, models: Path
):
    tiny = str(models / "tiny")
    pagoda.call("POST", "/api/folders", {"path": str(models)})
    assert tiny in [model["name"] for model in pagoda.get("/api/models")["models"]]
    first = pagoda.new_conversation(max_tokens=1500)
    person.open_conversation(first).say("Tell me a long story about a lighthouse keeper and her dog.").wait_for_text()
    other = pagoda.call("POST", "/api/conversations", {"model": tiny, "sampling": {"max_tokens": 3}})["id"]
    with pagoda.engine_held():
        person.open_conversation(other)
        waiting = person.say("Do you wait?")
        expect(waiting.status).to_contain_text("Waiting until the replies of default are done")
    person.open_conversation(first).stop()
    person.reply().wait_until("cancelled")
    person.open_conversation(other).reply().wait_until("complete")

    pagoda.call("PATCH", f"/api/conversations/{first}", {"model": tiny, "sampling": {"max_tokens": 3}})
    told = person.open_conversation(first).reply()
    told.press("Continue")
    expect(told.article.locator(".pg-timings")).to_contain_text("Continued from the text, not token for token")
    pagoda.call("PATCH", f"/api/conversations/{first}", {"model": "default"})
