"""The expert-paging engine: Mixture-of-Experts models larger than memory, on MLX and mlx-lm.

`engine.load(path, memory_bytes=...)` gives an mlx-lm model whose experts are paged from disk.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    # Lazy: the page's own process uses the events and the client, and must not pay for MLX.
    if name == "load":
        from engine.loader import load

        return load
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
