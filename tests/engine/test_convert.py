"""`pagoda convert`: what it writes is what mlx-lm makes, pages exactly, and a kill costs one file's work at most."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from backend.cli import main
from engine import convert as module
from engine import loader
from engine.convert import convert
from engine.errors import CheckpointError
from tests.engine.originals import NEEDS_CONVERSION, PAGED_AS_PUBLISHED
from tests.engine.test_architectures import greedy, without_compilation  # noqa: F401
from tests.engine.tiny_checkpoints import publish


class Killed(BaseException):
    """What a kill is to the code: nothing catches it."""


ALL = NEEDS_CONVERSION | {name: PAGED_AS_PUBLISHED[name] for name in ("mixtral", "qwen3_next", "nemotron_h")}


@pytest.mark.parametrize("architecture", ALL)
def test_a_converted_model_is_what_mlx_lm_makes_and_pages(architecture, tmp_path):
    source = publish(tmp_path / "published", architecture, ALL[architecture])
    out = convert(source, tmp_path / "converted")
    stock, _ = load_model(source)
    again, _ = load_model(out)
    expected, got = (dict(tree_flatten(m.parameters())) for m in (stock, again))
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        assert mx.array_equal(got[name], value, equal_nan=True), name
    stock.set_dtype(mx.float32)
    tokens, logits = greedy(stock)
    model = loader.load(out, expert_bytes="least")
    paged_tokens, paged = greedy(model)
    model.close()
    assert paged_tokens == tokens
    assert np.abs(paged - logits).max() <= 1e-4 * np.abs(logits).max()


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that has to be converted, into many small files."""
    monkeypatch.setattr(module, "SHARD_BYTES", 100_000)
    return publish(tmp_path / "published", "deepseek_v3", NEEDS_CONVERSION["deepseek_v3"])


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_a_conversion_that_was_killed_goes_on_after_the_last_whole_file(published, tmp_path, monkeypatch):
    whole = contents(convert(published, tmp_path / "whole"))
    shards = [name for name in whole if name.endswith(".safetensors")]
    assert len(shards) > 4
    write = module._write
    written = []

    def killed_in_the_third(file, shard, report):
        if len(written) == 2:
            file.with_suffix(".partial").write_bytes(b"half")
            raise Killed
        write(file, shard, report)
        written.append(file)

    monkeypatch.setattr(module, "_write", killed_in_the_third)
    with pytest.raises(Killed):
        convert(published, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    before = [file.stat().st_ino for file in written]
    monkeypatch.setattr(module, "_write", write)
    steps = []
    convert(published, tmp_path / "out", lambda done, total: steps.append((done, total)))
    assert [(tmp_path / "out" / file.name).stat().st_ino for file in written] == before
    assert contents(tmp_path / "out") == whole
    assert steps[-1][0] == steps[-1][1]
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_a_half_conversion_of_other_files_is_not_continued(published, tmp_path, monkeypatch):
    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, "_write_rest", killed)
        convert(published, tmp_path / "out")
    other = publish(tmp_path / "published", "mixtral", PAGED_AS_PUBLISHED["mixtral"])
    out = convert(other, tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["model_type"] == "mixtral"
    load_model(out)


def test_a_disk_that_is_too_small_is_known_before_anything_is_written(published, tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(CheckpointError, match="Make room"):
        convert(published, tmp_path / "out")


def test_an_existing_folder_is_never_written_into(published, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="exists already"):
        convert(published, tmp_path / "out")


def test_the_command_converts_and_says_where(published, tmp_path, capsys):
    assert main(["convert", str(published), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    assert main(["convert", str(published), str(tmp_path / "out")]) == 1
    assert "exists already" in capsys.readouterr().err
