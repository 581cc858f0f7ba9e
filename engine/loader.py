"""From a path to a model: mlx-lm builds it lazily, the experts are put behind slots, the trunk is read.

mlx-lm's arrays are lazy: a tensor that nobody evaluates is never read. So mlx-lm may build the whole model; each
module of experts is then replaced before anything is evaluated.
"""

import importlib.metadata
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer

from engine import memory, slot_memory
from engine.budget import Budget
from engine.checkpoint import Checkpoint, Identity, open_checkpoint
from engine.compiling import compile_ahead
from engine.disk import Disk
from engine.errors import CheckpointError, EngineError
from engine.experts import Experts, find_experts, grouped, top_k_of
from engine.fetch import Counters
from engine.heat import Warmth
from engine.larger_memory import larger_budgets
from engine.lookahead import Lookahead, Payoff
from engine.packed import packed_tensors
from engine.paged import COPIES
from engine.provenance import Provenance
from engine.resident import leaves_room, read_all
from engine.slot_plan import SlotPlan, least_bytes
from engine.slots import SlotStore
from engine.soundness import check_numbers, check_types
from engine.together import Meeting
from engine.watch import Watch

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model*", "*.tiktoken", "tiktoken.model", "vocab.*", "tekken.json")

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


class PagedModel(nn.Module):
    """Mixed into the mlx-lm model class: what a paged model has on top of mlx-lm's.

    Called like any mlx-lm model: model(tokens [B, L], cache=make_prompt_cache(model)) -> logits [B, L, V].
    """

    tokenizer: TokenizerWrapper
    sizes: Sizes
    watch: Watch
    path: Path
    budget: Budget
    _disk: Disk
    _counters: Counters
    _token_bytes: int  # what a token of a prompt takes while it passes a layer
    _stores: list[SlotStore]
    _warmth: Warmth | None = None
    _host_pass: Any = None  # on a CPU: runs one sequence without MLX's overhead

    def __call__(self, tokens: mx.array, cache: list | None = None, **more: object) -> mx.array:
        """Logits [B, L, V] of tokens [B, L]."""
        forward = super().__call__
        if self._host_pass and not more and self._host_pass.fits(tokens, cache):
            return self._host_pass.run(forward, tokens, cache)
        return forward(tokens, cache=cache, **more)

    def fill(self, tokens: mx.array, cache: list) -> None:
        """Let tokens [B, L] pass for the cache's sake alone: no logits are computed."""
        forward = super().__call__
        if self._host_pass and self._host_pass.fits(tokens, cache):
            self._host_pass.run(forward, tokens, cache, with_logits=False)
        else:
            forward(tokens, cache=cache)  # lazy: the logits are never evaluated
            mx.eval([c.state for c in cache])

    def next_logits(self, tokens: list[int], caches: list[list]) -> list[mx.array]:
        """Logits [V] after one more token of each of several sequences, as if each were alone; experts are read once
        for all of them. Where `can_follow`, the same cache may come several times: tokens that follow each other."""

        def one(token: int, cache: list) -> Callable[[], mx.array]:
            return lambda: self(mx.array([[token]]), cache=cache)[0, -1]

        passes = [one(token, cache) for token, cache in zip(tokens, caches, strict=True)]
        if len(passes) == 1:
            return [passes[0]()]
        on_host = self._host_pass and all(self._host_pass.fits(mx.array([[0]]), cache) for cache in caches)
        meeting = self.watch.meeting = Meeting()
        try:
            with self._host_pass.together() if on_host else nullcontext():
                return meeting.hold(passes)
        finally:
            self.watch.meeting = None

    def can_follow(self, cache: list) -> bool:
        """Whether a token may pass through a layer as soon as the one before it has: the host pass is known to look
        at nothing but the layer's own cache."""
        return bool(self._host_pass) and self._host_pass.fits(mx.array([[0]]), cache)

    def stats(self) -> Counters:
        """What was read and hit since loading."""
        return self._counters

    def larger_budgets(self, token_s: float, disk_s: float) -> tuple[tuple[int, float], ...]:
        """(budget in bytes, tokens/s) for more memory, when a token takes `token_s`, `disk_s` of it for the disk."""
        return larger_budgets(self._stores, self.sizes.budget_bytes, token_s, disk_s)

    def damaged(self) -> str | None:
        """An expert in memory that holds NaN, in words, where there is one: why a reply became nonsense."""
        return next((found for store in self._stores for found in store.damaged()), None)

    def reserve(self, nbytes: int) -> None:
        """Make room for something that is about to grow by `nbytes`, a KV cache say; its bytes come from the slots.

        Only on the engine's thread, between passes. Raises BudgetError when experts can't give so much.
        """
        self.budget.reserve(nbytes)

    def release(self, nbytes: int) -> None:
        """What was reserved is gone, or will not be needed."""
        self.budget.release(nbytes)

    def idle(self) -> bool:
        """Nobody asks for anything: read a few experts that will be wanted; whether there is more to do soon."""
        return self._warmth is not None and self._warmth.step()

    def liked(self) -> list[int]:
        """The experts that were used most of late, as many as there are slots: numbers of this model alone."""
        return self._warmth.liked() if self._warmth is not None else []

    def warm(self, liked: Sequence[int]) -> None:
        """Have `idle` read these experts first, the likeliest in front; others make room for them."""
        if self._warmth is not None:
            self._warmth.want(liked)

    def tokens_at_once(self, most: int) -> int:
        """How large a chunk of a prompt, `most` at best, fits in memory as it is now."""
        return self.budget.tokens_at_once(most, self._token_bytes)

    def close(self) -> None:
        """Close the checkpoint's files. The model can't be called afterwards."""
        self._disk.close()


def load(
    path: str | Path,
    memory_bytes: int | str = "auto",
    expert_bytes: int | float | str | None = None,
    on_progress: OnProgress | None = None,
    lookahead: bool | None = None,
    heat_file: Path | None = None,
) -> PagedModel:
    """Load a checkpoint whose experts stay on disk and are paged in under a byte budget.

    `memory_bytes` bounds the whole process ("auto": see memory.auto_budget). `expert_bytes` sets the slots alone,
    instead: bytes, a fraction of all experts, "least" (one token's experts of one layer) or "all". `lookahead` reads
    what the next layer will probably want; None finds out whether that pays here. `heat_file` remembers what routers
    like from one start to the next (see PagedModel.idle).
    Raises CheckpointError, BudgetError.
    """
    report = on_progress or (lambda *_: None)
    folder = Path(path).expanduser()
    report("open", 0, 1, "steps")
    opened = open_model(folder)
    model, found = opened.model, opened.experts
    report("open", 1, 1, "steps")

    budget = memory.auto_budget() if memory_bytes == "auto" else int(memory_bytes)
    trunk_bytes = opened.trunk_bytes
    # What takes memory comes before it is measured.
    tokenizer, cpu = read_tokenizer(folder, opened.config), _cpu_kernels(report)
    plan = SlotPlan(opened.experts, opened.top_k, opened.expert_bytes, opened.least_slot_bytes)
    plan.slot_bytes(budget, expert_bytes, memory.rss_bytes() + trunk_bytes)
    _read_trunk(opened, report)
    slot_memory.give_back_freed()
    slot_bytes = plan.slot_bytes(budget, expert_bytes, memory.rss_bytes())
    counters, disk, watch = Counters(), Disk(), Watch()
    disk.open(opened.files)
    stores = plan.stores(slot_bytes, disk, counters)
    model._stores, model.budget = stores, Budget(None if expert_bytes is not None else budget, stores)
    modules = plan.install(model, stores, watch, model.budget, cpu.experts_of if cpu else None)
    if cpu is None and leaves_room(budget, memory.rss_bytes(), slot_bytes, opened.expert_bytes):
        resident = read_all(modules, watch, lambda done, total: report("experts", done, total, "bytes"))
        model.update_modules(tree_unflatten(cast(Any, resident)))
        model.budget = Budget(budget, ())  # nothing gives way any more
    elif len(modules) > 1 and slot_bytes < opened.expert_bytes and lookahead is not False:
        Lookahead(None if lookahead else Payoff()).install(model, modules, opened.top_k)
    if cpu:
        report("warm-up", 0, 1, "steps")
        model._host_pass = cpu.take_over(model, super(PagedModel, model).__call__)
        report("warm-up", 1, 1, "steps")

    model.tokenizer = tokenizer
    model.sizes = Sizes(
        trunk_bytes=trunk_bytes,
        expert_bytes=opened.expert_bytes,
        slot_bytes=slot_bytes,
        budget_bytes=budget,
        layers=layer_count(model, found),
        experts_per_layer=max((e.count for e in found), default=0),
        top_k=opened.top_k,
        context_tokens=_context_tokens(opened.config),
    )
    if heat_file is not None:
        model._warmth = Warmth(heat_file, stores)
    model._token_bytes = COPIES * max(opened.top_k, 1) * _width(opened.config) * 4
    model.watch, model.path, model._disk, model._counters = watch, folder, disk, counters
    return model


@dataclass(frozen=True)
class OpenModel:
    """A model of which nothing is in memory yet: its trunk is lazy, its experts are known by their origins.

    `files` are those with experts, as they were when their headers were read.
    """

    folder: Path
    files: dict[Path, Identity]
    model: PagedModel
    config: dict[str, Any]
    experts: list[Experts]
    top_k: int

    @property
    def trunk(self) -> list[tuple[str, mx.array]]:
        return cast(Any, tree_flatten(self.model.parameters()))

    @property
    def trunk_bytes(self) -> int:
        return sum(value.nbytes for _, value in self.trunk)

    @property
    def expert_bytes(self) -> int:
        """All experts as they would lie in slots."""
        return sum(e.nbytes for e in self.experts)

    @property
    def token_bytes(self) -> int:
        """The experts of one token, over all layers."""
        return sum(min(self.top_k, e.count) * e.one_bytes for e in self.experts)

    @property
    def least_slot_bytes(self) -> int:
        """The experts that one token needs at once: of one layer, for each group of layers that shares slots."""
        return sum(least_bytes(group, self.top_k) for group in grouped(self.experts))


def open_model(folder: Path) -> OpenModel:
    """Find out all about a checkpoint without reading a weight. Raises CheckpointError."""
    checkpoint = open_checkpoint(folder)
    provenance = Provenance()
    model, config = build(checkpoint, provenance)
    check_types(model, provenance)
    found = find_experts(model, provenance)
    for experts in found:
        experts.take_out()
    if mx.default_device() == mx.cpu:
        model.set_dtype(mx.float32)  # exact upcast: MLX's CPU kernels are 10 to 50 times slower in 16 bits
    holding = {file for experts in found for origin in experts.origins for file in origin.files}
    files = {file: checkpoint.files[file] for file in holding}
    return OpenModel(folder, files, model, config, found, top_k_of(model, config, found) if found else 0)


def build(checkpoint: Checkpoint, provenance: Provenance) -> tuple[PagedModel, dict]:
    """mlx-lm's model with lazy weights, whose origins go into `provenance`, and its config. Raises CheckpointError."""

    def classes(config: dict) -> tuple[type, type]:
        model_class, args_class = mlx_lm.utils._get_classes(config)

        def sanitize(self: nn.Module, weights: dict[str, mx.array]) -> dict[str, mx.array]:
            for name, value in weights.items():
                provenance.add(value, checkpoint.tensors[name])
            for name, (stand_in, origin) in packed_tensors(checkpoint).items():
                weights[name] = stand_in
                provenance.add(stand_in, origin)
            original = getattr(super(paged_class, self), "sanitize", None)
            with provenance.followed():
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
    return cast(PagedModel, model), config


def layer_count(model: nn.Module, found: list[Experts]) -> int:
    """The model's layers, as far as it says; at least those with experts."""
    layers = getattr(model, "layers", ())
    return max(len(layers) if isinstance(layers, list | tuple) else 0, max((e.layer + 1 for e in found), default=1))


def _cpu_kernels(report: OnProgress) -> ModuleType | None:
    """The kernels for a machine without a GPU, where Numba is there to compile them."""
    if mx.default_device() != mx.cpu:
        return None
    try:
        compile_ahead(report)
        from engine.kernels import cpu
    except ImportError:
        return None
    return cpu


def _read_trunk(opened: OpenModel, report: OnProgress) -> None:
    """Evaluate the trunk tensor by tensor, so that the peak is one tensor above the result. Raises CheckpointError."""
    done, total = 0, opened.trunk_bytes
    report("trunk", 0, total, "bytes")
    for name, value in opened.trunk:
        try:
            mx.eval(value)
        except RuntimeError as error:  # MLX's word for a file that became shorter or vanished
            raise CheckpointError(f"Reading {name} of {opened.folder} failed: {error}") from error
        check_numbers(opened.folder, name, value)
        done += value.nbytes
        report("trunk", done, total, "bytes")


def read_tokenizer(folder: Path, config: dict) -> TokenizerWrapper:
    """What turns a model's text into tokens. Raises CheckpointError where there is none, or none that can be read."""
    # It warns of every architecture that transformers itself does not know.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    # transformers would make an empty one of nothing.
    if not any(next(folder.glob(pattern), None) for pattern in TOKENIZER_FILES):
        raise CheckpointError(
            f"{folder} has no tokenizer (tokenizer.json, tokenizer.model, ...), so no text can be read or written. "
            "Fetch the model's other files too."
        )
    try:
        return load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))
    except Exception as error:
        raise CheckpointError(f"The tokenizer in {folder} cannot be loaded: {error}") from error


def _context_tokens(config: dict) -> int:
    """How many tokens the model can hold, in whatever words its config says so; 0 when it doesn't."""
    for values in (config, config.get("text_config") or {}):
        for key in ("max_position_embeddings", "model_max_length", "max_seq_len", "seq_length", "n_positions"):
            if type(values.get(key)) is int:
                return values[key]
    return 0


def _width(config: dict) -> int:
    """The numbers in an activation, in whatever words the config says it; a common one when it doesn't."""
    for values in (config, config.get("text_config") or {}):
        for key in ("hidden_size", "dim", "d_model", "n_embd", "model_dim"):
            if type(values.get(key)) is int:
                return values[key]
    return 4096


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
