"""The models on this computer that the engine can be given: the default one, the one named at the start, those of the
folders a person named, and what the Hugging Face cache holds in the format that MLX reads."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from backend.hub import cache_folder

DEPTH = 3  # folders below the one that a person named; deeper lie datasets and other programs' things
MOST = 200  # models of one folder


@dataclass(frozen=True)
class LocalModel:
    """`size_bytes` is None where nobody knows it yet: the default model is made when it is first used."""

    name: str
    size_bytes: int | None


def local_models(
    chosen: str, data_dir: Path, cache: Path | None = None, folders: Iterable[str] = ()
) -> list[LocalModel]:
    """The one named at the start first, each name once. `cache` is the Hugging Face cache, if not the usual one."""
    found = [LocalModel(chosen, _size(Path(chosen).expanduser())), LocalModel("default", _size(data_dir / "models"))]
    for folder in folders:
        found += [LocalModel(str(path), _size(path)) for path in models_in(Path(folder))]
    found += _cached(cache)
    sizes = {model.name: model.size_bytes for model in reversed(found) if model.size_bytes is not None}
    return [LocalModel(name, sizes.get(name)) for name in dict.fromkeys(model.name for model in found)]


def models_in(folder: Path) -> list[Path]:
    """Every folder at or below `folder` that holds a model; what cannot be read is passed over."""
    found: list[Path] = []
    for path in _walk(folder, DEPTH):
        found.append(path)
        if len(found) == MOST:
            break
    return sorted(found)


def folder_of(name: str, data_dir: Path) -> Path | None:
    """Where a model of this computer lies; None where it is not there (yet)."""
    if name == "default":
        from engine.default_model import model_folder

        folder = model_folder(data_dir)
        return folder if folder.is_dir() else None
    if (folder := Path(name).expanduser()).is_dir():
        return folder
    if "/" not in name:
        return None
    folder = cache_folder() / f"models--{name.replace('/', '--')}"
    try:
        snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
    except OSError:
        return None
    return snapshot if snapshot.is_dir() else None


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
            below = [Path(e.path) for e in inside if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")]
    except OSError:
        return
    names = {entry.name for entry in inside}
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        yield folder
    elif depth > 0:
        for path in below:
            yield from _walk(path, depth - 1)


def _cached(cache: Path | None) -> list[LocalModel]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = scan_cache_dir(cache).repos
    except (CacheNotFound, OSError):
        return []
    return sorted(
        (
            LocalModel(repository.repo_id, repository.size_on_disk)
            for repository in repositories
            if repository.repo_type == "model" and any(_is_whole(revision.files) for revision in repository.revisions)
        ),
        key=lambda model: model.name.lower(),
    )


def _is_whole(files) -> bool:
    names = {file.file_name for file in files}
    return "config.json" in names and any(name.endswith(".safetensors") for name in names)


def _size(folder: Path) -> int | None:
    sizes = [path.stat().st_size for path in folder.rglob("*.safetensors")] if folder.is_dir() else []
    return sum(sizes) if sizes else None
