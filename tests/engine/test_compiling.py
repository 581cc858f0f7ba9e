"""The engine's process never compiles: what it runs on a CPU was compiled before, by a process that has ended."""

import subprocess
from pathlib import Path

import mlx.core as mx
import pytest

from engine import compiling, loader
from engine.client import EngineClient
from engine.events import Finished, Generate, RunFailed, Sampling
from tests.engine.test_memory_budget import LONG, MB, least_budget, peak_of
from tests.engine.test_paging import greedy, stock

pytestmark = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="the kernels that are compiled are the CPU's")


@pytest.fixture
def nothing_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Numba's cache folder, as empty as on a new machine."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "compiled"


async def test_on_a_new_machine_all_is_compiled_before_the_model_is_there(
    default_model_dir, tiny_bf16_scales, nothing_compiled, tmp_path
):
    stages, peak = [], 0
    for model in (default_model_dir, tiny_bf16_scales):
        budget = await least_budget(model, tmp_path) + 20 * MB
        client = EngineClient(str(model), tmp_path, memory_bytes=budget)
        client.watch(lambda status: stages.append(status.loading.stage) if status.loading else None)
        await client.start()
        await client.wait_ready()
        compiled = set(nothing_compiled.rglob("*.nbc"))
        assert compiled
        assert client.pid
        async for event in client.generate(Generate("r", LONG, Sampling(temperature=0.0, max_tokens=16))):
            assert not isinstance(event, RunFailed), event.message
            if isinstance(event, Finished):
                assert event.prompt_tokens > 400
        assert set(nothing_compiled.rglob("*.nbc")) == compiled
        peak = peak_of(client.pid)
        await client.close()
        assert peak <= 1.05 * budget
    # The first start, which only asked for the least budget, has compiled all; nobody does it again.
    assert "trunk" in stages
    assert "compile" not in stages
    [note] = (tmp_path / "cache").rglob("*.json")
    assert all(file.stat().st_mtime_ns <= note.stat().st_mtime_ns for file in nothing_compiled.rglob("*.nbc"))


def test_where_nothing_can_be_compiled_ahead_the_model_works_all_the_same(tiny_model, monkeypatch, nothing_compiled):
    def refused(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    stages = []
    monkeypatch.setattr(compiling.subprocess, "run", refused)
    model = loader.load(tiny_model, expert_bytes=0.5, on_progress=lambda stage, *_: stages.append(stage))
    assert "compile" in stages
    assert greedy(model)[0] == stock(tiny_model)[0]
    model.close()
