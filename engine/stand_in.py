"""A module that stands where another was in a model's tree, and is taken for it."""

from typing import Any

import mlx.nn as nn


class StandIn(nn.Module):
    """Stands for another module; what a model reads off that one (kimi_k3 its weight) is still found here."""

    def __init__(self, original: nn.Module):
        super().__init__()
        self.original = original

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "original" not in self:  # still being made
                raise
            return getattr(self["original"], name)
