"""Other models than plain ones: dense, mixed, wrapped with a vision tower, from the hub's cache."""

import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from engine import inspection, loader
from engine.client import EngineClient
from engine.errors import CheckpointError
from tests.engine.test_architectures import (
    RUN_HERE,
    assert_paged_equals_stock,
    greedy,
    without_compilation,  # noqa: F401
)
from tests.engine.tiny_checkpoints import add_tokenizer, save, tiny_model, write_config


def dense(folder: Path, architecture: str = "llama") -> Path:
    model, config = tiny_model(architecture)
    return save(folder, model, config, {"group_size": 32, "bits": 4})


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3_text"])
def test_a_dense_model_just_loads(architecture, tmp_path):
    folder = dense(tmp_path, architecture)
    stock, _ = load_model(folder)
    stock.set_dtype(mx.float32)
    tokens, logits = greedy(stock)
    model = loader.load(folder)
    assert (model.sizes.expert_bytes, model.sizes.slot_bytes, model.sizes.top_k) == (0, 0, 0)
    assert model.sizes.layers == 2
    got_tokens, got = greedy(model)
    assert got_tokens == tokens
    assert np.abs(got - logits).max() <= 1e-4 * np.abs(logits).max()
    assert model.stats().expert_reads == 0
    model.close()


async def test_the_engine_says_that_nothing_of_a_dense_model_is_paged(tmp_path):
    client = EngineClient(str(dense(tmp_path / "dense")), tmp_path / "data")
    await client.start()
    loaded = await client.wait_ready()
    await client.close()
    assert not loaded.paged
    assert loaded.expert_bytes == 0
    assert loaded.layers == 2


def test_inspect_knows_a_dense_model(tmp_path):
    found = inspection.inspect(dense(tmp_path))
    assert (found.expert_layers, found.expert_bytes, found.experts_per_layer) == (0, 0, 0)
    assert found.fits


VISION = {
    "gemma4": "model.vision_tower.encoder.weight",
    "kimi_k25": "vision_tower.encoder.weight",
    "kimi_vl": "vision_tower.encoder.weight",
    "llama4": "vision_model.encoder.weight",
    "mistral3": "vision_tower.encoder.weight",
    "qwen3_5_moe": "model.visual.blocks.0.weight",
    "qwen3_vl_moe": "visual.blocks.0.weight",
}


@pytest.mark.parametrize("architecture", VISION)
def test_the_text_of_a_model_with_a_vision_tower_works(architecture, tmp_path):
    model, config = tiny_model(architecture)
    tensors = dict(tree_flatten(model.parameters()))
    tensors[VISION[architecture]] = mx.ones((4, 4))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors)
    write_config(tmp_path, config | {"vision_config": {"hidden_size": 4}})
    add_tokenizer(tmp_path)
    assert_paged_equals_stock(tmp_path)


@pytest.mark.parametrize("architecture", RUN_HERE)
def test_how_many_experts_a_token_takes_is_known(architecture, tmp_path):
    model, config = tiny_model(architecture)
    opened = loader.open_model(save(tmp_path, model, config))
    assert opened.top_k == (1 if architecture == "llama4" else 2)
    assert 0 < opened.least_slot_bytes < opened.expert_bytes


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache with one model, laid out as the hub's own client does."""
    cache = tmp_path / "hub"
    model, config = tiny_model("olmoe")
    repo = cache / "models--someone--tiny-olmoe"
    blobs, snapshot = repo / "blobs", repo / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(snapshot.name)
    for file in save(blobs, model, config).iterdir():
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", file.name))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    return cache


def test_a_hub_id_is_found_in_the_cache_and_pages(hub):
    folder = loader.resolve("someone/tiny-olmoe")
    assert folder.is_relative_to(hub)
    assert_paged_equals_stock(folder)


def test_a_hub_id_that_is_not_in_the_cache_says_how_to_fetch_it(hub):
    with pytest.raises(CheckpointError, match="hf download someone/else"):
        loader.resolve("someone/else")


def test_a_hub_model_whose_weights_were_not_fetched_whole_is_named(hub):
    folder = loader.resolve("someone/tiny-olmoe")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model.*safetensors"):
        loader.open_model(folder)


def test_a_path_is_a_path_even_where_it_looks_like_a_hub_id(hub, tmp_path, monkeypatch):
    shutil.copytree(loader.resolve("someone/tiny-olmoe"), tmp_path / "mine" / "model")
    monkeypatch.chdir(tmp_path)
    assert loader.resolve("mine/model").resolve() == (tmp_path / "mine" / "model").resolve()
