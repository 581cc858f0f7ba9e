"""to_gguf.py FOLDER ARCHITECTURE FILE: a 4-bit MLX checkpoint as a GGUF file of the same weight values.

An affine group of 64 (scale and bias) is two Q4_1 blocks of 32 with the same pair; routers become float32.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

folder, architecture, file = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
config = json.loads((folder / "config.json").read_text())
weights: dict[str, np.ndarray] = {}
for shard in sorted(folder.glob("*.safetensors")):
    weights |= load_file(shard)


def codes(name: str, bits: int) -> np.ndarray:
    """The integers [..., I] of a packed matrix."""
    words = weights[f"{name}.weight"]
    places = np.arange(32 // bits, dtype=np.uint32) * bits
    return (words[..., None] >> places & ((1 << bits) - 1)).reshape(*words.shape[:-1], -1).astype(np.uint8)


def dense(name: str) -> np.ndarray:
    quantised = config["quantization"].get(name, config["quantization"])
    q = codes(name, quantised["bits"])
    scales, biases = (
        np.repeat(weights[f"{name}.{part}"], quantised["group_size"], -1) for part in ("scales", "biases")
    )
    return (q * scales + biases).astype(np.float32)


def q4_1(name: str) -> np.ndarray:
    """Blocks of 20 bytes: float16 scale and minimum, then 16 bytes whose low halves are the first 16 values."""
    q = codes(name, 4)
    halves = q.reshape(-1, 2, 16)
    blocks = np.empty((len(halves), 20), np.uint8)
    for place, part in ((0, "scales"), (2, "biases")):
        pair = np.repeat(weights[f"{name}.{part}"].reshape(-1), 2).astype(np.float16)
        blocks[:, place : place + 2] = pair.view(np.uint8).reshape(-1, 2)
    blocks[:, 4:] = halves[:, 0] | halves[:, 1] << 4
    return blocks.reshape(*q.shape[:-1], -1)


writer = gguf.GGUFWriter(file, architecture)
heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
head_dim = config.get("head_dim") or config["hidden_size"] // heads
expert_hidden = config.get("moe_intermediate_size") or config["intermediate_size"]
writer.add_block_count(config["num_hidden_layers"])
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(config["hidden_size"])
writer.add_feed_forward_length(config["intermediate_size"])
writer.add_head_count(heads)
writer.add_head_count_kv(kv_heads)
writer.add_key_length(head_dim)
writer.add_value_length(head_dim)
writer.add_rope_freq_base(config["rope_theta"])
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_expert_count(config["num_experts"])
writer.add_expert_used_count(config["num_experts_per_tok"])
writer.add_expert_feed_forward_length(expert_hidden)
writer.add_vocab_size(config["vocab_size"])
writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("gpt-2")
# Only ids travel between the bench and the engine, so any names will do.
writer.add_token_list([f"t{i}" for i in range(config["vocab_size"])])
writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
writer.add_token_merges(["t 0"])
writer.add_eos_token_id(config["eos_token_id"])
writer.add_bos_token_id(0)


def add_q4_1(to: str, name: str) -> None:
    writer.add_tensor(f"{to}.weight", q4_1(name), raw_dtype=gguf.GGMLQuantizationType.Q4_1)


add_q4_1("token_embd", "model.embed_tokens")
for layer in range(config["num_hidden_layers"]):
    ours, theirs = f"model.layers.{layer}", f"blk.{layer}"
    for name, to in (
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
    ):
        writer.add_tensor(f"{theirs}.{to}.weight", weights[f"{ours}.{name}.weight"].astype(np.float32))
    for name, to in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("o_proj", "output")):
        add_q4_1(f"{theirs}.attn_{to}", f"{ours}.self_attn.{name}")
    writer.add_tensor(f"{theirs}.ffn_gate_inp.weight", dense(f"{ours}.mlp.gate"))
    for name in ("gate", "up", "down"):
        add_q4_1(f"{theirs}.ffn_{name}_exps", f"{ours}.mlp.switch_mlp.{name}_proj")
writer.add_tensor("output_norm.weight", weights["model.norm.weight"].astype(np.float32))
add_q4_1("output", "lm_head")
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
