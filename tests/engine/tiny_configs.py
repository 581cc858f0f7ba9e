"""A tiny config for every architecture of mlx-lm that has routed experts: what all share, and what each needs besides.

`ModelArgs.from_dict` takes what it knows, so one set of common sizes serves all. Sliding windows are 16 tokens and
attention is sparse where a model has such, so that a prompt of 70 tokens passes beyond them.
"""

from copy import deepcopy
from typing import Any

FULL_AND_SLIDING = ["sliding_attention", "full_attention"]

COMMON: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False,
    "attention_bias": False, "partial_rotary_factor": 1.0, "sliding_window": 16, "use_qk_norm": True,
    # experts
    "num_experts": 8, "n_routed_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_topk": 2,
    "num_experts_per_token": 2, "n_shared_experts": 1, "num_shared_experts": 1, "norm_topk_prob": True,
    "routed_scaling_factor": 1.5, "first_k_dense_replace": 0, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "n_group": 1, "topk_group": 1, "moe_layer_freq": 1, "shared_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    # latent attention, with its sparse indexer
    "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
    "index_head_dim": 32, "index_n_heads": 2, "index_topk": 24,
    # linear attention
    "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 2, "layer_group_size": 2, "group_norm_size": 2,
}  # fmt: skip

KIMI_LINEAR_ATTENTION = {
    "num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4, "kda_layers": [1], "full_attn_layers": [2],
}  # fmt: skip
ROPE_BY_TYPE = {
    "full_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    "sliding_attention": {"rope_theta": 1000.0, "rope_type": "default"},
}
MLA_HEADS = {"num_key_value_heads": 4}
GROUPED = {"n_group": 2, "topk_group": 1}

QWEN35 = {
    "model_type": "qwen3_5_moe",
    "rope_parameters": {
        "type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
    },
}  # fmt: skip

OVERRIDES: dict[str, dict[str, Any]] = {
    "Klear": {},
    "afmoe": {"layer_types": FULL_AND_SLIDING, "num_dense_layers": 1},
    "bailing_hybrid": MLA_HEADS,
    "bailing_moe": {"first_k_dense_replace": 1},
    "bailing_moe_linear": {"first_k_dense_replace": 1},
    "bailing_moe_v3": {"n_group": 2, "moe_shared_expert_intermediate_size": 64, "first_k_dense_replace": 1},
    "deepseek": {"first_k_dense_replace": 1},
    "deepseek_v2": MLA_HEADS | {
        "n_group": 1, "topk_method": "greedy", "first_k_dense_replace": 1,
        "rope_scaling": {
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
            "mscale": 0.7, "mscale_all_dim": 0.7,
        },
    },
    "deepseek_v3": MLA_HEADS | GROUPED,
    "deepseek_v32": MLA_HEADS,
    "deepseek_v41": {
        "head_dim": 64, "o_groups": 2, "o_lora_rank": 32, "compress_ratios": [4, 4], "kv_source_layer_ids": [0, 1],
        "index_source_layer_ids": [0, 1], "hc_mult": 2, "index_topk": 8,
    },
    "dots1": {"scoring_func": "noaux_tc", "first_k_dense_replace": 1},
    "ernie4_5_moe": {"use_bias": False, "moe_num_experts": 8, "moe_k": 2, "moe_num_shared_experts": 1},
    "exaone_moe": {"layer_types": FULL_AND_SLIDING, "is_moe_layer": [False, True]},
    "gemma4": {"text_config": "gemma4_text"},
    "gemma4_text": {
        "enable_moe_block": True, "top_k_experts": 2, "global_head_dim": 32, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0, "layer_types": FULL_AND_SLIDING, "vocab_size_per_layer_input": 128,
        "use_double_wide_mlp": False, "tie_word_embeddings": True,
    },
    "glm4_moe": {"partial_rotary_factor": 0.5, "first_k_dense_replace": 1},
    "glm4_moe_lite": MLA_HEADS | {"first_k_dense_replace": 1},
    "glm_moe_dsa": MLA_HEADS | {
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "rope_parameters": {"rope_theta": 10000.0},
    },
    "gpt_oss": {"layer_types": FULL_AND_SLIDING},
    "granitemoe": {
        "logits_scaling": 2.0, "attention_multiplier": 0.25, "embedding_multiplier": 2.0, "residual_multiplier": 0.5,
    },
    "granitemoehybrid": {
        "logits_scaling": 2.0, "attention_multiplier": 0.25, "embedding_multiplier": 2.0, "residual_multiplier": 0.5,
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_proj_bias": False,
        "mamba_d_state": 32, "mamba_d_conv": 4, "mamba_n_groups": 1, "mamba_conv_bias": True,
    },
    "hunyuan": {
        "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_cla": True, "cla_share_factor": 2,
        "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    },
    "jamba": {
        "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 0, "expert_layer_period": 1,
        "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2,
    },
    "kimi_k25": {"text_config": "deepseek_v3"},
    "kimi_k3": {"text_config": "kimi_k3_text"},
    "kimi_k3_text": MLA_HEADS | {
        "model_type": "kimi_linear", "linear_attn_config": KIMI_LINEAR_ATTENTION, "activation_situ_beta": 1.0,
        "activation_situ_linear_beta": 1.0, "attn_res_block_size": 2, "routed_expert_hidden_size": 32,
        "latent_moe_use_norm": True, "mla_use_output_gate": True,
    },
    "kimi_linear": MLA_HEADS | {"linear_attn_config": KIMI_LINEAR_ATTENTION, "model_max_length": 512},
    "kimi_vl": {"text_config": "deepseek_v3"},
    "laguna": {"layer_types": FULL_AND_SLIDING, "rope_parameters": ROPE_BY_TYPE},
    "lfm2_moe": {
        "use_expert_bias": True, "num_dense_layers": 1, "norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention"],
    },
    "llama4": {"text_config": "llama4_text"},
    "llama4_text": {
        "attention_chunk_size": 32, "interleave_moe_layer_step": 1, "intermediate_size_mlp": 64,
        "num_experts_per_tok": 1, "num_hidden_layers": 4,
    },
    "longcat_flash": {
        "attention_method": "MLA", "zero_expert_type": "identity", "zero_expert_num": 4, "ffn_hidden_size": 64,
        "expert_ffn_hidden_size": 64, "num_layers": 2, "mla_scale_q_lora": True, "mla_scale_kv_lora": True,
    },
    "longcat_flash_ngram": {
        "zero_expert_num": 4, "ffn_hidden_size": 64, "expert_ffn_hidden_size": 64, "num_layers": 2,
        "mla_scale_q_lora": True, "mla_scale_kv_lora": True, "ngram_vocab_size_ratio": 2, "emb_neighbor_num": 2,
        "emb_split_num": 2,
    },
    "mellum": {"layer_types": FULL_AND_SLIDING, "rope_parameters": ROPE_BY_TYPE},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 1], "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "sliding_window_size": 16, "topk_method": "noaux_tc",
        "scoring_func": "sigmoid", "layernorm_epsilon": 1e-5, "swa_rope_theta": 1000.0, "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2, "swa_head_dim": 16, "swa_v_head_dim": 16, "v_head_dim": 16,
    },
    "minimax": {"rotary_dim": 8},
    "minimax_m3_vl": {"text_config": "minimax_m3_text"},
    "minimax_m3_text": {
        "dense_intermediate_size": 64, "moe_layer_freq": [0, 1], "head_dim": 32, "partial_rotary_factor": 0.5,
        "sparse_attention_config": {
            "sparse_num_index_heads": 2, "sparse_index_dim": 32, "sparse_block_size": 8, "sparse_topk_blocks": 2,
            "sparse_local_block": 1, "sparse_attention_freq": [0, 1],
        },
    },
    "mistral3": {"text_config": "mistral4"},
    "mistral4": MLA_HEADS | {
        "rope_parameters": {
            "rope_theta": 10000.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64,
        },
    },
    "mixtral": {},
    "muse_spark": {"text_config": "muse_spark_text"},
    "muse_spark_text": {
        "post_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 10000.0}, "layer_rope_theta": [1000.0, None],
        "layer_types": FULL_AND_SLIDING, "final_logit_softcapping": 30.0, "output_multiplier": 0.5,
        "moe_hidden_size": 32, "num_shared_experts": 0, "vision_config": None,
    },
    "nemotron_h": {
        "hybrid_override_pattern": ["M", "E", "*", "E"], "mamba_num_heads": 4, "mamba_head_dim": 32,
        "mamba_proj_bias": False, "ssm_state_size": 32, "conv_kernel": 4, "n_groups": 1, "mlp_bias": False,
        "layer_norm_epsilon": 1e-5, "use_bias": False, "use_conv_bias": True,
        "moe_shared_expert_intermediate_size": 64, "moe_latent_size": 32,
    },
    "olmoe": {},
    "phimoe": {},
    "phixtral": {"num_vocab": 128, "model_dim": 64, "num_heads": 4, "num_layers": 2, "rotary_dim": 8},
    "prism_hadamard_qwen35": {
        "text_config": "prism_text", "tensor_namespace": "mlx-vlm-qwen3_5",
        "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
        "modules": [{
            "path": "model.layers.0.linear_attn.out_proj", "block": 512, "embedding": False, "dtype": "float16",
        }],
    },
    "prism_text": QWEN35 | {"linear_num_value_heads": 4, "linear_value_head_dim": 128},
    "qwen2_moe": {},
    "qwen3_5": {"text_config": "qwen3_5_moe_text"},
    "qwen3_5_moe": {"text_config": "qwen3_5_moe_text"},
    "qwen3_5_moe_text": QWEN35,
    "qwen3_moe": {"decoder_sparse_step": 2},
    "qwen3_next": {"partial_rotary_factor": 0.5},
    "qwen3_vl_moe": {"text_config": "qwen3_moe"},
    "solar_open": {},
    "step3p5": {
        "num_attention_groups": 2, "moe_num_experts": 8, "moe_top_k": 2, "share_expert_dim": 64,
        "moe_layers_enum": "1", "layer_types": FULL_AND_SLIDING,
        "attention_other_setting": {"num_attention_heads": 4, "num_attention_groups": 2},
    },
}  # fmt: skip


DENSE: dict[str, dict[str, Any]] = {"gemma3_text": {"sliding_window_pattern": 2}, "llama": {}, "qwen3": {}}


def tiny_config(architecture: str) -> dict[str, Any]:
    """The config of a tiny model; KeyError for an architecture that has none here yet."""
    own = deepcopy(OVERRIDES[architecture] if architecture in OVERRIDES else DENSE[architecture])
    inner = own.get("text_config")
    text = {"text_config": {"model_type": inner, **tiny_config(inner)}} if isinstance(inner, str) else {}
    return deepcopy(COMMON) | {"model_type": architecture, **own, **text}


# Architectures that mlx-lm itself can't run where there is no Apple GPU: the words of its own error.
NEEDS_METAL = {"muse_spark": "No Metal back-end"}  # q and k are normed and rotated by a Metal kernel without a fallback
