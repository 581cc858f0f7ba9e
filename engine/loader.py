"""From a path to a model: mlx-lm builds it lazily, the experts are put behind slots, the trunk is read.

mlx-lm's arrays are lazy: a tensor that nobody evaluates is never read. So mlx-lm may build the whole model; each
module of experts is then replaced before anything is evaluated.
"""

import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.switch_layers import SwitchGLU, SwitchMLP
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer

from engine import memory
from engine.checkpoint import Checkpoint, Extent, open_checkpoint
from engine.disk import Disk
from engine.errors import BudgetError, CheckpointError, EngineError
from engine.paged import PagedExperts
from engine.slots import MLX_DTYPE, Counters, Piece, SlotStore
from engine.watch import Watch

# Activations, KV cache and the allocator's slack of a chunk of prefill; measured on the default model and the
# qwen3-moe shape at 2,000 tokens of context: 90-150 MB.
WORKING_BYTES = 160 << 20

OnProgress = Callable[[str, int, int, str], None]
"""(stage, done, total, unit)"""


@dataclass(frozen=True)
class Sizes:
    """Bytes of a loaded model. `expert_bytes` counts all experts as they lie in slots; `slot_bytes` what fits."""

    trunk_bytes: int
    expert_bytes: int
    slot_bytes: int
    budget_bytes: int
    layers: int
    experts_per_layer: int
    top_k: int
    context_tokens: int


class PagedModel:
    """Mixed into the mlx-lm model class: what a paged model has on top of mlx-lm's.

    Called like any mlx-lm model: model(tokens [B, L], cache=make_prompt_cache(model)) -> logits [B, L, V].
    """

    tokenizer: TokenizerWrapper
    sizes: Sizes
    watch: Watch
    path: Path
    _host_pass = None  # on a CPU: runs single tokens without MLX's overhead

    def __call__(self, tokens: mx.array, cache: list | None = None, **more: object) -> mx.array:
        """Logits [B, L, V] of tokens [B, L]."""
        forward = super().__call__
        if self._host_pass and not more and self._host_pass.fits(tokens, cache):
            return self._host_pass.run(forward, tokens, cache)
        return forward(tokens, cache=cache, **more)

    def stats(self) -> Counters:
        """What was read and hit since loading."""
        return self._counters

    def close(self) -> None:
        """Close the checkpoint's files. The model can't be called afterwards."""
        self._disk.close()


@dataclass(frozen=True)
class _Experts:
    """One module of experts found in the model, and where its pieces lie on disk."""

    path: str
    module: nn.Module
    layer: int
    count: int
    pieces: tuple[Piece, ...]
    extents: list[Extent]

    @property
    def one_bytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def nbytes(self) -> int:
        return self.count * self.one_bytes


def load(
    path: str | Path,
    memory_bytes: int | str = "auto",
    expert_bytes: int | float | str | None = None,
    on_progress: OnProgress | None = None,
) -> nn.Module:
    """Load a checkpoint whose experts stay on disk and are paged in under a byte budget.

    `memory_bytes` bounds the whole process ("auto": see memory.auto_budget). `expert_bytes` sets the slots alone,
    instead: bytes, a fraction of all experts, "least" (one token's experts of one layer) or "all".
    Raises CheckpointError, BudgetError.
    """
    report = on_progress or (lambda *_: None)
    folder = Path(path).expanduser()
    report("open", 0, 1, "steps")
    checkpoint = open_checkpoint(folder)
    model, config, origins = _build(checkpoint)
    report("open", 1, 1, "steps")

    found = _find_experts(model, origins, checkpoint)
    counters, disk, watch = Counters(), Disk(), Watch()
    model.update_modules(tree_unflatten([(e.path, _Hole()) for e in found]))  # frees the lazy tensors
    if mx.default_device() == mx.cpu:
        model.set_dtype(mx.float32)  # exact upcast: MLX's CPU kernels are 10 to 50 times slower in 16 bits
    trunk = [value for _, value in tree_flatten(model.parameters())]
    trunk_bytes = sum(value.nbytes for value in trunk)
    budget = memory.auto_budget() if memory_bytes == "auto" else int(memory_bytes)
    top_k = _top_k(config)
    slot_bytes = _slot_bytes(found, top_k, trunk_bytes, budget, expert_bytes)

    _read_trunk(trunk, trunk_bytes, report)
    _install(model, found, slot_bytes, disk, counters, watch)

    model.tokenizer = _tokenizer(folder, config)
    model.sizes = Sizes(
        trunk_bytes=trunk_bytes,
        expert_bytes=sum(e.nbytes for e in found),
        slot_bytes=slot_bytes,
        budget_bytes=budget,
        layers=len(model.layers),
        experts_per_layer=max((e.count for e in found), default=0),
        top_k=top_k if found else 0,
        context_tokens=int(_config_value(config, "max_position_embeddings", 0) or 0),
    )
    model.watch, model.path, model._disk, model._counters = watch, folder, disk, counters
    return model


class _Hole(nn.Module):
    """Stands where experts were until the slots are made."""


def _build(checkpoint: Checkpoint) -> tuple[nn.Module, dict, dict[int, str]]:
    """mlx-lm's model with lazy weights, its config, and each array's name in the checkpoint by its id."""
    names: dict[int, str] = {}
    keep_alive: list[mx.array] = []  # so that no id is used twice

    def classes(config: dict) -> tuple[type, type]:
        model_class, args_class = mlx_lm.utils._get_classes(config)

        def sanitize(self: nn.Module, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            names.update({id(value): name for name, value in weights.items()})
            keep_alive.extend(weights.values())
            original = getattr(super(paged_class, self), "sanitize", None)
            return original(weights) if original else weights

        paged_class = type(model_class.__name__, (PagedModel, model_class), {"sanitize": sanitize})
        return paged_class, args_class

    try:
        model, config = mlx_lm.utils.load_model(checkpoint.path, lazy=True, get_model_classes=classes)
    except EngineError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"mlx-lm {importlib.metadata.version('mlx-lm')} cannot build the model in {checkpoint.path}: {error}"
        ) from error
    return model, config, names


def _find_experts(model: nn.Module, origins: dict[int, str], checkpoint: Checkpoint) -> list[_Experts]:
    """Every SwitchGLU and SwitchMLP, in layer order, with the extents of its pieces."""
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
        found.append(_Experts(path, module, layer, extents[0].shape[0], tuple(pieces), extents))
    return sorted(found, key=lambda e: (e.layer, e.path))


def _slot_bytes(
    found: list[_Experts], top_k: int, trunk_bytes: int, budget: int, expert_bytes: int | float | str | None
) -> int:
    """Bytes for slots under the budget. Raises BudgetError when not even the least fits."""
    total = sum(e.nbytes for e in found)
    if not found:
        return 0
    least = _least_bytes(found, top_k)
    if expert_bytes is not None:
        wish = {"least": least, "all": total}.get(expert_bytes, expert_bytes)
        wish = wish * total if isinstance(wish, float) else wish
        if not isinstance(wish, int | float):
            raise BudgetError(f"{expert_bytes!r} is not a budget for experts: give bytes, a fraction, least or all.")
        return min(max(int(wish), least), total)
    fixed = memory.rss_bytes() + trunk_bytes + WORKING_BYTES
    if fixed + least > budget:
        raise BudgetError(
            f"A memory budget of {_mb(budget)} is too small for this model: its always-used part, the program and "
            f"room to work take {_mb(fixed)}, and one token needs {_mb(least)} of experts. "
            f"The least that works is --memory {-(-(fixed + least) // 1_000_000)}MB."
        )
    return min(budget - fixed, total)


def _least_bytes(found: list[_Experts], top_k: int) -> int:
    """The experts that one token needs at once, for each group of layers that shares slots."""
    return sum(min(max(top_k, 1), group[0].count) * group[0].one_bytes for group in _groups(found))


def _groups(found: list[_Experts]) -> list[list[_Experts]]:
    groups: dict[tuple[Piece, ...], list[_Experts]] = {}
    for experts in found:
        groups.setdefault(experts.pieces, []).append(experts)
    return list(groups.values())


def _install(
    model: nn.Module, found: list[_Experts], slot_bytes: int, disk: Disk, counters: Counters, watch: Watch
) -> None:
    """Make the slots and put each module of experts back, behind them."""
    total = sum(e.nbytes for e in found)
    cpu = _cpu_kernels()
    modules = []
    for group in _groups(found):
        share = slot_bytes * sum(e.nbytes for e in group) // total
        most = sum(e.count for e in group)
        slots = min(max(share // group[0].one_bytes, 1), most)
        extents = {index: e.extents for index, e in enumerate(group)}
        store = SlotStore(group[0].pieces, slots, extents, disk, counters)
        weights = [(piece.name, array) for piece, array in zip(store.pieces, store.arrays, strict=True)]
        for index, experts in enumerate(group):
            experts.module.update(tree_unflatten(weights))
            kernel = cpu.experts_of(experts.module) if cpu else None
            paged = PagedExperts(experts.module, experts.layer, index, experts.count, store, watch, kernel)
            modules.append((experts.path, paged))
    model.update_modules(tree_unflatten(modules))
    if cpu:
        from engine.kernels.host_pass import HostPass

        host_pass = HostPass()
        cpu.replace_linears(model, host_pass.on_host)
        host_pass.check(model, super(PagedModel, model).__call__)
        model._host_pass = host_pass


def _cpu_kernels() -> ModuleType | None:
    """The kernels for a machine without a GPU, where Numba is there to compile them."""
    if mx.default_device() != mx.cpu:
        return None
    try:
        from engine.kernels import cpu
    except ImportError:
        return None
    return cpu


def _read_trunk(trunk: list[mx.array], nbytes: int, report: OnProgress) -> None:
    """Evaluate the trunk tensor by tensor, so that the peak is one tensor above the result."""
    done = 0
    report("trunk", 0, nbytes, "bytes")
    for value in trunk:
        mx.eval(value)
        done += value.nbytes
        report("trunk", done, nbytes, "bytes")


def _tokenizer(folder: Path, config: dict) -> TokenizerWrapper:
    try:
        return load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))
    except Exception as error:
        raise CheckpointError(f"The tokenizer in {folder} cannot be loaded: {error}") from error


def _top_k(config: dict) -> int:
    for key in ("num_experts_per_tok", "moe_topk", "moe_top_k", "num_experts_per_token", "top_k_experts"):
        if value := _config_value(config, key):
            return max(value) if isinstance(value, list) else int(value)
    return 1


def _config_value(config: dict, key: str, default: object = None) -> object:
    if key in config:
        return config[key]
    return (config.get("text_config") or {}).get(key, default)


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f} MB"


def resolve(model: str) -> Path:
    """The folder of a path or of a hub id that is already in the Hugging Face cache. Raises CheckpointError."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        raise CheckpointError(f"There is no model folder at {model}. Check the path, or give a hub id like org/name.")
    try:
        return Path(mlx_lm.utils.hf_repo_to_path(model))
    except Exception as error:
        raise CheckpointError(
            f"{model} is not in this computer's Hugging Face cache. Fetch it first: hf download {model}"
        ) from error
