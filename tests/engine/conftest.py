"""Small random checkpoints that stock mlx-lm loads, made once per test session."""

from pathlib import Path

import pytest

from engine.synth import synthesise

TINY = {"layers": 3, "experts": 8, "hidden": 128, "expert_hidden": 64, "top_k": 2, "vocab": 600}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A qwen3-moe of three layers with eight 4-bit experts each."""
    return synthesise(tmp_path_factory.mktemp("models") / "tiny", "qwen3-moe", **TINY)


@pytest.fixture(scope="session")
def tiny_bf16_scales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape with bfloat16 scales, which have to be widened on their way into a slot."""
    return synthesise(tmp_path_factory.mktemp("models") / "bf16", "qwen3-moe", scale_dtype="bfloat16", **TINY)
