"""A start is warmed by what earlier ones liked, without waiting for it, and without trusting it for long."""

import stat

import numpy as np
import pytest

from engine import heat, loader
from engine.client import EngineClient
from engine.events import Generate, Sampling, Token
from engine.synth import synthesise
from tests.engine.replies import ask, batch, end_of, reply, tokens_of
from tests.engine.test_paging import greedy, stock

SHAPE = {"layers": 4, "experts": 24, "hidden": 128, "expert_hidden": 64, "top_k": 2, "vocab": 600}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return synthesise(tmp_path_factory.mktemp("models") / "heat", "qwen3-moe", **SHAPE)


def settled(model) -> None:
    while model.idle():
        pass


def resident(model) -> int:
    [store] = model._stores
    return sum(1 for _ in store._residency.items())


@pytest.fixture
def warm_file(folder, tmp_path):
    file = tmp_path / "data" / "heat" / "m.npz"
    model = loader.load(folder, expert_bytes=0.5, heat_file=file)
    greedy(model, 30)
    settled(model)
    model.close()
    return file


def test_what_was_liked_is_in_memory_before_anybody_asks(folder, warm_file):
    right, _ = stock(folder)
    model = loader.load(folder, expert_bytes=0.5, heat_file=warm_file)
    asked, before = model.stats().expert_reads, resident(model)
    settled(model)
    assert model.stats().expert_reads == asked
    assert resident(model) > before
    assert greedy(model)[0] == right
    model.close()


def test_a_warm_expert_that_is_asked_for_while_it_is_read_is_not_read_twice(folder, warm_file):
    right, _ = stock(folder)
    model = loader.load(folder, expert_bytes=0.5, heat_file=warm_file)
    model.idle()
    assert greedy(model)[0] == right
    model.close()


def test_where_all_fit_all_are_read_while_nobody_asks(folder, tmp_path):
    model = loader.load(folder, expert_bytes="all", heat_file=tmp_path / "none")
    settled(model)
    assert resident(model) == 4 * 24
    model.close()


def test_loading_itself_reads_nothing_for_it(folder, warm_file):
    cold = loader.load(folder, expert_bytes=0.5)
    warm = loader.load(folder, expert_bytes=0.5, heat_file=warm_file)
    assert warm.stats().bytes_read == cold.stats().bytes_read
    cold.close()
    warm.close()


def test_the_file_is_for_its_owner_alone_and_whole_or_not_there(warm_file):
    assert stat.S_IMODE(warm_file.stat().st_mode) == 0o600
    assert [path.name for path in warm_file.parent.iterdir()] == [warm_file.name]


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-40]),
        lambda file: file.write_bytes(b"PK\x03\x04" + bytes(300)),
        lambda file: np.savez(file, store0=np.full((4, 24), np.nan)),
        lambda file: np.savez(file, store0=np.full((4, 24), 7.0)),
        lambda file: np.savez(file, store0=np.zeros((3, 24))),
        lambda file: np.savez(file, other=np.zeros((4, 24))),
        lambda file: np.savez(file, store0=np.array([{"a": 1}], object)),
    ],
)
def test_a_damaged_or_foreign_file_is_as_good_as_none(folder, warm_file, damage):
    model = loader.load(folder, expert_bytes=0.5)
    assert heat.load(warm_file, model._stores) is not None
    damage(warm_file)
    assert heat.load(warm_file, model._stores) is None
    model.close()
    again = loader.load(folder, expert_bytes=0.5, heat_file=warm_file)
    settled(again)
    again.close()


def test_one_session_moves_what_is_kept_only_part_of_the_way(folder, warm_file):
    model = loader.load(folder, expert_bytes=0.5)
    [store] = model._stores
    kept = heat.load(warm_file, [store])
    now = heat.save(warm_file, kept, [store], passes=10_000)
    assert np.allclose(now[0], 0.7 * kept[0] + 0.3 * store.heat(), atol=1e-6)
    little = heat.save(warm_file, kept, [store], passes=1)
    assert np.abs(little[0] - kept[0]).max() < 0.01
    model.close()


def test_what_was_kept_fades_when_this_session_likes_others(folder, warm_file):
    model = loader.load(folder, expert_bytes=0.5, heat_file=warm_file)
    [store] = model._stores
    store._residency.expect(np.zeros(store.heat().shape), 0)
    before = store.heat()[0, 5]
    for _ in range(300):
        for place in range(4):
            store.note(place, np.array([[1, 2]]))
    assert store.heat()[0, 5] <= max(before, 1e-9) * 0.05 + 1e-9
    model.close()


def of_conversation(folder, tmp_path):
    """A model, its replies, and the places of the experts that the conversation about the moon has liked most."""
    model = loader.load(folder, expert_bytes=0.5, heat_file=tmp_path / "none")
    [store] = model._stores
    replies = batch(model, tmp_path / "states")
    reply(replies, MOON)
    columns = store.heat().shape[1]
    liked = [divmod(number, columns) for number in model.liked()]
    return model, store, replies, liked


def there(store, experts) -> int:
    return sum(int(store.slots_of(place, np.array([expert]))[0] >= 0) for place, expert in experts)


MOON = ask("What does the moon do all day?", max_tokens=30)
SAID_OF_IT = ({"role": "user", "content": "What does the moon do all day?"},)


@pytest.mark.parametrize("restarted", [False, True])
def test_opening_a_conversation_brings_back_its_state_and_the_experts_it_used(folder, tmp_path, restarted):
    model, store, replies, liked = of_conversation(folder, tmp_path)
    favourites = liked[: store.slots // 2]
    if restarted:
        replies.close()
        model.close()
        model = loader.load(folder, expert_bytes=0.5, heat_file=tmp_path / "none")
        [store] = model._stores
        replies = batch(model, tmp_path / "states")
        assert there(store, favourites) < len(favourites)
    else:
        for turn in range(200):  # others talk of something else for a while
            for place in range(4):
                others = np.array([expert for expert in range(24) if (place, expert) not in favourites])
                few = np.array_split(others, 6)[turn % 6]
                store.note(place, few[None])
                store.fetch(place, few[store.slots_of(place, few) < 0], keep=few).wait(lambda: None)
        assert there(store, favourites) < len(favourites) / 2
    replies.warm(SAID_OF_IT)
    settled(model)
    assert there(store, favourites) >= 0.9 * len(favourites)
    assert replies.prefixes.nbytes > 0
    again = reply(replies, MOON)
    assert end_of(again).cached_tokens >= end_of(again).prompt_tokens - 1
    assert tokens_of(again) == tokens_of(reply(batch(model), MOON))
    replies.close()
    model.close()


def test_a_conversation_that_is_opened_while_others_write_waits_for_nobody_and_takes_nothing(folder, tmp_path):
    model, store, replies, _ = of_conversation(folder, tmp_path)
    events = []
    replies.add(ask("Something else", max_tokens=6), events.append)
    replies.step()
    before = sorted(store._residency.items())
    replies.warm(SAID_OF_IT)
    assert sorted(store._residency.items()) == before
    replies.finish()
    replies.close()
    model.close()


@pytest.mark.parametrize("liked", [[-1, 10**9], ["a", None, 2.5], [0, 0, 0], list(range(96)) * 2])
def test_favourites_that_make_no_sense_do_no_harm(folder, tmp_path, liked):
    right, _ = stock(folder)
    model = loader.load(folder, expert_bytes=0.5, heat_file=tmp_path / "none")
    model.warm(liked)
    settled(model)
    assert greedy(model)[0] == right
    model.close()


async def test_an_engine_that_warms_itself_writes_the_same(folder, tmp_path):
    ask = ({"role": "user", "content": "Hello"},)
    replies = []
    for start in range(2):
        client = EngineClient(str(folder), tmp_path)
        await client.start()
        await client.wait_ready()
        request = Generate(f"r{start}", ask, Sampling(temperature=0.0, max_tokens=12))
        events = [event async for event in client.generate(request)]
        replies.append([event.token for event in events if isinstance(event, Token)])
        await client.close()
    assert replies[0] == replies[1] != []
