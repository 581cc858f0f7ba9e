"""What a checkpoint needs and how fast it would run here, found out without loading it."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine import machine, memory
from engine.errors import CheckpointError
from engine.loader import OpenModel, layer_count, open_model, read_tokenizer
from engine.slot_plan import WORKING_BYTES


@dataclass(frozen=True)
class Inspection:
    """Sizes in bytes. `predicted_tokens_per_s` takes every expert for as likely as any other, and all kernels for as
    fast as memory: routers have favourites, so fewer bytes are read; kernels are slower.
    """

    model: str
    architecture: str
    layers: int
    expert_layers: int
    experts_per_layer: int
    top_k: int
    trunk_bytes: int
    expert_bytes: int
    expert_bytes_per_token: int
    budget_bytes: int
    least_budget_bytes: int
    resident_experts: float
    fits: bool
    runs: bool
    disk_bytes_per_s: float
    memory_bytes_per_s: float
    predicted_tokens_per_s: float


def inspect(folder: Path, memory_bytes: int | None = None) -> Inspection:
    """Look at a checkpoint under a budget (None: auto). Measures the disk. Raises CheckpointError."""
    opened = open_model(folder)
    _take_what_loading_takes(folder, opened.config)
    budget = memory_bytes or memory.auto_budget()
    fixed = memory.rss_bytes() + opened.trunk_bytes + WORKING_BYTES
    slots = min(max(budget - fixed, 0), opened.expert_bytes)
    share = slots / opened.expert_bytes if opened.expert_bytes else 1.0
    disk, ram = _disk_speed(opened), machine.memory_speed()
    return Inspection(
        model=folder.name,
        architecture=opened.config["model_type"],
        layers=layer_count(opened.model, opened.experts),
        expert_layers=len({e.layer for e in opened.experts}),
        experts_per_layer=max((e.count for e in opened.experts), default=0),
        top_k=opened.top_k,
        trunk_bytes=opened.trunk_bytes,
        expert_bytes=opened.expert_bytes,
        expert_bytes_per_token=opened.token_bytes,
        budget_bytes=budget,
        least_budget_bytes=fixed + opened.least_slot_bytes,
        resident_experts=share,
        fits=share >= 1.0,
        runs=fixed + opened.least_slot_bytes <= budget,
        disk_bytes_per_s=disk,
        memory_bytes_per_s=ram,
        predicted_tokens_per_s=limit(
            opened.trunk_bytes + opened.token_bytes, opened.token_bytes * (1 - share), disk, ram
        ),
    )


def _take_what_loading_takes(folder: Path, config: dict) -> None:
    """A tokenizer and compiled kernels are in memory when a model that is loaded measures what is left."""
    with suppress(CheckpointError):  # what is wrong with it, loading the model says
        read_tokenizer(folder, config)
    with suppress(ImportError):
        import engine.kernels.cpu  # noqa: F401


def limit(touched_bytes: float, read_bytes: float, disk_bytes_per_s: float, ram_bytes_per_s: float) -> float:
    """Tokens per second if reading `read_bytes` from disk and touching `touched_bytes` of memory were all there is."""
    from_disk = read_bytes / disk_bytes_per_s if disk_bytes_per_s else 0.0
    return 1 / (from_disk + touched_bytes / ram_bytes_per_s)


def _disk_speed(opened: OpenModel) -> float:
    """As fast as this checkpoint's experts are read, half of a token's at once."""
    modules = [e.origins for e in opened.experts]
    return machine.disk_speed(modules, max(opened.top_k // 2, 1)) if modules else 0.0
