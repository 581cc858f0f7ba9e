"""A budget is what the system measures of the engine's process, not what the engine thinks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.errors import ModelNotLoaded
from engine.events import Finished, Generate, RunFailed, Sampling
from engine.synth import synthesise

MB = 1_000_000
LONG = ({"role": "user", "content": "Tell me about the tower on the hill, and about the people who built it. " * 30},)


@pytest.fixture(scope="module")
def quarter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A qwen3-moe with 118 MB of experts."""
    shape = {"layers": 6, "experts": 32, "hidden": 512, "expert_hidden": 640, "top_k": 4, "vocab": 2000}
    return synthesise(tmp_path_factory.mktemp("models") / "quarter", "qwen3-moe", **shape)


async def least_budget(model: Path, data: Path) -> int:
    client = EngineClient(str(model), data, memory_bytes=1 * MB)
    await client.start()
    with pytest.raises(ModelNotLoaded) as refused:
        await client.wait_ready()
    await client.close()
    found = re.search(r"least that works is --memory (\d+)MB", str(refused.value))
    assert found
    return int(found[1]) * MB


async def peak_of_a_long_conversation(model: Path, data: Path, budget: int, turns: int = 2) -> tuple[int, int]:
    """Bytes of memory the process had at most, and how many tokens it wrote and read."""
    client = EngineClient(str(model), data, memory_bytes=budget)
    await client.start()
    await client.wait_ready()
    assert client.pid is not None
    tokens = 0
    for number in range(turns):
        async for event in client.generate(Generate(f"r{number}", LONG, Sampling(temperature=0.0, max_tokens=16))):
            assert not isinstance(event, RunFailed), event.message
            if isinstance(event, Finished):
                tokens += event.prompt_tokens + event.completion_tokens
    peak = peak_of(client.pid)
    await client.close()
    return peak, tokens


def peak_of(pid: int) -> int:
    """The largest resident set a process had, as far as the system tells of another one; else the present one."""
    if sys.platform == "linux":
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert found
        return int(found[1]) * 1024
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) * 1024


@pytest.mark.parametrize("share", [0.0, 0.25])
async def test_a_paged_model_stays_within_its_budget(quarter, tmp_path, share):
    budget = await least_budget(quarter, tmp_path) + int(share * 118 * MB)
    peak, tokens = await peak_of_a_long_conversation(quarter, tmp_path, budget)
    assert tokens > 900
    assert peak <= 1.05 * budget


async def test_the_default_model_stays_within_its_budget(default_model_dir, tmp_path):
    budget = await least_budget(default_model_dir, tmp_path) + 20 * MB
    peak, tokens = await peak_of_a_long_conversation(default_model_dir, tmp_path, budget)
    assert tokens > 900
    assert peak <= 1.05 * budget
