"""The engine's process never compiles: what it runs on a CPU was compiled before, by a process that has ended."""

import subprocess
from pathlib import Path

import mlx.core as mx
import pytest

from engine import compiling, loader
from tests.engine.test_memory_budget import MB, least_budget, peak_of_a_long_conversation
from tests.engine.test_paging import greedy, stock

pytestmark = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="the kernels that are compiled are the CPU's")


@pytest.fixture
def nothing_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Numba's cache folder, as empty as on a new machine."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "compiled"


async def test_on_a_new_machine_all_is_compiled_before_the_model_is_there(
    default_model_dir, nothing_compiled, tmp_path
):
    budget = await least_budget(default_model_dir, tmp_path) + 20 * MB
    compiled = set(nothing_compiled.rglob("*.nbc"))
    assert compiled
    peak, _ = await peak_of_a_long_conversation(default_model_dir, tmp_path, budget)
    assert set(nothing_compiled.rglob("*.nbc")) == compiled
    assert peak <= 1.05 * budget
    # Nor did the process that was the first to load.
    [note] = (tmp_path / "cache").rglob("*.json")
    assert all(file.stat().st_mtime_ns <= note.stat().st_mtime_ns for file in compiled)


def test_where_nothing_can_be_compiled_ahead_the_model_works_all_the_same(tiny_model, monkeypatch, tmp_path):
    def refused(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    stages = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # what was noted before is not found
    monkeypatch.setattr(compiling.subprocess, "run", refused)
    model = loader.load(tiny_model, expert_bytes=0.5, on_progress=lambda stage, *_: stages.append(stage))
    assert "compile" in stages
    assert greedy(model)[0] == stock(tiny_model)[0]
    model.close()
