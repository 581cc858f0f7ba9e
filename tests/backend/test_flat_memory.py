"""A long day leaves nothing behind in memory: neither bytes, nor objects, nor open files. bench/soak/hours.py takes
eight hours of it."""

from pathlib import Path

import pytest

from tests.backend.long_day import a_day

PIECE = 1 / 12  # of an hour's talk: a person's eight turns, two programs


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not tell what a process holds")
@pytest.mark.timeout(900)
async def test_memory_is_flat_once_it_is_warm(tmp_path: Path):
    async with a_day(tmp_path) as day:
        for _ in range(4):
            await day.talk_for_an_hour(PIECE)
        warm = await day.memory()
        before = day.chunks
        for _ in range(8):
            await day.talk_for_an_hour(PIECE)
        now = await day.memory()
        assert day.chunks - before > 8 * 3000, "that was a lot"
        assert now["resident"] - warm["resident"] < 4_000_000, (warm, now)
        assert now["objects"] - warm["objects"] < 5_000, (warm, now)
        assert now["files"] - warm["files"] < 5, (warm, now)
