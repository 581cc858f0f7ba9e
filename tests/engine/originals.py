"""Checkpoints as they are published, made backwards from mlx-lm's own layout: what sanitize will turn back.

Each function takes the tensors of a saved tiny model by their names and gives the original's.
"""

import re
from collections.abc import Callable

import mlx.core as mx

Tensors = dict[str, mx.array]

_W = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_STACKED = re.compile(
    r"(.*\.)(switch_mlp|experts)\.(gate_proj|up_proj|down_proj|fc1|fc2)\.(weight|scales|biases|bias)$"
)


def apart(where: str = r"\1experts.{e}.", names: dict[str, str] | None = None) -> Callable[[Tensors], Tensors]:
    """One tensor per expert: `where` replaces the path up to the projection, `names` the projection's name."""

    def original(tensors: Tensors) -> Tensors:
        out = {}
        for name, value in tensors.items():
            match = _STACKED.fullmatch(name)
            if match is None:
                out[name] = value
                continue
            projection = (names or {}).get(match[3], match[3])
            for e in range(value.shape[0]):
                out[f"{match.expand(where).format(e=e)}{projection}.{match[4]}"] = value[e]
        return out

    return original


def fused(before: str, gate_up: str, down: str, change: Callable[[mx.array], mx.array] = lambda w: w):
    """gate and up in one tensor [E, 2 M, H], which `change` may transpose."""

    def original(tensors: Tensors) -> Tensors:
        out = dict(tensors)
        for name in tensors:
            if name.endswith(f"{before}.gate_proj.weight"):
                path = name.removesuffix(f"{before}.gate_proj.weight")
                parts = [out.pop(f"{path}{before}.{p}_proj.weight") for p in ("gate", "up", "down")]
                out[path + gate_up] = change(mx.concatenate(parts[:2], axis=1))
                out[path + down] = change(parts[2])
        return out

    return original


def renamed(original: Callable[[Tensors], Tensors], *pairs: tuple[str, str]) -> Callable[[Tensors], Tensors]:
    """What `original` gives, with other names besides."""

    def rename(name: str) -> str:
        for old, new in pairs:
            name = re.sub(old, new, name)
        return name

    return lambda tensors: {rename(name): value for name, value in original(tensors).items()}


def fp8(tensors: Tensors) -> Tensors:
    """deepseek_v3 as published: experts apart, 8-bit floats with a scale for each block of 128 by 128."""
    out = {}
    for name, value in apart()(tensors).items():
        if ".experts." in name:
            out[name] = mx.to_fp8(value)
            out[f"{name}_scale_inv"] = mx.full((1, 1), 0.5, mx.float32)
        else:
            out[name] = value
    return out


def interleaved(tensors: Tensors) -> Tensors:
    """gpt_oss as published: rows of gate and up take turns."""
    out = dict(tensors)
    for name in tensors:
        if name.endswith("experts.gate_proj.weight"):
            path = name.removesuffix("gate_proj.weight")
            for end, new in ((".weight", ""), (".bias", "_bias")):
                gate, up = (out.pop(f"{path}{p}_proj{end}") for p in ("gate", "up"))
                both = mx.stack([gate, up], axis=2).reshape(gate.shape[0], -1, *gate.shape[2:])
                out[f"{path}gate_up_proj{new or '.weight'}"] = both
            out[f"{path}down_proj_bias"] = out.pop(f"{path}down_proj.bias")
    return out


def packed_4_bit(tensors: Tensors) -> Tensors:
    """Kimi K2's: integers packed into int32, without biases, for each expert."""
    out = {}
    for name, value in apart()(tensors).items():
        if ".experts." not in name:
            out[name] = value
        elif name.endswith(".weight"):
            out[name.replace(".weight", ".weight_packed")] = value.view(mx.int32)
            out[name.replace(".weight", ".weight_shape")] = mx.array([64, 64], mx.int32)
        elif name.endswith(".scales"):
            out[name.replace(".scales", ".weight_scale")] = value.astype(mx.bfloat16)
    return out


def packed_bytes(tensors: Tensors, weight: str, scale: str, names: dict[str, str], where: str) -> Tensors:
    """fp4 or fp8 numbers as bytes, with one exponent for 32 of them, for each expert."""
    out = {}
    for name, value in apart(where=where, names=names)(tensors).items():
        if ".experts." in name and name.endswith(".weight"):
            out[name.replace(".weight", weight)] = value.view(mx.uint8)
        else:
            out[name.replace(".scales", scale)] = value
    return out


# architecture, how it is published, how its experts are quantised, what its config says of that
PACKED: dict[str, tuple[Callable[[Tensors], Tensors], str, dict]] = {
    "kimi_k25": (packed_4_bit, "affine", {"quant_method": "compressed-tensors", "format": "pack-quantized"}),
    "kimi_k3": (
        renamed(
            lambda tensors: packed_bytes(tensors, ".weight_packed", ".weight_scale", _W, where=r"\1experts.{e}."),
            (r"\.mlp\.experts", ".block_sparse_moe.experts"),
        ),
        "mxfp4",
        {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"},
    ),
    "minimax_m3_vl": (
        lambda tensors: packed_bytes(tensors, ".weight", ".weight_scale_inv", _W, where=r"\1experts.{e}."),
        "mxfp8",
        {"quant_method": "mxfp8"},
    ),
}

PAGED_AS_PUBLISHED: dict[str, Callable[[Tensors], Tensors]] = {
    "Klear": apart(),
    "afmoe": apart(),
    "bailing_moe": apart(),
    "deepseek": apart(),
    "deepseek_v2": apart(),
    "deepseek_v3": apart(),
    "dots1": apart(),
    "gemma4_text": fused("switch_glu", "gate_up_proj", "down_proj"),
    "glm4_moe": apart(),
    "granitemoe": fused("switch_mlp", "input_linear.weight", "output_linear.weight"),
    "granitemoehybrid": fused("switch_mlp", "input_linear.weight", "output_linear.weight"),
    "hunyuan": apart(),
    "jamba": apart(),
    "kimi_k25": apart(),
    "kimi_linear": renamed(apart(names=_W), (r"\.mlp\.(experts|gate|shared_experts)", r".block_sparse_moe.\1")),
    "laguna": apart(),
    "lfm2_moe": apart(names=_W),
    "minimax": apart(names=_W),
    "mistral4": fused("switch_mlp", "experts.gate_up_proj", "experts.down_proj"),
    "mixtral": apart(names=_W),
    "nemotron_h": apart(names={"fc1": "up_proj", "fc2": "down_proj"}),
    "olmoe": apart(),
    "phimoe": apart(names=_W),
    "phixtral": apart(where=r"\1mlp.{e}."),
    "qwen2_moe": apart(),
    "qwen3_5_moe": fused("switch_mlp", "experts.gate_up_proj", "experts.down_proj"),
    "qwen3_moe": apart(),
    "qwen3_next": apart(),
    "step3p5": renamed(lambda tensors: dict(tensors), (r"\.mlp\.switch_mlp\.", ".moe.")),
}

NEEDS_CONVERSION: dict[str, Callable[[Tensors], Tensors]] = {
    "deepseek_v3": fp8,
    "gpt_oss": interleaved,
    "llama4": fused("experts", "experts.gate_up_proj", "experts.down_proj", lambda w: w.swapaxes(1, 2)),
    "qwen3_vl_moe": fused("switch_mlp", "experts.gate_up_proj", "experts.down_proj", lambda w: w.swapaxes(1, 2)),
}
