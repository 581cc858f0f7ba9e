"""Writes a random-weight checkpoint in the shape of a known architecture, in mlx-lm's layout, for benchmarks.

Names and shapes come from mlx-lm's own model class, whose arrays are lazy and never computed. Quantised weights are
random bits under varied scales, streamed out piece by piece: some tens of MB in memory at any size.
"""

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.safetensors_writer import SafetensorsWriter, sync_folder, write_durably
from engine.synth_shapes import Shape, SynthError, config_for, shape_for
from engine.synth_tokenizer import tokenizer_files

SHARD_BYTES = 1 << 30  # the size at which the next shard begins
PIECE_WEIGHTS = 4 << 20  # numbers drawn at a time
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
ROUTER_NAMES = ("gate", "router")
EXPERT_GAIN, ROUTER_GAIN = 1.6, 2.0  # activations then neither fade nor grow, and routers choose clearly

Quantization = dict[str, Any]


def synthesise(
    out: Path,
    like: str,
    *,
    layers: int | None = None,
    experts: int | None = None,
    hidden: int | None = None,
    expert_hidden: int | None = None,
    vocab: int | None = None,
    top_k: int | None = None,
    bits: int = 4,
    group_size: int | None = None,
    seed: int = 0,
    skew: float = 0.6,
    scale_dtype: str = "float32",
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the checkpoint into the new folder `out` and return it. Raises SynthError.

    `skew` is the Zipf exponent of router row norms: 0 makes all experts equally popular. `scale_dtype` is also the
    type of norms. gpt-oss keeps its experts in mxfp4, as published. `progress(done, total)` counts weights.
    """
    shape = shape_for(
        like, layers=layers, experts=experts, hidden=hidden, expert_hidden=expert_hidden, vocab=vocab, top_k=top_k
    )
    if scale_dtype not in DTYPES:
        raise SynthError(f"scale_dtype is {scale_dtype!r}; choose one of {', '.join(DTYPES)}.")
    if bits not in (2, 3, 4, 5, 6, 8) or group_size not in (None, 32, 64, 128):
        raise SynthError(f"MLX has no quantisation with {bits} bits in groups of {group_size}.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SynthError(f"{out} exists already. Choose another folder, or delete it first.")
    aside = out.with_name(f".{out.name}.building")
    shutil.rmtree(aside, ignore_errors=True)  # left by a run that was killed
    try:
        aside.mkdir(parents=True)
        _Checkpoint(aside, like, shape, bits, group_size or 64, seed, skew, scale_dtype).write(progress)
        sync_folder(aside)
        os.replace(aside, out)
        sync_folder(out.parent)
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        raise SynthError(f"{out} could not be written: {reason}. What was begun is removed.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return out


class _Checkpoint:
    """One checkpoint being written into an existing folder."""

    def __init__(
        self,
        folder: Path,
        like: str,
        shape: Shape,
        bits: int,
        group_size: int,
        seed: int,
        skew: float,
        scale_dtype: str,
    ):
        self.folder, self.shape, self.seed, self.skew, self.scale_dtype = folder, shape, seed, skew, scale_dtype
        self.config = config_for(like, shape) | {"torch_dtype": scale_dtype}
        self.default: Quantization = {"group_size": group_size, "bits": bits, "mode": "affine"}
        experts_in_mxfp4 = like == "gpt-oss"
        self.experts: Quantization = (
            {"group_size": 32, "bits": 4, "mode": "mxfp4"} if experts_in_mxfp4 else self.default
        )
        self.quantization: Quantization = dict(self.default)
        self.weight_map: dict[str, str] = {}

    def write(self, progress: Callable[[int, int], None] | None) -> None:
        """Write weights, index, config and tokenizer."""
        model, parameters = self._empty_model()
        total, done = sum(math.prod(shape) for _, shape in parameters), 0
        self._check_free_space(total)
        modules = dict(model.named_modules())
        predicate = getattr(model, "quant_predicate", None) or (lambda path, module: True)
        shards, nbytes, pending = 0, 0, list(enumerate(parameters))
        while pending:
            shards += 1
            with SafetensorsWriter(self.folder / f"shard-{shards}") as shard:
                while pending and shard.nbytes < SHARD_BYTES and shard.has_room:
                    index, (name, shape) = pending.pop(0)
                    path, _, leaf = name.rpartition(".")
                    how = self._how(path, leaf, shape, modules[path], predicate)
                    for tensor, dtype, pieces in self._tensors(index, name, shape, how, modules[path]):
                        shard.write(tensor, pieces, dtype)
                        self.weight_map[tensor] = str(shards)
                    done += math.prod(shape)
                    if progress:
                        progress(done, total)
                nbytes += shard.nbytes
        self._name_shards(shards, nbytes)
        self.config["quantization"] = self.quantization
        for name, text in tokenizer_files(self.shape.vocab).items():
            write_durably(self.folder / name, text)
        write_durably(self.folder / "generation_config.json", json.dumps({"eos_token_id": 2}))
        write_durably(self.folder / "config.json", json.dumps(self.config, indent=1))

    def _empty_model(self) -> tuple[Any, list[tuple[str, tuple[int, ...]]]]:
        """mlx-lm's model of this config with its parameters' names and shapes. None of its arrays is computed."""
        from mlx.utils import tree_flatten
        from mlx_lm.utils import _get_classes

        model_class, args_class = _get_classes(self.config)
        model = model_class(args_class.from_dict(self.config))
        parameters: Any = tree_flatten(model.parameters())
        return model, [(name, tuple(array.shape)) for name, array in parameters]

    def _how(
        self, path: str, leaf: str, shape: tuple[int, ...], module: Any, predicate: Callable[[str, Any], Any]
    ) -> Quantization | None:
        """How a parameter is quantised, None for not at all; mlx-lm's own rule for its converter."""
        if leaf != "weight" or not hasattr(module, "to_quantized") or shape[-1] % self.default["group_size"]:
            return None
        wish = predicate(path, module)
        if not wish:
            return None
        how = wish if isinstance(wish, dict) else self.experts if _holds_experts(module) else self.default
        how = {"mode": "affine", **how}
        if how != self.default:
            self.quantization[path] = how
        return how

    def _tensors(
        self, index: int, name: str, shape: tuple[int, ...], how: Quantization | None, module: Any
    ) -> Iterator[tuple[str, str | None, Iterator[np.ndarray]]]:
        """(name, safetensors type if NumPy lacks it, pieces) of everything a parameter becomes in the file."""
        random = np.random.Generator(np.random.SFC64([self.seed, index]))
        path, _, leaf = name.rpartition(".")
        gain = self._gain(path, leaf, shape, module, random)
        if how is None:
            if leaf == "weight" and len(shape) == 1:  # norms
                values: Iterator[np.ndarray] = iter([np.ones(shape, np.float32)])
            else:
                values = (random.standard_normal(size, np.float32) * gain[part] for part, size in _pieces(shape))
            yield self._floats(name, values)
            return
        words = (*shape[:-1], shape[-1] * how["bits"] // 32)
        yield name, None, (random.integers(0, 1 << 32, size, np.uint32) for _, size in _pieces(words))
        groups = (*shape[:-1], shape[-1] // how["group_size"])
        if how["mode"] == "mxfp4":
            # A 4-bit float of random bits has a standard deviation of 2.9; scales are powers of two, 127 is 1.
            exponent = 127 + round(math.log2(gain.mean() / 2.9))
            drawn = (random.integers(exponent - 1, exponent + 1, size, np.uint8) for _, size in _pieces(groups))
            yield f"{path}.scales", None, drawn
            return
        # Levels 0 .. n-1 drawn uniformly have a standard deviation of sqrt((n² - 1) / 12), and the middle is no level.
        top = 2 ** how["bits"] - 1
        step = gain / math.sqrt(top * (top + 2) / 12)
        for kind, factor in (("scales", 1.0), ("biases", -top / 2)):
            values = (
                (step[part] * random.uniform(0.9, 1.1, size) * factor).astype(np.float32)
                for part, size in _pieces(groups)
            )
            yield self._floats(f"{path}.{kind}", values)

    def _gain(
        self, path: str, leaf: str, shape: tuple[int, ...], module: Any, random: np.random.Generator
    ) -> np.ndarray:
        """Standard deviation of a parameter, for each step of its first axis: float32 [shape[0], 1, ..]."""
        gain = np.ones((shape[0], *(1 for _ in shape[1:])), np.float32)
        if leaf != "weight":
            return gain * 0 if leaf == "e_score_correction_bias" else gain * np.float32(0.02)
        if path.endswith("embed_tokens"):
            return gain
        gain /= np.float32(math.sqrt(shape[-1]))
        if _holds_experts(module):
            return gain * np.float32(EXPERT_GAIN)
        if path.rpartition(".")[2] in ROUTER_NAMES and shape[0] == self.shape.experts:
            popularity = np.arange(1, self.shape.experts + 1) ** -self.skew
            rows = random.permutation(popularity) / popularity.mean() * ROUTER_GAIN
            return gain * rows[:, None].astype(np.float32)
        return gain

    def _floats(self, name: str, values: Iterator[np.ndarray]) -> tuple[str, str | None, Iterator[np.ndarray]]:
        if self.scale_dtype == "float32" or name.endswith("e_score_correction_bias"):  # DeepSeek keeps it exact
            return name, "F32", values
        if self.scale_dtype == "float16":
            return name, "F16", (piece.astype(np.float16) for piece in values)
        return name, "BF16", (_to_bfloat16(piece) for piece in values)

    def _name_shards(self, count: int, nbytes: int) -> None:
        names = {str(i): f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)}
        for number, name in names.items():
            os.rename(self.folder / f"shard-{number}", self.folder / name)
        weight_map = {tensor: names[number] for tensor, number in self.weight_map.items()}
        index = {"metadata": {"total_size": nbytes}, "weight_map": weight_map}
        write_durably(self.folder / "model.safetensors.index.json", json.dumps(index, indent=1))

    def _check_free_space(self, weights: int) -> None:
        scale_bits = 16 if self.scale_dtype != "float32" else 32
        needed = weights * (self.default["bits"] + 2 * scale_bits / self.default["group_size"]) / 8
        if (free := shutil.disk_usage(self.folder).free) < needed:
            raise SynthError(
                f"This checkpoint takes about {needed / 1e9:.1f} GB, and {self.folder.parent} has {free / 1e9:.1f} GB "
                "free. Choose fewer layers or experts, or another folder."
            )


def _holds_experts(module: Any) -> bool:
    from mlx_lm.models.switch_layers import SwitchLinear

    return isinstance(module, SwitchLinear)


def _pieces(shape: tuple[int, ...]) -> Iterator[tuple[slice, tuple[int, ...]]]:
    """Cuts a shape along its first axis: (rows, shape of the piece)."""
    step = max(1, PIECE_WEIGHTS // math.prod(shape[1:]))
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        yield slice(start, stop), (stop - start, *shape[1:])


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16, which is its upper half, rounded to even; as uint16 because NumPy lacks the type."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
