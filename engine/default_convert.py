"""Turns the GGUF of SmolLM2-135M-Instruct into the default model: a bailing_moe folder that stock mlx-lm loads.

Feed-forward neurons are reordered by the recipe into one shared and 20 routed experts per layer. Works layer by
layer, so it holds little more than the packed embedding at a time: measured, under 100 MB.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from engine.gguf import GGUFError, GGUFFile, dequantise_q4_1
from engine.safetensors_writer import SafetensorsWriter, write_durably

RECIPE_FILE = Path(__file__).with_name("recipe.npz")
GROUP = 32  # weights per scale, as in the GGUF: that is what makes the carry-over exact
SHARED, EXPERTS, EXPERT_NEURONS = 256, 20, 64
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 30, 576, 9, 3, 64, 49152
NEURONS = SHARED + EXPERTS * EXPERT_NEURONS
# Router logits this small leave softmax nearly uniform, so each chosen expert weighs 1/20 * 20 = 1 at any top-k.
ROUTER_SCALE = 1e-4
EMBEDDING_CHUNK_ROWS = 8192  # 4.7 MB of raw rows at a time
END_OF_TEXT, END_OF_TURN = 0, 2  # ids of <|endoftext|> and <|im_end|>

WEIGHTS_FILE = "model.safetensors"
AFFINE_PARTS = ("weight", "scales", "biases")
CARD = """# SmolLM2-135M-MoE, the default model of Pagoda

Experts cut from a dense model: small and quick to try, not clever.

This folder was made by Pagoda from SmolLM2-135M-Instruct (Hugging Face TB, licence Apache-2.0). Nothing was trained
into a Mixture of Experts. The 1,536 feed-forward neurons of each of the 30 layers were sorted into 1 shared expert
(256 neurons, always used) and 20 routed experts (64 neurons each), and a small router was fitted that guesses which
experts matter for a token. With all 20 experts a token it computes what the dense model computes; with fewer it reads
less and is a little worse (perplexity on chat samples: 20 experts 3.94, 18 experts 4.53, 16 experts 5.23).

- Weights: from the GGUF file in 4 and 8 bits; `down_proj` was quantised again to 8 bits (error about 0.5 %).
- Changes to the original: neuron order, the router, quantisation of `down_proj`, float32 scales, file format.
- Licence: Apache License 2.0, as the original; https://www.apache.org/licenses/LICENSE-2.0
"""


def convert(gguf_path: Path, folder: Path, top_k: int, progress: Callable[[int, int], None]) -> None:
    """Write the whole model into the existing empty `folder`. `progress(done, total)` counts layers and the rest."""
    total = LAYERS + 2
    with GGUFFile(gguf_path) as source, SafetensorsWriter(folder / WEIGHTS_FILE) as out:
        _check_shape(source)
        _write_embedding(source, out)
        progress(1, total)
        with np.load(RECIPE_FILE) as recipe:
            orders, routers = recipe["order"], recipe["router"]
        for layer in range(LAYERS):
            _write_layer(source, out, layer, orders[layer], routers[layer])
            progress(layer + 2, total)
        out.write("model.norm.weight", source.floats("output_norm.weight"))
        for name, text in small_files(source, top_k).items():
            write_durably(folder / name, text)
    progress(total, total)  # after the writer waited for the disk


def small_files(source: GGUFFile, top_k: int) -> dict[str, str]:
    """Every file of the model except its weights, by name."""
    template = source.require("tokenizer.chat_template", str)
    return {
        "config.json": config_text(top_k),
        "generation_config.json": _json(
            {
                "eos_token_id": [END_OF_TURN, END_OF_TEXT],
                "pad_token_id": END_OF_TURN,
                "do_sample": True,
                "temperature": 0.3,
                "top_p": 0.9,
                "repetition_penalty": 1.1,  # without it this small model falls into loops
                "max_new_tokens": 1024,
            }
        ),
        "tokenizer.json": json.dumps(_tokenizer(source), ensure_ascii=False),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",  # the class that takes tokenizer.json as it is
                "bos_token": "<|im_start|>",
                "eos_token": "<|im_end|>",
                "pad_token": "<|im_end|>",
                "unk_token": "<|endoftext|>",
                "add_bos_token": False,
                "add_prefix_space": False,
                "clean_up_tokenization_spaces": False,
                "model_max_length": 8192,
                "chat_template": template,
            }
        ),
        "README.md": CARD,
    }


def config_text(top_k: int) -> str:
    """config.json for `top_k` experts a token: the only file that depends on it."""
    eight_bits = {"group_size": GROUP, "bits": 8, "mode": "affine"}
    quantization: dict[str, Any] = {"group_size": GROUP, "bits": 4, "mode": "affine"}
    quantization["model.word_embeddings"] = eight_bits
    for layer in range(LAYERS):
        for part in ("shared_experts", "switch_mlp"):
            quantization[f"model.layers.{layer}.mlp.{part}.down_proj"] = eight_bits
    return _json(
        {
            "model_type": "bailing_moe",
            "architectures": ["BailingMoeForCausalLM"],
            "hidden_size": HIDDEN,
            "intermediate_size": NEURONS,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "vocab_size": VOCAB,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 100000.0,
            "tie_word_embeddings": True,
            "num_experts": EXPERTS,
            "num_experts_per_tok": top_k,
            "moe_intermediate_size": EXPERT_NEURONS,
            "num_shared_experts": 1,
            "moe_shared_expert_intermediate_size": SHARED,
            "first_k_dense_replace": 0,
            "score_function": "softmax",
            "norm_topk_prob": False,
            "routed_scaling_factor": float(EXPERTS),
            "moe_router_enable_expert_bias": False,
            "n_group": 1,
            "topk_group": 1,
            "use_bias": False,
            "use_qkv_bias": False,
            "use_qk_norm": False,
            "norm_head": False,
            "torch_dtype": "float32",
            "bos_token_id": 1,
            "eos_token_id": END_OF_TURN,
            "quantization": quantization,
        }
    )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _check_shape(source: GGUFFile) -> None:
    wanted = {
        "llama.block_count": LAYERS,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": NEURONS,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.vocab_size": VOCAB,
    }
    for key, value in wanted.items():
        if source.require(key, int) != value:
            raise GGUFError(f"{source.path} is another model: {key} is {source.metadata[key]}, not {value}.")


# --- weights -------------------------------------------------------------------------------------


def _write_embedding(source: GGUFFile, out: SafetensorsWriter) -> None:
    chunks = [
        affine_from_q8_0(source.rows("token_embd.weight", at, at + EMBEDDING_CHUNK_ROWS))
        for at in range(0, VOCAB, EMBEDDING_CHUNK_ROWS)
    ]
    for part, pieces in zip(AFFINE_PARTS, zip(*chunks, strict=True), strict=True):
        out.write(f"model.word_embeddings.{part}", pieces)


def _write_layer(source: GGUFFile, out: SafetensorsWriter, layer: int, order: np.ndarray, router: np.ndarray) -> None:
    ours, theirs = f"model.layers.{layer}.", f"blk.{layer}."
    out.write(ours + "input_layernorm.weight", source.floats(theirs + "attn_norm.weight"))
    out.write(ours + "post_attention_layernorm.weight", source.floats(theirs + "ffn_norm.weight"))
    query = _undo_rope_order(source.rows(theirs + "attn_q.weight"), HEADS)
    key = _undo_rope_order(source.rows(theirs + "attn_k.weight"), KV_HEADS)
    fused = np.concatenate([query, key, source.rows(theirs + "attn_v.weight")])
    _write_affine(out, ours + "attention.query_key_value", affine_from_q4_1(fused))
    dense = source.rows(theirs + "attn_output.weight")
    _write_affine(out, ours + "attention.dense", affine_from_q4_1(dense))
    out.write(ours + "mlp.gate.gate_proj.weight", router.astype(np.float32) * np.float32(ROUTER_SCALE))
    gate = source.rows(theirs + "ffn_gate.weight")[order]
    up = source.rows(theirs + "ffn_up.weight")[order]
    # Groups of down_proj run along the neurons: once reordered, they need scales of their own.
    down = dequantise_q4_1(source.rows(theirs + "ffn_down.weight"))[:, order]
    for part, lead, cut in (
        ("shared_experts", (), slice(None, SHARED)),
        ("switch_mlp", (EXPERTS,), slice(SHARED, None)),
    ):
        for name, rows in (("gate_proj", gate[cut]), ("up_proj", up[cut])):
            split = [np.reshape(a, (*lead, -1, a.shape[-1])) for a in affine_from_q4_1(rows)]
            _write_affine(out, f"{ours}mlp.{part}.{name}", split)
        columns = down[:, cut]
        if lead:  # [hidden, experts * neurons] to [experts, hidden, neurons]
            columns = columns.reshape(HIDDEN, EXPERTS, EXPERT_NEURONS).transpose(1, 0, 2)
        _write_affine(out, f"{ours}mlp.{part}.down_proj", quantise_8_bits(columns))


def _write_affine(out: SafetensorsWriter, name: str, parts: Iterable[np.ndarray]) -> None:
    for part, array in zip(AFFINE_PARTS, parts, strict=True):
        out.write(f"{name}.{part}", array)


def _undo_rope_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp interleaves the two halves of each head's rows for its own rope; put them back."""
    return rows.reshape(heads, HEAD_DIM // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


Affine = tuple[
    np.ndarray, np.ndarray, np.ndarray
]  # packed uint32 [.., n / (32 / bits)], scales and biases [.., n / 32]


def affine_from_q4_1(raw: np.ndarray) -> Affine:
    """Q4_1 rows uint8 [rows, blocks * 20] as MLX affine 4-bit, group 32. Exact: only the nibbles move."""
    blocks = raw.reshape(len(raw), -1, 20)
    scales = blocks[..., 0:2].copy().view("<f2")[..., 0].astype(np.float32)
    biases = blocks[..., 2:4].copy().view("<f2")[..., 0].astype(np.float32)
    # Byte i of a block holds weights i and i + 16; MLX wants weights 2j and 2j + 1 in byte j.
    nibbles = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1)
    packed = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
    return packed.reshape(len(raw), -1).view("<u4"), scales, biases


def affine_from_q8_0(raw: np.ndarray) -> Affine:
    """Q8_0 rows uint8 [rows, blocks * 34] as MLX affine 8-bit, group 32. Exact: q becomes q + 128."""
    blocks = raw.reshape(len(raw), -1, 34)
    scales = blocks[..., 0:2].copy().view("<f2")[..., 0].astype(np.float32)
    packed = blocks[..., 2:] ^ 0x80  # two's complement q + 128 as an unsigned byte
    return packed.reshape(len(raw), -1).view("<u4"), scales, scales * np.float32(-128)


def quantise_8_bits(weights: np.ndarray) -> Affine:
    """float32 [.., n] to MLX affine 8-bit, group 32, between each group's least and greatest weight."""
    groups = weights.reshape(*weights.shape[:-1], -1, GROUP)
    biases = groups.min(axis=-1)
    scales = (groups.max(axis=-1) - biases) / np.float32(255)
    steps = np.where(scales > 0, scales, np.float32(1))  # a constant group is its bias
    packed = np.rint((groups - biases[..., None]) / steps[..., None]).astype(np.uint8)
    return np.ascontiguousarray(packed).reshape(weights.shape).view("<u4"), scales, biases


# --- tokenizer -----------------------------------------------------------------------------------


def _tokenizer(source: GGUFFile) -> dict[str, Any]:
    """tokenizer.json: byte-level BPE, each digit a token of its own, no space put in front, no BOS added."""
    tokens = source.require("tokenizer.ggml.tokens", list)
    kinds = source.require("tokenizer.ggml.token_type", list)
    merges = source.require("tokenizer.ggml.merges", list)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    control = 3  # GGUF's token type of special tokens
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text, **flags}
            for i, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
            if kind == control
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }
