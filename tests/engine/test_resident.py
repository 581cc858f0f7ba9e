"""With room for everything, where kernels are MLX's own, nothing is paged and nothing waits for a router."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from engine import loader
from engine.paged import PagedExperts
from engine.resident import ResidentExperts, leaves_room
from tests.engine.replies import ask, batch, end_of, reply, tokens_of


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """MLX's own kernels, as where there is a GPU."""
    monkeypatch.setattr(loader, "_cpu_kernels", lambda report: None)


def kinds(model, kind) -> list:
    return [module for _, module in model.named_modules() if isinstance(module, kind)]


def test_all_experts_are_read_once_and_then_nothing_waits_between_layers(tiny_model, as_on_a_gpu, monkeypatch):
    told = []
    model = loader.load(tiny_model, on_progress=lambda *step: told.append(step))
    assert kinds(model, ResidentExperts) and not kinds(model, PagedExperts)
    assert [done for stage, done, _, _ in told if stage == "experts"][-1] == model.sizes.expert_bytes
    read = model.stats().bytes_read
    evaluations = []
    evaluate = mx.eval
    monkeypatch.setattr(mx, "eval", lambda *arrays: evaluations.append(arrays) or evaluate(*arrays))
    logits = model(mx.array([[5]]), cache=make_prompt_cache(model))
    assert not evaluations
    evaluate(logits)
    assert model.stats().bytes_read == read
    model.close()


def test_replies_are_the_same_as_paged_ones_and_say_that_all_came_from_memory(tiny_model, as_on_a_gpu):
    replies = []
    for expert_bytes in ("all", "least"):
        model = loader.load(tiny_model, expert_bytes=expert_bytes)
        assert bool(kinds(model, ResidentExperts)) == (expert_bytes == "all")
        replies.append(reply(batch(model), ask(max_tokens=12)))
        model.close()
    resident, paged = replies
    assert tokens_of(resident) == tokens_of(paged)
    assert end_of(resident).expert_reads == end_of(resident).bytes_read == 0
    assert end_of(resident).expert_hits > 0 and end_of(paged).expert_reads > 0


def test_experts_stay_for_good_only_where_conversations_have_room_beside_them():
    assert leaves_room(1000, taken=300, slot_bytes=500, expert_bytes=500)
    assert not leaves_room(1000, taken=400, slot_bytes=500, expert_bytes=500)
    assert not leaves_room(1000, taken=100, slot_bytes=400, expert_bytes=500)
    assert not leaves_room(1000, taken=100, slot_bytes=0, expert_bytes=0)
