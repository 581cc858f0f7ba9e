"""Checkpoints as they are published: experts are read where they lie, or the engine says to convert them."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from engine import loader
from engine.checkpoint import Extent, open_checkpoint
from engine.errors import CheckpointError
from engine.provenance import Provenance, Rows, Scaled
from tests.engine.originals import NEEDS_CONVERSION, PACKED, PAGED_AS_PUBLISHED, Tensors
from tests.engine.test_architectures import assert_paged_equals_stock, without_compilation  # noqa: F401
from tests.engine.tiny_checkpoints import publish


@pytest.mark.parametrize("architecture", PAGED_AS_PUBLISHED)
def test_a_published_checkpoint_pages_without_a_copy(architecture, tmp_path):
    assert_paged_equals_stock(publish(tmp_path, architecture, PAGED_AS_PUBLISHED[architecture]))


@pytest.mark.parametrize("architecture", PACKED)
def test_published_packed_experts_page_without_a_copy(architecture, tmp_path):
    original, mode, quantization = PACKED[architecture]
    folder = publish(tmp_path, architecture, original, mode, quantization_config=quantization)
    assert_paged_equals_stock(folder)
    opened = loader.open_model(folder)
    assert {piece.file_dtype for piece in opened.experts[0].pieces} <= {"U32", "U8", "BF16"}


@pytest.mark.parametrize("architecture", NEEDS_CONVERSION)
def test_where_weights_must_be_computed_the_engine_says_how(architecture, tmp_path):
    folder = publish(tmp_path, architecture, NEEDS_CONVERSION[architecture])
    with pytest.raises(CheckpointError, match="pagoda convert PATH OUT"):
        loader.open_model(folder)


def test_an_expert_of_its_own_is_named_when_reading_it_fails(tmp_path):
    folder = publish(tmp_path, "olmoe", PAGED_AS_PUBLISHED["olmoe"])
    opened = loader.open_model(folder)
    origin = opened.experts[0].origins[0]
    assert isinstance(origin, Rows)
    assert ".experts.5." in origin.rows(5).name
    checkpoint = open_checkpoint(folder)
    for experts in opened.experts:
        for origin in experts.origins:
            for e in range(experts.count):
                row = origin.rows(e)
                assert row == checkpoint.tensors[row.name]


def test_thousands_of_experts_take_a_few_bytes_each():
    extents = [Extent(f"layers.3.experts.{e}.up.weight", Path("a"), 100 * e, 96, "F32", (4, 6)) for e in range(5000)]
    known = Provenance()
    arrays = [mx.zeros((4, 6)) for _ in extents]
    for array, extent in zip(arrays, extents, strict=True):
        known.add(array, extent)
    with known.followed():
        stacked = mx.stack(arrays)
    origin = known.of(stacked)
    assert isinstance(origin, Rows)
    assert origin.offsets.nbytes + origin.file_of.nbytes == 10 * 5000
    assert [origin.rows(e) for e in (0, 4999)] == [extents[0], extents[4999]]


def on_disk(folder: Path, arrays: Tensors) -> tuple[Tensors, Provenance]:
    folder.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    (folder / "config.json").write_text("{}")
    tensors = open_checkpoint(folder).tensors
    lazy, known = mx.load(str(folder / "model.safetensors")), Provenance()
    for name, array in lazy.items():
        known.add(array, tensors[name])
    return lazy, known


def read(origin, row: int) -> np.ndarray:
    extent = origin.rows(row)
    data = extent.file.read_bytes()[extent.offset : extent.offset + extent.nbytes]
    return np.frombuffer(data, {"U32": np.uint32, "F32": np.float32, "U8": np.uint8}[extent.dtype]).reshape(
        extent.shape
    )


@pytest.mark.parametrize(
    "made",
    [
        lambda a, b: a,
        lambda a, b: a[2:5],
        lambda a, b: a[..., 2:6, :],
        lambda a, b: a[:, 3:],
        lambda a, b: mx.split(a, 2, axis=1)[1],
        lambda a, b: a.split([1, 3], axis=0)[1],
        lambda a, b: mx.contiguous(mx.split(a, 2, axis=-2)[0]),
        lambda a, b: a.reshape(6, 2, -1, 4),
        lambda a, b: a.reshape(12, 4, 4)[1:7],
        lambda a, b: a.flatten(-2),
        lambda a, b: mx.stack([a, b])[1],
        lambda a, b: mx.concatenate([a, b], axis=0)[4:8],
        lambda a, b: mx.stack([a[1], b[2]]),
        lambda a, b: mx.stack([a[1], b[2]])[:, 2:4],
        lambda a, b: a.view(mx.uint8),
        lambda a, b: a.view(mx.uint8)[:, 1:3].view(mx.uint32),
        lambda a, b: mx.stack([a[0], b[0]]).view(mx.uint8).reshape(2, 4, -1),
        lambda a, b: a.astype(mx.float32)[3:4],
        lambda a, b: a.reshape(-1, 4)[:, 2],
    ],
)
def test_what_is_followed_is_what_mlx_makes(made, tmp_path):
    rng = np.random.default_rng(0)
    lazy, known = on_disk(tmp_path, {n: mx.array(rng.normal(size=(6, 8, 4)).astype(np.float32)) for n in ("a", "b")})
    with known.followed():
        array = made(lazy["a"], lazy["b"])
    origin = known.of(array)
    assert origin is not None
    assert origin.shape == array.shape
    for row in range(array.shape[0]):
        assert np.array_equal(read(origin, row), np.array(array[row]), equal_nan=True)


@pytest.mark.parametrize(
    "made",
    [
        lambda a, b: a.swapaxes(1, 2),
        lambda a, b: a * b,
        lambda a, b: a.astype(mx.float16) * 3,
        lambda a, b: (a * 2)[1:2],
        lambda a, b: mx.stack([a * 2, b * 4]),
        lambda a, b: a.astype(mx.float16),
        lambda a, b: a[:, ::2],
        lambda a, b: a[..., 1:3],
        lambda a, b: a[mx.array([1, 0])],
        lambda a, b: mx.stack([a, b], axis=1),
        lambda a, b: mx.concatenate([a, b], axis=1),
        lambda a, b: mx.stack([a[:, 1:2], b[:, 1:2]]),
        lambda a, b: mx.split(a, 2, axis=2)[0],
        lambda a, b: a[:, 1:3].reshape(12, 4),
        lambda a, b: a[::-1],
    ],
)
def test_what_is_not_on_disk_has_no_origin(made, tmp_path):
    lazy, known = on_disk(tmp_path, {n: mx.ones((6, 8, 4)) for n in ("a", "b")})
    with known.followed():
        assert known.of(made(lazy["a"], lazy["b"])) is None


def test_numbers_to_be_multiplied_know_by_what(tmp_path):
    lazy, known = on_disk(tmp_path, {n: mx.ones((6, 8, 4)) for n in ("a", "b")})
    with known.followed():
        array = mx.stack([lazy["a"] * -8, -8 * lazy["b"]])
    origin = known.of(array)
    assert isinstance(origin, Scaled)
    assert origin.factor == -8
    assert [origin.rows(row).name for row in (0, 1)] == ["a", "b"]


def test_mlx_is_left_as_it_was():
    before = mx.stack, mx.array.__getitem__, mx.array.view
    with pytest.raises(ZeroDivisionError), Provenance().followed():
        raise ZeroDivisionError
    assert (mx.stack, mx.array.__getitem__, mx.array.view) == before
