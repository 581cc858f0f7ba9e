"""Which modules of a model are experts, and where the pieces of each lie on disk."""

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import SwitchGLU, SwitchMLP

from engine.checkpoint import Checkpoint, Extent
from engine.errors import CheckpointError
from engine.slots import MLX_DTYPE, Piece


@dataclass(frozen=True)
class Experts:
    """One module of experts: `path` in the model, the layer it belongs to, and its pieces' tensors on disk."""

    path: str
    module: nn.Module
    layer: int
    count: int
    pieces: tuple[Piece, ...]
    extents: list[Extent]

    @property
    def one_bytes(self) -> int:
        """Bytes of one expert in a slot."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def nbytes(self) -> int:
        return self.count * self.one_bytes


def find_experts(model: nn.Module, origins: dict[int, str], checkpoint: Checkpoint) -> list[Experts]:
    """Every SwitchGLU and SwitchMLP of a lazy model, in layer order.

    `origins` gives the name in the checkpoint of each lazy array, by its id. Raises CheckpointError where the model
    does not use a tensor of experts as it lies on disk.
    """
    on_cpu = mx.default_device() == mx.cpu
    found = []
    for path, module in model.named_modules():
        if not isinstance(module, SwitchGLU | SwitchMLP):
            continue
        pieces, extents = [], []
        for name, value in tree_flatten(module.parameters()):
            origin = origins.get(id(value))
            if origin is None:
                raise CheckpointError(
                    f"The experts of {path} are rearranged by mlx-lm while loading, so they can't be paged from this "
                    "folder as it is. Convert it once with `mlx_lm.convert`, then use the result."
                )
            extent = checkpoint.tensors[origin]
            dtype = MLX_DTYPE[extent.dtype]
            if on_cpu and mx.issubdtype(dtype, mx.floating):
                dtype = mx.float32
            pieces.append(Piece(name, extent.shape[1:], extent.dtype, dtype))
            extents.append(extent)
        layer = int(next(part for part in path.split(".") if part.isdigit()))
        found.append(Experts(path, module, layer, extents[0].shape[0], tuple(pieces), extents))
    return sorted(found, key=lambda e: (e.layer, e.path))


def grouped(found: list[Experts]) -> list[list[Experts]]:
    """Modules whose experts have equal pieces, and so can share slots."""
    groups: dict[tuple[Piece, ...], list[Experts]] = {}
    for experts in found:
        groups.setdefault(experts.pieces, []).append(experts)
    return list(groups.values())
