"""`pagoda pack`: the same model in which each expert is one read of the disk."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from mlx_lm.utils import load_model

from backend.cli import main
from engine import convert as writing
from engine import loader
from engine.errors import CheckpointError
from engine.packing import gain, pack
from engine.runs import runs_of
from tests.engine.originals import PAGED_AS_PUBLISHED
from tests.engine.test_architectures import assert_paged, greedy, without_compilation  # noqa: F401
from tests.engine.test_paging import assert_equal, stock
from tests.engine.tiny_checkpoints import publish, save, tiny_model


class Killed(BaseException):
    """What a kill is to the code: nothing catches it."""


@pytest.mark.parametrize("expert_bytes", ["all", 0.5, "least"])
def test_a_packed_model_gives_the_same_tokens(tiny_model, tmp_path, expert_bytes):
    assert_equal(pack(tiny_model, tmp_path / "packed"), stock(tiny_model), expert_bytes=expert_bytes)


@pytest.mark.parametrize("architecture", ["olmoe", "gpt_oss", "deepseek_v3", "qwen3_next", "llama4"])
@pytest.mark.parametrize("quantization", [None, {"group_size": 32, "bits": 4}])
def test_other_architectures_do_too(architecture, quantization, tmp_path):
    model, config = tiny_model_of(architecture)
    source = save(tmp_path / "source", model, config, quantization)
    plain, _ = load_model(source)
    tokens, logits = greedy(plain)
    assert_paged(pack(source, tmp_path / "packed"), tokens, logits)


tiny_model_of = tiny_model


@pytest.mark.parametrize("architecture", PAGED_AS_PUBLISHED)
def test_published_originals_are_packed_as_they_page(architecture, tmp_path):
    source = publish(tmp_path / "source", architecture, PAGED_AS_PUBLISHED[architecture])
    model = loader.load(source, expert_bytes="all")
    tokens, logits = greedy(model)
    model.close()
    assert_paged(pack(source, tmp_path / "packed"), tokens, logits)


def test_an_expert_is_one_read_and_begins_with_a_page(tiny_model, tmp_path):
    model = loader.load(pack(tiny_model, tmp_path / "packed"), expert_bytes="all")
    [store] = model._stores
    reads, _ = store._reads(1, np.array([5]), np.array([0]))
    model.close()
    assert len(reads) == 9
    [run] = runs_of(reads)
    assert run.offset % 4096 == 0
    assert run.nbytes == store.one_bytes


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_a_copy_that_was_killed_goes_on_after_the_last_whole_file(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SHARD_BYTES", 200_000)
    whole = contents(pack(tiny_model, tmp_path / "whole"))
    write, written = writing._write, []

    def killed_in_the_third(file, shard, report):
        if len(written) == 2:
            raise Killed
        write(file, shard, report)
        written.append(file)

    monkeypatch.setattr(writing, "_write", killed_in_the_third)
    with pytest.raises(Killed):
        pack(tiny_model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    before = [file.stat().st_ino for file in written]
    monkeypatch.setattr(writing, "_write", write)
    out = pack(tiny_model, tmp_path / "out")
    assert [(out / file.name).stat().st_ino for file in written] == before
    assert contents(out) == whole


def test_a_full_disk_leaves_no_folder_and_says_what_to_do(tiny_model, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing, "_write", full)
    with pytest.raises(CheckpointError, match=r"disk is full.*same command"):
        pack(tiny_model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def packed(tiny_model, tmp_path) -> Path:
    return pack(tiny_model, tmp_path / "packed")


def change(packed: Path, what) -> None:
    file = packed / "pack.json"
    found = json.loads(file.read_text())
    what(found)
    file.write_text(json.dumps(found))


def first(found: dict) -> dict:
    return next(iter(found["modules"].values()))[0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "pack.json").write_text("{"),
        lambda folder: (folder / "pack.json").write_text("[]"),
        lambda folder: change(folder, lambda found: found.update(version=2)),
        lambda folder: change(folder, lambda found: first(found).update(at=1 << 40)),
        lambda folder: change(folder, lambda found: first(found).update(at=-4)),
        lambda folder: change(folder, lambda found: first(found).update(dtype="F7")),
        lambda folder: change(folder, lambda found: first(found).update(shape=[1 << 30, 1 << 30])),
        lambda folder: next(folder.glob("experts-*")).unlink(),
        lambda folder: os.truncate(next(folder.glob("experts-*")), 600_000),
    ],
)
def test_a_damaged_copy_is_refused_before_anything_is_read(packed, damage):
    damage(packed)
    with pytest.raises(CheckpointError, match="packed"):
        loader.open_model(packed)


def test_what_is_packed_or_dense_is_not_packed(packed, tmp_path):
    with pytest.raises(CheckpointError, match="packed already"):
        pack(packed, tmp_path / "again")
    model, config = tiny_model_of("llama")
    with pytest.raises(CheckpointError, match="no experts"):
        pack(save(tmp_path / "dense", model, config), tmp_path / "out")


def test_the_gain_is_measured_on_the_model_itself(tiny_model):
    now, together = gain(loader.open_model(tiny_model))
    assert now > 0
    assert together > 0


def test_the_command_says_what_it_gains_before_it_writes(tiny_model, tmp_path, capsys):
    assert main(["pack", str(tiny_model), str(tmp_path / "out"), "--dry-run"]) == 0
    assert not (tmp_path / "out").exists()
    assert "GB/s if each lies in one piece" in capsys.readouterr().err
    assert main(["pack", str(tiny_model), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out")
    assert main(["pack", str(tiny_model), str(tmp_path / "out")]) == 1
