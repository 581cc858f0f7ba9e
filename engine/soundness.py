"""Whether a checkpoint's tensors are what the model computes with: their types before, their numbers after reading."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from engine.errors import CheckpointError
from engine.provenance import Provenance

_PLAIN = (nn.Linear, nn.Embedding, SwitchLinear)
_QUANTISED = (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)


def check_types(model: nn.Module, provenance: Provenance) -> None:
    """MLX takes any type for a weight and would fail at the first token. Raises CheckpointError."""
    for path, module in model.named_modules():
        if isinstance(module, _QUANTISED):
            wanted = {"weight": "U32", "scales": "a float" if module.mode == "affine" else "U8", "biases": "a float"}
        elif isinstance(module, _PLAIN):
            wanted = {"weight": "a float"}
        else:
            continue
        for name, kind in wanted.items():
            value = module.get(name)
            if not isinstance(value, mx.array) or _is(kind, value.dtype):
                continue
            origin = provenance.of(value)
            first = origin.rows(0) if origin and origin.shape else None
            where = f"{first.file}: tensor {first.name}" if first else f"{path}.{name}"
            raise CheckpointError(
                f"{where} holds {str(value.dtype).removeprefix('mlx.core.')}, but the model needs {kind} there. "
                "The checkpoint does not fit its config.json; fetch both again."
            )


def _is(kind: str, dtype: mx.Dtype) -> bool:
    return mx.issubdtype(dtype, mx.floating) if kind == "a float" else dtype == {"U32": mx.uint32, "U8": mx.uint8}[kind]


def check_numbers(folder: Path, name: str, value: mx.array) -> None:
    """A NaN anywhere in the trunk makes every reply NaN. Raises CheckpointError."""
    if mx.issubdtype(value.dtype, mx.floating) and _has_nan(value):
        raise CheckpointError(
            f"{name} of {folder} holds NaN where numbers should be, so every reply would be nonsense. "
            "The file is damaged; fetch it again."
        )


def check_logits(logits: mx.array, damaged: Callable[[], str | None]) -> None:
    """A token must never be drawn from NaN. `damaged` is asked where it comes from. Raises CheckpointError."""
    if not _has_nan(logits):
        return
    where = damaged()
    raise CheckpointError(
        f"The model computed NaN instead of a next token: {where} holds NaN. The file is damaged; fetch it again."
        if where
        else "The model computed NaN instead of a next token. Its files may be damaged, or the conversation takes it "
        "beyond its numbers' range; fetch the files again, or start a new conversation."
    )


def _has_nan(value: mx.array) -> bool:
    if value.dtype != mx.float32 or mx.default_device() != mx.cpu:
        return bool(mx.isnan(value).any().item())
    mx.eval(value)
    numbers = np.array(value, copy=False)
    # The sum is NaN if any number is: one pass at the speed of memory. Only infinities can mislead it.
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isnan(numbers.sum()) and np.isnan(numbers).any())
