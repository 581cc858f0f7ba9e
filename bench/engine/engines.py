"""The engines that are compared, each with the memory it may use in units that it understands."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.engine.checkpoints import checkpoint, gguf

RUNNERS = Path(__file__).parent / "runners"


@dataclass(frozen=True)
class Engine:
    """`script` runs in `environment`, with `more` in its job.

    Its memory is a share of the experts plus `fixed_bytes` (what its budget counts besides), or a share of the limit.
    """

    name: str
    script: str
    environment: str
    files: Callable[[str, Path], Path] = checkpoint
    more: dict[str, Any] = field(default_factory=dict)
    experts_share: float | None = None
    limit_share: float | None = None
    packs: bool = False
    exact: bool = True
    fixed_bytes: int = 0


def free() -> list[Engine]:
    """Without a memory limit: everything in memory, then shares of the experts."""
    return [
        Engine("mlx-lm, in memory", "with_stock", "own"),
        Engine("llama.cpp, mapped", "with_llama_cpp", "llama", gguf, exact=False),
        Engine("boyle, 50 %", "with_boyle", "pagers", experts_share=0.5, fixed_bytes=150 << 20),
        Engine("boyle, 25 %", "with_boyle", "pagers", experts_share=0.25, fixed_bytes=150 << 20),
        Engine("BigRig packed, 25 %", "with_bigrig", "pagers", experts_share=0.25, packs=True),
        Engine("nunspark, 25 %", "with_nunspark", "pagers", experts_share=0.25, packs=True, fixed_bytes=75 << 20),
        *[
            Engine(f"Pagoda, {name}", "with_pagoda", "own", more={"experts": share})
            for name, share in (("100 %", "all"), ("50 %", 0.5), ("25 %", 0.25), ("least", "least"))
        ],
    ]


def limited() -> list[Engine]:
    """Inside a memory limit: each with the budget that ran best below it."""
    return [
        Engine("llama.cpp, mapped", "with_llama_cpp", "llama", gguf, exact=False),
        Engine("boyle", "with_boyle", "pagers", experts_share=0.25, fixed_bytes=100 << 20),
        Engine("BigRig packed", "with_bigrig", "pagers", experts_share=0.15, packs=True),
        Engine("nunspark", "with_nunspark", "pagers", experts_share=0.15, packs=True, fixed_bytes=75 << 20),
        Engine("Pagoda", "with_pagoda", "own", limit_share=0.9),
    ]
