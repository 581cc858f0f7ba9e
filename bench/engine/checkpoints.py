"""The checkpoints that all engines run: random weights of a known shape, and the same values as GGUF for llama.cpp."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.engine.environments import python_of
from engine.synth import synthesise


@dataclass(frozen=True)
class Shape:
    """How `pagoda synth` makes it, and its name in GGUF."""

    like: str
    gguf: str
    sizes: dict[str, int]


SHAPES = {
    "qwen3-moe": Shape("qwen3-moe", "qwen3moe", {}),
    "olmoe": Shape("olmoe", "olmoe", {"hidden": 2048, "expert_hidden": 1024}),
}


def checkpoint(name: str, cache: Path) -> Path:
    """The folder of a shape's safetensors checkpoint, 4-bit with float32 scales."""
    folder, shape = cache / "models" / name, SHAPES[name]
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        synthesise(folder, shape.like, **shape.sizes)
    return folder


def gguf(name: str, cache: Path) -> Path:
    """The same weights as Q4_1, which holds what MLX's 4-bit groups of 64 hold (scales rounded to 16 bits)."""
    file = cache / "models" / f"{name}.gguf"
    if not file.exists():
        script = Path(__file__).parent / "runners" / "to_gguf.py"
        command = [python_of("llama", cache), script, checkpoint(name, cache), SHAPES[name].gguf, file]
        subprocess.run(command, check=True)
    return file
