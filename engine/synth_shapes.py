"""The architectures `synth` knows, as config.json values for mlx-lm's model classes.

Defaults keep each architecture's proportions at about 1 GB in 4 bits; every size can be given instead.
"""

from dataclasses import dataclass, replace
from typing import Any

from engine.errors import EngineError


class SynthError(EngineError):
    """A random checkpoint that cannot be made as asked."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. `head_dim` shrinks with `hidden` so that tiny models keep several heads."""

    layers: int
    experts: int
    hidden: int
    expert_hidden: int
    vocab: int
    top_k: int
    head_dim: int = 128
    heads_per_kv: int = 4

    @property
    def used_head_dim(self) -> int:
        return min(self.head_dim, self.hidden // 4)

    @property
    def heads(self) -> int:
        return self.hidden // self.used_head_dim

    @property
    def kv_heads(self) -> int:
        return max(1, self.heads // self.heads_per_kv)


DEFAULTS = {
    "qwen3-moe": Shape(layers=16, experts=64, hidden=1024, expert_hidden=512, vocab=32000, top_k=8),
    "olmoe": Shape(layers=16, experts=64, hidden=1024, expert_hidden=512, vocab=32000, top_k=8, heads_per_kv=1),
    "mixtral": Shape(layers=16, experts=8, hidden=1024, expert_hidden=3584, vocab=32000, top_k=2),
    "deepseek-v3": Shape(layers=16, experts=64, hidden=1024, expert_hidden=512, vocab=32000, top_k=8),
    "gpt-oss": Shape(
        layers=12, experts=32, hidden=1024, expert_hidden=1024, vocab=32000, top_k=4, head_dim=64, heads_per_kv=8
    ),
}


def shape_for(like: str, **sizes: int | None) -> Shape:
    """The default shape of an architecture with the given sizes put in."""
    if like not in DEFAULTS:
        raise SynthError(f"There is no architecture called {like!r} here. Known: {', '.join(sorted(DEFAULTS))}.")
    shape = replace(DEFAULTS[like], **{name: size for name, size in sizes.items() if size is not None})
    if sizes.get("experts") and not sizes.get("top_k"):
        shape = replace(shape, top_k=min(shape.top_k, shape.experts))
    for name in ("layers", "experts", "top_k"):
        if getattr(shape, name) < 1:
            raise SynthError(f"{name} is {getattr(shape, name)}; it must be at least 1.")
    for name in ("hidden", "expert_hidden"):
        if (size := getattr(shape, name)) < 64 or size % 64:
            raise SynthError(f"{name} is {size}; it must be a multiple of 64, or quantised groups do not fit.")
    if shape.hidden % shape.used_head_dim or shape.used_head_dim % 2:
        raise SynthError(f"hidden is {shape.hidden}; it must be a multiple of the head size {shape.used_head_dim}.")
    if shape.top_k > shape.experts:
        raise SynthError(f"top_k is {shape.top_k}, and there are {shape.experts} experts. Choose top_k no larger.")
    if like == "gpt-oss" and shape.layers % 2:
        raise SynthError(f"layers is {shape.layers}; gpt-oss alternates two kinds of layer, so it must be even.")
    if shape.vocab < 300:
        raise SynthError(f"vocab is {shape.vocab}; 256 byte tokens and the special ones need at least 300.")
    return shape


def config_for(like: str, shape: Shape) -> dict[str, Any]:
    """config.json without its quantization part."""
    common = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "num_experts_per_tok": shape.top_k,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    return common | _SPECIFIC[like](shape)


def _qwen3_moe(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": shape.used_head_dim,
        "intermediate_size": shape.hidden * 2,
        "moe_intermediate_size": shape.expert_hidden,
        "num_experts": shape.experts,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "rope_theta": 1e6,
    }


def _olmoe(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "olmoe",
        "architectures": ["OlmoeForCausalLM"],
        "intermediate_size": shape.expert_hidden,
        "num_experts": shape.experts,
        "norm_topk_prob": False,
        "rope_theta": 10000.0,
    }


def _mixtral(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "intermediate_size": shape.expert_hidden,
        "num_local_experts": shape.experts,
        "rope_theta": 1e6,
    }


def _deepseek_v3(shape: Shape) -> dict[str, Any]:
    # Group routing takes the best 2 of 4 groups; with few experts a token could not find its top-k in them.
    grouped = shape.experts % 4 == 0 and shape.experts >= 16 and shape.top_k <= shape.experts // 2
    return {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_key_value_heads": shape.heads,
        "intermediate_size": shape.hidden * 2,
        "moe_intermediate_size": shape.expert_hidden,
        "n_routed_experts": shape.experts,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1 if shape.layers > 1 else 0,
        "moe_layer_freq": 1,
        "n_group": 4 if grouped else 1,
        "topk_group": 2 if grouped else 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": max(64, shape.hidden // 4),
        "q_lora_rank": max(64, shape.hidden // 2),
        "qk_nope_head_dim": shape.used_head_dim,
        "qk_rope_head_dim": max(16, shape.used_head_dim // 2),
        "v_head_dim": shape.used_head_dim,
        "rope_theta": 10000.0,
    }


def _gpt_oss(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "head_dim": shape.used_head_dim,
        "intermediate_size": shape.expert_hidden,
        "num_local_experts": shape.experts,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * (shape.layers // 2),
        "rope_theta": 150000,
    }


_SPECIFIC = {
    "qwen3-moe": _qwen3_moe,
    "olmoe": _olmoe,
    "mixtral": _mixtral,
    "deepseek-v3": _deepseek_v3,
    "gpt-oss": _gpt_oss,
}
