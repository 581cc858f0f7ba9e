"""Every format that experts come in, paged, against stock mlx-lm (or, where that can't run it, dequantised weights)."""

from pathlib import Path

import mlx.core as mx
import mlx_lm.utils
import numpy as np
import pytest
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from engine import loader
from tests.engine.test_architectures import (
    assert_paged,
    assert_paged_equals_stock,
    greedy,
    without_compilation,  # noqa: F401
)
from tests.engine.tiny_checkpoints import save, tiny_model

FORMATS = {f"affine-{bits}": {"group_size": 32, "bits": bits} for bits in (2, 3, 4, 5, 6, 8)} | {
    "affine-4-group-64": {"group_size": 64, "bits": 4},
    "mxfp4": {"group_size": None, "bits": None, "mode": "mxfp4"},
    "mxfp8": {"group_size": None, "bits": None, "mode": "mxfp8"},
    "nvfp4": {"group_size": None, "bits": None, "mode": "nvfp4"},
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("architecture", ["olmoe", "gpt_oss"])  # gpt_oss: biases, an activation of its own
def test_a_quantised_format_pages_exactly(architecture, name, tmp_path):
    model, config = tiny_model(architecture)
    assert_paged_equals_stock(save(tmp_path, model, config, FORMATS[name]))


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
def test_a_float_type_pages_exactly(dtype, tmp_path):
    model, config = tiny_model("olmoe", dtype)
    assert_paged_equals_stock(save(tmp_path, model, config))


def test_every_tensor_may_have_bits_of_its_own(tmp_path):
    def mixed(path: str, module) -> bool | dict:
        if "switch_mlp.down_proj" in path:
            return {"group_size": 32, "bits": 8}
        if "layers.0.mlp.switch_mlp" in path:
            return {"group_size": 64, "bits": 3}
        return "layers.1.mlp.switch_mlp.up_proj" not in path  # stays float

    model, config = tiny_model("olmoe", mx.bfloat16)
    folder = save(tmp_path, model, config, {"group_size": 32, "bits": 4, "quant_predicate": mixed})
    assert_paged_equals_stock(folder)


def test_layers_of_unlike_experts_each_have_slots(tmp_path):
    model, config = tiny_model("olmoe")
    folder = save(
        tmp_path, model, config, {"group_size": 32, "bits": 4, "quant_predicate": lambda path, _: "layers.1" in path}
    )
    paged = loader.load(folder, expert_bytes="least")
    stores = [paged.layers[i].mlp.switch_mlp.store for i in (0, 1)]
    paged.close()
    assert stores[0] is not stores[1]
    assert [store.slots for store in stores] == [paged.sizes.top_k] * 2
    assert_paged_equals_stock(folder)


def dequantised(folder: Path):
    """mlx-lm's model with float experts of the same values."""
    model, _ = mlx_lm.utils.load_model(folder, lazy=True)
    for layer in model.layers:
        experts = layer.mlp.switch_mlp
        for name, linear in list(experts.children().items()):
            if isinstance(linear, QuantizedSwitchLinear):
                plain = SwitchLinear(linear.input_dims, linear.output_dims, linear.num_experts, bias=False)
                how = {"group_size": linear.group_size, "bits": linear.bits, "mode": linear.mode}
                plain.weight = mx.stack(
                    [
                        mx.dequantize(linear.weight[e], linear.scales[e], global_scale=linear.global_scale[e], **how)
                        for e in range(linear.num_experts)
                    ]
                )
                experts[name] = plain
    model.set_dtype(mx.float32)
    return model


def test_nvfp4_with_a_global_scale_for_each_expert(tmp_path):
    model, config = tiny_model("olmoe")
    quantization = {"group_size": None, "bits": None, "mode": "nvfp4", "global_scale": True}
    folder = save(tmp_path, model, config, quantization)
    tokens, logits = greedy(dequantised(folder))
    assert np.isfinite(logits).all()
    opened = loader.open_model(folder)
    assert any(piece.name.endswith("global_scale") for piece in opened.experts[0].pieces)
    assert_paged(folder, tokens, logits)
