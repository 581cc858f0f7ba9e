"""Which modules of a model are experts, where the pieces of each lie on disk, and how many a token takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchGLU, SwitchLinear, SwitchMLP

from engine.errors import CheckpointError
from engine.kernels.global_scale import for_this_machine
from engine.provenance import MLX_DTYPE, Origin, Provenance
from engine.slots import Piece

# How models and their configs spell the number of experts that a token takes.
TOP_K = (
    "top_k", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts",
    "experts_per_token", "num_selected_experts", "k",
)  # fmt: skip


@dataclass(frozen=True)
class Experts:
    """One module of experts: `path` in the model, the layer it belongs to, and where its pieces lie on disk.

    `linears` are its SwitchLinears by their path in it. What else it has (an activation, a norm) is not paged.
    """

    path: str
    module: nn.Module
    linears: dict[str, nn.Module]
    layer: int
    count: int
    pieces: tuple[Piece, ...]
    origins: list[Origin]

    @property
    def one_bytes(self) -> int:
        """Bytes of one expert in a slot."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def nbytes(self) -> int:
        return self.count * self.one_bytes

    def take_out(self) -> None:
        """Leave holes where the linears are, so that nothing in the model holds or reads their weights."""
        self.module.update_modules(tree_unflatten([(path, _Hole()) for path in self.linears]))

    def put_back(self, slots: list[mx.array]) -> None:
        """The linears again, with slots for weights, piece by piece."""
        for piece, array in zip(self.pieces, slots, strict=True):
            path, _, name = piece.name.rpartition(".")
            self.linears[path][name] = array
        linears = [(path, for_this_machine(linear)) for path, linear in self.linears.items()]
        self.module.update_modules(tree_unflatten(linears))


class _Hole(nn.Module):
    """Stands where a linear of experts was until there are slots for it."""


def find_experts(model: nn.Module, provenance: Provenance) -> list[Experts]:
    """Every module of experts of a lazy model, in layer order. Raises CheckpointError: see `_pieces`.

    A SwitchLinear outside of one (the grouped output projection of deepseek_v41) is used whole for every token, so it
    belongs to the trunk.
    """
    found = []
    for path, module in model.named_modules():
        if isinstance(module, SwitchGLU | SwitchMLP):
            linears = dict(_linears(module))
            pieces, origins = _pieces(path, linears, provenance)
            layer = int(next((part for part in path.split(".") if part.isdigit()), 0))
            count = origins[0].shape[0]
            found.append(Experts(path, module, linears, layer, count, tuple(pieces), origins))
    return sorted(found, key=lambda e: (e.layer, e.path))


def grouped(found: list[Experts]) -> list[list[Experts]]:
    """Modules whose experts have equal pieces, and so can share slots."""
    groups: dict[tuple[Piece, ...], list[Experts]] = {}
    for experts in found:
        groups.setdefault(experts.pieces, []).append(experts)
    return list(groups.values())


def top_k_of(model: nn.Module, config: dict[str, Any], found: list[Experts]) -> int:
    """How many experts a token takes in a layer: what the modules around the experts say, or else the config.

    Only a start for sizes: a layer that asks for more gets them, in turns.
    """
    for experts in found:
        around: Any = model
        chain = [model]
        for part in experts.path.split(".")[:-1]:
            around = around[int(part)] if isinstance(around, list) else getattr(around, part)
            chain.append(around)
        for module in reversed(chain):
            for owner in (module, getattr(module, "args", None), getattr(module, "config", None)):
                values = owner if isinstance(owner, dict) else getattr(owner, "__dict__", {})
                if (number := _named(values)) is not None:
                    return min(number, experts.count)
    return min(_in_config(config) or 1, max((e.count for e in found), default=1))


def _named(values: dict[str, Any]) -> int | None:
    return next((values[key] for key in TOP_K if type(values.get(key)) is int and values[key] > 0), None)


def _in_config(config: dict[str, Any]) -> int | None:
    inner = (value for value in config.values() if isinstance(value, dict))
    return _named(config) or next((number for value in inner if (number := _in_config(value))), None)


def _linears(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, child in module.named_modules():
        if isinstance(child, SwitchLinear | QuantizedSwitchLinear):
            yield path, child


def _pieces(path: str, linears: dict[str, nn.Module], provenance: Provenance) -> tuple[list[Piece], list[Origin]]:
    """The tensors of a module of experts. Raises CheckpointError where their bytes are not on disk as they are used."""
    on_cpu = mx.default_device() == mx.cpu
    pieces: list[Piece] = []
    origins: list[Origin] = []
    for linear_path, linear in linears.items():
        for name, value in linear.items():
            if not isinstance(value, mx.array):
                continue
            origin = provenance.of(value)
            if origin is None:
                raise CheckpointError(
                    f"The experts of {path} ({linear_path}.{name}) are transformed by mlx-lm while loading, so they "
                    "can't be paged from this folder as it is. Convert it once with `pagoda convert PATH OUT`, "
                    "then use the result."
                )
            if origin.shape[0] != (count := cast(Any, linear).weight.shape[0]):
                raise CheckpointError(
                    f"{origin.rows(0).file}: {origin.rows(0).name} has {origin.shape[0]} experts, but the layer "
                    f"{path} has {count}. The checkpoint does not fit its config.json."
                )
            dtype = MLX_DTYPE[origin.dtype]
            if on_cpu and mx.issubdtype(dtype, mx.floating):
                dtype = mx.float32  # exact, and MLX's CPU kernels know nothing else
            pieces.append(Piece(f"{linear_path}.{name}", origin.shape[1:], origin.dtype, dtype))
            origins.append(origin)
    return pieces, origins
