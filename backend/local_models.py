"""The models on this computer that the engine can be given: the default one, the one named at the start, and what the
Hugging Face cache holds in the format that MLX reads."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LocalModel:
    """`size_bytes` is None where nobody knows it yet: the default model is made when it is first used."""

    name: str
    size_bytes: int | None


def local_models(chosen: str, data_dir: Path, cache: Path | None = None) -> list[LocalModel]:
    """The one named at the start first, each name once. `cache` is the Hugging Face cache, if not the usual one."""
    found = [LocalModel(chosen, _size(Path(chosen).expanduser())), LocalModel("default", _size(data_dir / "models"))]
    found += _cached(cache)
    sizes = {model.name: model.size_bytes for model in reversed(found) if model.size_bytes is not None}
    return [LocalModel(name, sizes.get(name)) for name in dict.fromkeys(model.name for model in found)]


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
