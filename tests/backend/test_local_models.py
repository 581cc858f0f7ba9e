"""Which models of this computer a person can choose from."""

import json
from pathlib import Path

from backend.local_models import LocalModel, local_models


def cached(cache: Path, name: str, *files: str) -> None:
    """A model as the Hugging Face cache keeps it."""
    folder = cache / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123")
    for number, file in enumerate(files):
        blob = folder / "blobs" / f"b{number}"
        blob.parent.mkdir(exist_ok=True)
        blob.write_bytes(b"x" * 100)
        (snapshot / file).symlink_to(blob)


def test_the_chosen_one_comes_first_then_the_default_and_whole_models_of_the_cache(tmp_path):
    cache = tmp_path / "hub"
    cached(cache, "org/whole", "config.json", "model.safetensors")
    cached(cache, "org/only-a-tokenizer", "tokenizer.json")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({}))
    (folder / "model.safetensors").write_bytes(b"x" * 50)
    assert local_models(str(folder), tmp_path, cache) == [
        LocalModel(str(folder), 50),
        LocalModel("default", None),
        LocalModel("org/whole", 200),
    ]


def test_without_a_cache_there_is_still_the_default(tmp_path):
    assert local_models("default", tmp_path, tmp_path / "nowhere") == [LocalModel("default", None)]
