"""Tiny random checkpoints of any architecture, made and saved by mlx-lm's own classes and functions."""

import contextlib
import importlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
import mlx_lm.utils
from mlx.utils import tree_flatten, tree_map_with_path

from engine.synth_tokenizer import tokenizer_files
from tests.engine.tiny_configs import tiny_config

PACKAGE = Path(mlx_lm.models.__file__ or "").parent
TOKENIZER = tokenizer_files(300)
GROUP = 32  # tiny sizes are multiples of it


def architectures() -> list[str]:
    """Every module of mlx-lm with a Model that has routed experts, of its own or of a module it builds on."""
    sources = {file.stem: file.read_text() for file in PACKAGE.glob("*.py") if file.stem != "switch_layers"}
    users, found = {"switch_layers"}, set[str]()
    while users:
        pattern = re.compile(rf"from \.({'|'.join(users)}) import|from \. import [\w, ]*\b({'|'.join(users)})\b")
        users = {name for name, text in sources.items() if name not in found and pattern.search(text)}
        found |= users
    return sorted(found)


def tiny_model(architecture: str, dtype: mx.Dtype = mx.float32, **changes: Any) -> tuple[nn.Module, dict[str, Any]]:
    """A random model and its config. What mlx-lm starts as zeros is random too, so that nothing is a tie."""
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    config = tiny_config(architecture) | changes
    mx.random.seed(1)
    model = module.Model(module.ModelArgs.from_dict(config))

    def shaken(path: str, value: mx.array) -> mx.array:
        if not mx.issubdtype(value.dtype, mx.floating) or path.endswith("signs"):
            return value
        return (value + 0.1 * mx.random.normal(value.shape)).astype(dtype)

    model.update(tree_map_with_path(shaken, model.parameters()))
    model.eval()
    return model, config


def save(folder: Path, model: nn.Module, config: dict[str, Any], quantization: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint as `mlx_lm.convert` does; `quantization` is for mlx_lm's quantize_model."""
    folder.mkdir(parents=True, exist_ok=True)
    given = config.get("quantization")
    if quantization is not None:
        with contextlib.redirect_stdout(io.StringIO()):
            model, config = mlx_lm.utils.quantize_model(model, config, **quantization)
        if given is not None:
            config = config | {"quantization": given}  # the format of other modules; experts say theirs by their shapes
    mlx_lm.utils.save_model(folder, model)
    mlx_lm.utils.save_config(dict(config), folder / "config.json", keep_vision_config=True)
    add_tokenizer(folder)
    return folder


def publish(
    folder: Path, architecture: str, original: Callable[[dict], dict], mode: str | None = None, **in_config: Any
) -> Path:
    """A tiny model as it would have been published, in two shards: `original` turns mlx-lm's tensors into its own.

    `mode` quantises the experts before; `in_config` says so as the publisher would.
    """
    model, config = tiny_model(architecture)
    config |= in_config
    if mode:
        bits = 8 if mode == "mxfp8" else 4
        nn.quantize(
            model,
            32,
            bits,
            mode=mode,
            class_predicate=lambda path, m: ".switch_mlp." in path and hasattr(m, "to_quantized"),
        )
    tensors = original(dict(cast(Any, tree_flatten(model.parameters()))))
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(tensors)
    for shard in (0, 1):
        file = folder / f"model-0000{shard + 1}-of-00002.safetensors"
        mx.save_safetensors(str(file), {name: tensors[name] for name in names[shard::2]})
    write_config(folder, config)
    add_tokenizer(folder)
    return folder


def add_tokenizer(folder: Path) -> None:
    for name, text in TOKENIZER.items():
        (folder / name).write_text(text)


def write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))
