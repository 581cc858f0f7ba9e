"""What all tests that break Pagoda share: the seed, the counts, a quick model, a small disk."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.ledger import Ledger
from tests.engine.tool_models import thinking_model


@pytest.fixture(scope="session")
def ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    print(f"PAGODA_CHAOS_SEED={ledger.seed} PAGODA_CHAOS_ROUNDS={ledger.rounds}")
    yield ledger
    ledger.write()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights: what it says means nothing, at hundreds of tokens a second."""
    return thinking_model(tmp_path_factory.mktemp("chaos") / "model")


Disk = Callable[[int], Path]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """Makes file systems of so many MB; skips where that is not allowed."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small file system")
    mounted: list[Path] = []

    def make(megabytes: int) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "pagoda-test", str(folder)], capture_output=True
        )
        if made.returncode != 0:
            pytest.skip(f"mount is not allowed here: {made.stderr.decode().strip()}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)
