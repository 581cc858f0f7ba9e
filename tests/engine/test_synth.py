"""Random checkpoints: stock mlx-lm loads every shape, the same seed gives the same bytes, failures leave nothing."""

import errno
import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load
from mlx_lm.generate import stream_generate

from engine import synth
from engine.safetensors_writer import SafetensorsWriter
from engine.synth import synthesise
from engine.synth_shapes import DEFAULTS, Shape, SynthError

TINY = {"layers": 2, "experts": 4, "hidden": 64, "expert_hidden": 64, "vocab": 400, "top_k": 2}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("scale_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("like", sorted(DEFAULTS))
def test_stock_mlx_lm_loads_every_shape_and_generates(tmp_path: Path, like: str, scale_dtype: str) -> None:
    folder = synthesise(tmp_path / "model", like, scale_dtype=scale_dtype, **TINY)
    model, tokenizer = load(str(folder))
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    logits = np.array(model(mx.array([prompt])).astype(mx.float32))
    assert logits.shape == (1, len(prompt), 400) and 0.5 < logits.std() < 2
    assert list(stream_generate(model, tokenizer, prompt, max_tokens=3))


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 8])
def test_any_number_of_bits_keeps_the_spread_of_the_weights(tmp_path: Path, bits: int) -> None:
    folder = synthesise(tmp_path / "model", "qwen3-moe", bits=bits, group_size=32, **TINY)
    model, _ = load(str(folder))
    experts = model.layers[0].mlp.switch_mlp.up_proj
    assert (experts.bits, experts.group_size) == (bits, 32)
    weights = mx.dequantize(experts.weight, experts.scales, experts.biases, group_size=32, bits=bits)
    assert weights.std().item() == pytest.approx(synth.EXPERT_GAIN / 8, rel=0.1)


def test_every_expert_and_layer_has_weights_of_its_own(tmp_path: Path) -> None:
    folder = synthesise(tmp_path / "model", "qwen3-moe", **TINY)
    tensors = mx.load(str(folder / "model-00001-of-00001.safetensors"))
    for part in ("weight", "scales", "biases"):
        experts = np.concatenate(
            [np.array(tensors[f"model.layers.{layer}.mlp.switch_mlp.up_proj.{part}"]) for layer in (0, 1)]
        )
        assert len({expert.tobytes() for expert in experts}) == 8


def test_gpt_oss_keeps_its_experts_in_mxfp4(tmp_path: Path) -> None:
    model, config = load(str(synthesise(tmp_path / "model", "gpt-oss", **TINY)), return_config=True)[::2]
    assert model.layers[0].mlp.experts.up_proj.mode == "mxfp4"
    assert config["quantization"]["mode"] == "affine"


def test_the_same_seed_gives_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    first, again, other = (
        contents(synthesise(tmp_path / name, "mixtral", seed=seed, **TINY))
        for name, seed in (("first", 7), ("again", 7), ("other", 8))
    )
    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"model-00001-of-00001.safetensors"}


def test_large_checkpoints_are_split_into_shards_that_mlx_lm_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = synthesise(tmp_path / "whole", "olmoe", **TINY)
    monkeypatch.setattr(synth, "SHARD_BYTES", 20_000)
    monkeypatch.setattr(synth, "PIECE_WEIGHTS", 500)
    split = synthesise(tmp_path / "split", "olmoe", **TINY)
    index = json.loads((split / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in split.glob("*.safetensors"))
    assert len(shards) > 3 and sorted(set(index["weight_map"].values())) == shards
    names = [set(mx.load(str(split / shard))) for shard in shards]
    assert set().union(*names) == set(mx.load(str(whole / "model-00001-of-00001.safetensors")))
    assert sum(map(len, names)) == len(index["weight_map"])
    load(str(split))


def test_the_default_qwen3_moe_is_the_shape_of_the_recorded_measurements() -> None:
    assert DEFAULTS["qwen3-moe"] == Shape(16, 64, 1024, 512, 32000, 8)
    assert (DEFAULTS["qwen3-moe"].heads, DEFAULTS["qwen3-moe"].kv_heads) == (8, 2)


def test_a_router_with_skew_prefers_some_experts(tmp_path: Path) -> None:
    sizes = {**TINY, "experts": 16}
    spreads = []
    for skew in (0.0, 1.0):
        model, _ = load(str(synthesise(tmp_path / str(skew), "qwen3-moe", skew=skew, **sizes)))
        gate = model.layers[0].mlp.gate
        rows = mx.dequantize(gate.weight, gate.scales, gate.biases, group_size=gate.group_size, bits=gate.bits)
        norms = np.array(mx.linalg.norm(rows, axis=1))
        spreads.append(norms.max() / norms.min())
    assert spreads[0] < 1.6 and spreads[1] > 8


def test_progress_grows_to_its_total(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    synthesise(tmp_path / "model", "deepseek-v3", progress=lambda done, total: steps.append((done, total)), **TINY)
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert steps[-1][0] == steps[-1][1] and len({total for _, total in steps}) == 1


def test_the_tokenizer_has_a_text_for_every_id_and_gives_texts_back(tmp_path: Path) -> None:
    _, tokenizer = load(str(synthesise(tmp_path / "model", "qwen3-moe", **{**TINY, "vocab": 1000})))
    assert len(tokenizer) == 1000 and all(tokenizer.convert_ids_to_tokens(range(1000)))
    assert tokenizer.decode(tokenizer.encode("def f(x):  # wörld 汉字")) == "def f(x):  # wörld 汉字"
    assert tokenizer.eos_token_ids == {2}


@pytest.mark.parametrize(
    ("like", "sizes", "words"),
    [
        ("gpt-9", {}, "Known: deepseek-v3, gpt-oss"),
        ("mixtral", {"hidden": 100}, "hidden is 100; it must be a multiple of 64"),
        ("mixtral", {"hidden": 1088}, "multiple of the head size"),
        ("mixtral", {"layers": 0}, "layers is 0"),
        ("mixtral", {"experts": 4, "top_k": 5}, "top_k is 5, and there are 4 experts"),
        ("mixtral", {"vocab": 100}, "at least 300"),
        ("mixtral", {"bits": 7}, "7 bits"),
        ("mixtral", {"scale_dtype": "int8"}, "choose one of float32"),
        ("gpt-oss", {"layers": 3}, "must be even"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_reason(
    tmp_path: Path, like: str, sizes: dict[str, object], words: str
) -> None:
    with pytest.raises(SynthError, match=words):
        synthesise(tmp_path / "model", like, **sizes)
    assert list(tmp_path.iterdir()) == []


def test_too_little_free_space_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SynthError, match=r"0\.0 GB free\. Choose fewer layers"):
        synthesise(tmp_path / "model", "mixtral", **TINY)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(SynthError, match="exists already"):
        synthesise(tmp_path, "mixtral", **TINY)
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, written = SafetensorsWriter.write, []

    def fails_late(self: SafetensorsWriter, name: str, pieces: object, dtype: str | None = None) -> None:
        written.append(name)
        if len(written) == 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, name, pieces, dtype)

    monkeypatch.setattr(SafetensorsWriter, "write", fails_late)
    with pytest.raises(SynthError, match="the disk is full"):
        synthesise(tmp_path / "model", "mixtral", **TINY)
    assert list(tmp_path.iterdir()) == []
