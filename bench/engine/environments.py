"""The rivals' own Python environments, made once in the cache folder: their dependencies would not fit beside ours."""

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = {
    "pagers": ["mlx[cpu]==0.32.4", "mlx-lm==0.32.2", "boyle==0.2.1", "bigrig==0.9.1", "nunspark==0.13.0"],
    "llama": ["llama-cpp-python==0.3.36", "gguf", "safetensors"],
}
"""llama-cpp-python is compiled here, for this processor; that needs a C++ compiler and CMake, and some minutes."""


def python_of(name: str, cache: Path) -> str:
    """The interpreter of an environment; "own" is the one Pagoda runs in. Raises CalledProcessError."""
    if name == "own":
        return sys.executable
    folder = cache / "environments" / name
    python = folder / "bin" / "python"
    if not (ready := folder / "ready").exists():
        print(f"setting up {name} (once) ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *ENVIRONMENTS[name]], check=True)
        ready.touch()
    return str(python)
