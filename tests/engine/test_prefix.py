"""What was read once is not read again, and the tokens are those of stock mlx-lm reading all of it."""

import hashlib
import os
import threading
from functools import cache
from pathlib import Path

import mlx.core as mx
import mlx_lm.utils
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from engine import decode, kv, loader
from engine.events import Finished
from engine.prefix_files import PrefixFiles
from engine.prompt import prompt_tokens
from tests.engine.replies import ask, batch, end_of, reply, text_of, tokens_of
from tests.engine.tiny_checkpoints import save, tiny_model
from tests.engine.tiny_configs import tiny_config

# Whole KV, latent KV, sliding windows, chunks, recurrences, convolutions, a cache of the model's own kind.
FAMILIES = (
    "olmoe", "deepseek_v3", "deepseek_v32", "gpt_oss", "llama4", "qwen3_next", "jamba", "lfm2_moe", "deepseek_v41",
)  # fmt: skip
CUTTABLE = ("olmoe", "deepseek_v3", "deepseek_v32")
SYSTEM = {"role": "system", "content": "Answer in the words of an old gardener who has seen many summers."}
FIRST = {"role": "user", "content": "What grows in the shade?"}
SECOND = {"role": "user", "content": "And in the sun, when there is no rain for weeks?"}


@pytest.fixture(autouse=True, scope="module")
def without_compilation():
    """On a CPU, mx.compile starts a C++ compiler: seconds a function, and the models have dozens."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of a tiny random model of a family, with the whole vocabulary of its tokenizer."""

    @cache
    def made(family: str) -> Path:
        text = tiny_config(family).get("text_config")
        changes = {"text_config": text | {"vocab_size": 300}} if text else {}
        model, config = tiny_model(family, vocab_size=300, **changes)
        return save(tmp_path_factory.mktemp("models") / family, model, config)

    return made


@pytest.fixture
def opened(checkpoint):
    models = []

    def load(family: str):
        models.append(loader.load(checkpoint(family), expert_bytes=0.5))
        return models[-1]

    yield load
    for model in models:
        model.close()


def stock(folder: Path, prompt: list[int], count: int) -> list[int]:
    """What mlx-lm itself chooses, with all weights in memory and nothing known before."""
    model, _ = mlx_lm.utils.load_model(folder)
    model.set_dtype(mx.float32)
    state, chosen = make_prompt_cache(model), []
    logits = model(mx.array([prompt]), cache=state)
    for _ in range(count):
        chosen.append(int(mx.argmax(logits[0, -1])))
        logits = model(mx.array([chosen[-1:]]), cache=state)
    return chosen


def assert_right(model, request, events) -> Finished:
    end = end_of(events)
    assert isinstance(end, Finished), end
    got = tokens_of(events)
    assert got == stock(model.path, prompt_tokens(model, request), len(got))
    return end


@pytest.mark.parametrize("family", FAMILIES)
def test_the_next_turn_another_version_and_an_edit_read_only_what_differs(opened, family):
    model = opened(family)
    replies = batch(model)
    first = ask(messages=(SYSTEM, FIRST))
    said = reply(replies, first)
    assert assert_right(model, first, said).cached_tokens == 0

    again = assert_right(model, first, reply(replies, first))
    assert again.cached_tokens == again.prompt_tokens - 1

    assistant = {"role": "assistant", "content": text_of(said)}
    second = ask(messages=(SYSTEM, FIRST, assistant, SECOND))
    following = assert_right(model, second, reply(replies, second))
    asked = len(prompt_tokens(model, first))
    assert asked - 20 < following.cached_tokens < following.prompt_tokens - 1

    edited = ask(messages=(SYSTEM, SECOND))
    after = assert_right(model, edited, reply(replies, edited))
    system = model.tokenizer.apply_chat_template([SYSTEM], add_generation_prompt=False)
    assert len(system) - 2 <= after.cached_tokens < after.prompt_tokens - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_after_a_restart_an_old_conversation_goes_on_without_reading(opened, family, tmp_path):
    model = opened(family)
    request = ask(messages=(SYSTEM, FIRST))
    before = batch(model, tmp_path)
    said = tokens_of(reply(before, request))
    before.close()

    after = batch(model, tmp_path)
    events = reply(after, request)
    end = assert_right(model, request, events)
    assert end.cached_tokens > end.prompt_tokens // 2
    assert tokens_of(events) == said
    after.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_that_was_stopped_goes_on_as_if_it_had_not_been(opened, family):
    model = opened(family)
    for more in ({}, {"temperature": 0.9, "top_p": 0.95, "seed": 7}, {"repetition_penalty": 1.3}):
        replies = batch(model)
        whole = reply(replies, ask(messages=(FIRST,), max_tokens=16, **more))
        replies, abort, part = batch(model), threading.Event(), []
        replies.add(ask(messages=(FIRST,), max_tokens=16, **more), part.append, abort)
        while len(tokens_of(part)) < 6:
            replies.step()
        abort.set()
        replies.finish()
        half = tokens_of(part)
        rest = reply(
            replies,
            ask(messages=(FIRST,), max_tokens=10, prefix_tokens=tuple(half), prefix_text=text_of(part), **more),
        )
        assert half + tokens_of(rest) == tokens_of(whole)[: len(half) + len(tokens_of(rest))]
        assert (text_of(part) + text_of(rest)).startswith(text_of(whole))
        end = end_of(rest)
        assert isinstance(end, Finished) and end.cached_tokens >= end.prompt_tokens - 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_was_stopped_within_a_layer_is_read_on_from_there(opened, family, monkeypatch):
    monkeypatch.setattr(decode, "PREFILL_CHUNK", 16)
    monkeypatch.setattr("engine.batch.PREFILL_CHUNK", 16)
    model = opened(family)
    replies, abort, events = batch(model), threading.Event(), []
    request = ask(messages=(SYSTEM, FIRST, {"role": "assistant", "content": "Moss."}, SECOND))
    replies.add(request, events.append, abort)
    replies.step()
    replies.step()
    at_layer = model.watch.at_layer

    def stop_in_the_last_layer(layer: int) -> None:
        if layer == model.sizes.layers - 1:
            abort.set()
        at_layer(layer)

    model.watch.at_layer = stop_in_the_last_layer
    replies.step()
    model.watch.at_layer = at_layer
    assert end_of(events).reason == "aborted"
    end = assert_right(model, request, reply(replies, request))
    assert end.cached_tokens >= 20


@pytest.fixture
def filled(opened, tmp_path):
    """A model, the folder of its states with one file, and the request that it is of."""
    model, request = opened("olmoe"), ask(messages=(SYSTEM, FIRST))
    replies = batch(model, tmp_path / "states")
    reply(replies, request)
    replies.close()
    (file,) = tmp_path.rglob("*.safetensors")
    return model, tmp_path / "states", file, request


def known_of(model, folder, request) -> int:
    replies = batch(model, folder)
    end = assert_right(model, request, reply(replies, request))
    replies.close()
    return end.cached_tokens


def test_a_file_is_of_its_owner_alone(filled):
    _, _, file, _ = filled
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("where", [0.0, 0.1, 0.5, 0.999])
def test_a_damaged_file_is_ignored_and_gone(filled, where):
    model, folder, file, request = filled
    raw = bytearray(file.read_bytes())
    raw[int(len(raw) * where)] ^= 0x40
    file.write_bytes(raw)
    assert known_of(model, folder, request) == 0
    assert not file.exists() or file.read_bytes() != bytes(raw)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6), st.data())
def test_whatever_a_file_has_become_it_is_ignored_or_the_same(filled, changes, data):
    """Bytes exchanged, the end cut off; the digest in its name made right in half of the cases, as who wants to fool
    Pagoda would. Nothing fails: a state is what was written, or is of the same layers, or is none."""
    model, folder, file, _ = filled
    empty, raw = make_prompt_cache(model), bytearray(file.read_bytes())
    for where, value in changes:
        raw[int(where * len(raw)) if data.draw(st.booleans()) else int(where * 2000)] = value
    del raw[data.draw(st.integers(1, len(raw))) if data.draw(st.booleans()) else len(raw) :]
    place = folder / "changed"
    place.mkdir(exist_ok=True)
    digest = hashlib.blake2b(raw, digest_size=16).hexdigest()
    path = place / (f"{'0' * 16}-{digest}.safetensors" if data.draw(st.booleans()) else file.name)
    path.write_bytes(raw)
    files = PrefixFiles(folder, "changed")
    for filed in files.filed():
        state = files.load(filed, empty)
        assert state is None or kv.same_kind(state, empty)
        assert state is not None or not path.exists()
    files.close()
    path.unlink(missing_ok=True)


def test_a_file_that_is_replaced_while_it_is_read_was_still_read(filled, monkeypatch):
    model, folder, file, request = filled
    compact = kv.compact

    def replaced_meanwhile(state: kv.State) -> kv.State:
        file.unlink(missing_ok=True)
        return compact(state)

    monkeypatch.setattr(kv, "compact", replaced_meanwhile)
    assert known_of(model, folder, request) > 0


def test_a_file_cut_short_or_under_another_name_is_ignored(filled):
    model, folder, file, request = filled
    raw = file.read_bytes()
    file.write_bytes(raw[: len(raw) // 2])
    assert known_of(model, folder, request) == 0
    for other in folder.rglob("*.safetensors"):
        other.unlink()
    file.with_name(file.name[:20] + "0" * 29 + ".safetensors").write_bytes(raw)
    assert known_of(model, folder, request) == 0


def test_states_of_another_model_are_not_even_looked_at(filled):
    model, folder, _, request = filled
    (folder / "model").rename(folder / "other")
    assert known_of(model, folder, request) == 0


def test_a_state_of_other_layers_is_ignored(filled, opened):
    _, folder, _, request = filled
    assert known_of(opened("gpt_oss"), folder, request) == 0


def test_the_folder_stays_within_its_bound_and_loses_what_was_used_longest_ago(filled):
    model, folder, file, _ = filled
    size = file.stat().st_size
    os.utime(file, (1, 1))
    files = PrefixFiles(folder, "model", most_bytes=5 * size // 2)
    state = make_prompt_cache(model)
    model.fill(mx.array([list(range(5, 55))]), state)
    for start in range(5, 20):
        files.write(list(range(start, start + 50)), state)
    files.close()
    left = list(folder.rglob("*.safetensors"))
    assert file not in left and left
    assert sum(path.stat().st_size for path in left) <= 5 * size // 2


def test_memory_for_states_stays_within_its_bound(opened):
    model = opened("olmoe")
    replies = batch(model, room=200_000)
    for number in range(6):
        reply(replies, ask(f"Question number {number} is about something else altogether, as you see."))
        assert replies.prefixes.nbytes <= 200_000
    assert replies.prefixes.nbytes > 0


def test_a_slow_reply_is_on_disk_before_it_ends(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "WRITE_EVERY_S", 0.0)
    model = opened("olmoe")
    replies, events = batch(model, tmp_path), []
    replies.add(ask(messages=(SYSTEM, FIRST), max_tokens=400), events.append)
    while not list(tmp_path.rglob("*-*.safetensors")):
        replies.step()
    assert not [event for event in events if isinstance(event, Finished)]
    replies.close()


def killed(replies) -> None:
    """What is on disk stays there; the rest is gone with the process."""
    replies.prefixes.close()


@pytest.mark.parametrize("family", CUTTABLE)
def test_a_prompt_that_was_killed_while_it_was_read_goes_on_from_what_was_written(
    opened, tmp_path, monkeypatch, family
):
    monkeypatch.setattr(decode, "PREFILL_CHUNK", 16)
    monkeypatch.setattr("engine.batch.PREFILL_CHUNK", 16)
    monkeypatch.setattr(decode, "WRITE_EVERY_S", 0.0)
    monkeypatch.setattr(decode, "WRITING_SHARE", 0)
    model, request = opened(family), ask(messages=(SYSTEM, FIRST, {"role": "assistant", "content": "Moss."}, SECOND))
    before = batch(model, tmp_path)
    before.add(request, [].append)
    for _ in range(3):
        before.step()
    killed(before)
    after = batch(model, tmp_path)
    end = assert_right(model, request, reply(after, request))
    assert end.cached_tokens == 48
    after.close()


def test_a_prompt_that_took_long_is_on_disk_as_soon_as_it_is_read(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "LONG_READ_S", 0.0)
    model, request = opened("olmoe"), ask(messages=(SYSTEM, FIRST), max_tokens=400)
    before, events = batch(model, tmp_path), []
    before.add(request, events.append)
    while not tokens_of(events):
        before.step()
    killed(before)
    after = batch(model, tmp_path)
    end = end_of(reply(after, ask(messages=(SYSTEM, FIRST))))
    assert isinstance(end, Finished) and end.cached_tokens == end.prompt_tokens - 1
    after.close()


def test_a_token_that_was_stopped_within_a_layer_costs_nothing_that_came_before(opened):
    model = opened("olmoe")
    replies, events, abort = batch(model), [], threading.Event()
    request = ask(messages=(FIRST,), max_tokens=12)
    replies.add(request, events.append, abort)
    while len(tokens_of(events)) < 4:
        replies.step()
    at_layer = model.watch.at_layer

    def stop_in_the_last_layer(layer: int) -> None:
        if layer == model.sizes.layers - 1:
            abort.set()
        at_layer(layer)

    model.watch.at_layer = stop_in_the_last_layer
    replies.step()
    model.watch.at_layer = at_layer
    got = tokens_of(events)
    assert end_of(events).reason == "aborted" and len(got) == 4
    rest = reply(replies, ask(messages=(FIRST,), prefix_tokens=tuple(got), prefix_text=text_of(events)))
    assert got + tokens_of(rest) == stock(model.path, prompt_tokens(model, request), 12)
    end = end_of(rest)
    assert isinstance(end, Finished) and end.cached_tokens == end.prompt_tokens - 1
