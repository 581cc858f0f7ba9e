"""`prove`: equal where paging is right, and not where it is not."""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from backend.cli import main
from engine import proving
from engine.paged import PagedExperts
from engine.synth import synthesise
from tests.engine.tiny_checkpoints import save
from tests.engine.tiny_checkpoints import tiny_model as tiny_model_of

TINY = {"layers": 2, "experts": 8, "hidden": 128, "expert_hidden": 64, "top_k": 2, "vocab": 600}


@pytest.mark.parametrize("like", ["qwen3-moe", "olmoe", "mixtral", "deepseek-v3", "gpt-oss"])
def test_every_layer_and_all_tokens_are_found_equal(like, tmp_path):
    seen = []
    proof = proving.prove(
        synthesise(tmp_path / like, like, **TINY), expert_bytes="least", on_layer=lambda *a: seen.append(a)
    )
    assert proof.holds
    assert proof.tokens == proof.reference_tokens and len(proof.tokens) == 8
    assert [layer.layer for layer in proof.layers] == [0, 1]
    assert seen == [(layer, 2) for layer in proof.layers]
    assert all(layer.tokens == 77 for layer in proof.layers)


@pytest.mark.parametrize("architecture", ["kimi_k3", "gemma4_text", "lfm2_moe", "nemotron_h"])
def test_layers_that_keep_or_pass_on_state_are_compared_too(architecture, tmp_path):
    """Residual blocks that every layer adds to, recurrent state, layers without experts among others."""
    mx.disable_compile()
    try:
        assert proving.prove(save(tmp_path / architecture, *tiny_model_of(architecture)), expert_bytes="least").holds
    finally:
        mx.enable_compile()


def test_experts_that_compute_something_else_are_found_out(tiny_model, monkeypatch):
    right = PagedExperts.__call__

    def wrong(self: PagedExperts, x: mx.array, indices: mx.array) -> mx.array:
        return right(self, x, indices) * (1.001 if self.layer == 1 else 1.0)

    monkeypatch.setattr(PagedExperts, "__call__", wrong)
    proof = proving.prove(tiny_model)
    assert not proof.holds
    assert [layer.apart > proving.TOLERANCE for layer in proof.layers][:2] == [False, True]


def test_the_reference_keeps_no_layer_in_memory(tiny_model, monkeypatch):
    references = []
    build = proving._reference
    monkeypatch.setattr(proving, "_reference", lambda folder: references.append(build(folder)) or references[-1])
    proving.prove(tiny_model)
    left = tree_flatten(references[0].layers[0].original.parameters())
    assert left and all(value.size == 1 for _, value in left)


def test_a_copy_that_mlx_lm_cannot_load_is_refused_with_what_to_do(tiny_model, tmp_path, capsys):
    assert main(["pack", str(tiny_model), str(tmp_path / "packed")]) == 0
    assert main(["prove", str(tmp_path / "packed")]) == 1
    assert "prove the model it was made from" in capsys.readouterr().err


def test_the_command_says_so_layer_by_layer(tiny_model, capsys):
    assert main(["prove", str(tiny_model), "--experts", "least"]) == 0
    out = capsys.readouterr().out
    assert "layer 1/" in out and "8 of 8 tokens are the same" in out and "are equal" in out
    assert main(["prove", str(tiny_model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["holds"] is True
