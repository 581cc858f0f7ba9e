"""Headers that lie are refused by name, before anything is allocated."""

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from engine.checkpoint import ITEM_BYTES, open_checkpoint, read_header
from engine.errors import CheckpointError


def write(path: Path, header: dict | bytes, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def entry(dtype="F32", shape=(2, 2), begin=0, end=16) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_extents_point_at_the_bytes_of_each_row(tmp_path):
    experts = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    save_file({"experts": experts, "other": np.ones(5, np.float16)}, tmp_path / "model.safetensors")
    extent = {e.name: e for e in read_header(tmp_path / "model.safetensors")}["experts"].rows(2)
    data = (tmp_path / "model.safetensors").read_bytes()[extent.offset : extent.offset + extent.nbytes]
    assert extent.shape == (2, 3)
    assert np.array_equal(np.frombuffer(data, np.float32).reshape(2, 3), experts[2])


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry(end=20)},
        {"a": entry(dtype="F31")},
        {"a": entry(shape=(2, -2))},
        {"a": entry(), "b": entry(begin=8, end=24)},
        {"a": entry(begin=16, end=32)},
        {"a": {"dtype": "F32"}},
        {"a": 5},
        b"[1, 2]",
        b"\xff\xfe",
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, header):
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        read_header(write(tmp_path / "model.safetensors", header, b"\0" * 16))


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    save_file({"a": np.ones((64, 64), np.float32)}, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    for length in (0, 7, 20, len(whole) - 1):
        (tmp_path / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"Fetch it again|fetch it again"):
            read_header(tmp_path / "model.safetensors")


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_fail_in_another_way(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "model-fuzz.safetensors"
    path.write_bytes(data)
    with contextlib.suppress(CheckpointError):
        read_header(path)


numbers = st.one_of(st.integers(-3, 40), st.integers(2**62, 2**70), st.floats(), st.booleans(), st.none(), st.text())
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from([*ITEM_BYTES, "F31", "f32"]), numbers),
        "shape": st.one_of(st.lists(numbers, max_size=3), numbers),
        "data_offsets": st.one_of(st.lists(numbers, max_size=3), numbers),
        "more": numbers,
    },
)
sound = st.tuples(st.sampled_from([*ITEM_BYTES]), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 30)).map(
    lambda t: entry(t[0], t[1], t[2], t[2] + math.prod(t[1]) * ITEM_BYTES[t[0]])
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.one_of(sound, sound, entries), max_size=4),
    st.integers(0, 60),
    st.integers(-9, 9),
)
def test_what_the_reader_takes_lies_in_the_file_and_apart(tmp_path_factory, header, data, more):
    """Headers that are nearly right: only what is wholly right comes through, all else is a CheckpointError."""
    raw = json.dumps(header).encode()
    path = tmp_path_factory.getbasetemp() / "model-nearly.safetensors"
    path.write_bytes(max(len(raw) + more, 0).to_bytes(8, "little") + raw + b"\0" * data)
    try:
        extents = read_header(path)
    except CheckpointError as error:
        assert path.name in str(error)
        return
    end = 8
    for extent in extents:
        assert extent.offset >= end
        assert extent.nbytes == math.prod(extent.shape) * ITEM_BYTES[extent.dtype]
        end = extent.offset + extent.nbytes
    assert end <= path.stat().st_size


def test_a_type_that_mlx_does_not_know_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": np.ones(4, np.float32), "b.c": np.ones(4, np.float64)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor b\.c is of type F64"):
        open_checkpoint(tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    save_file({"a": np.ones(4, np.float32)}, tmp_path / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="model-00002-of-00002"):
        open_checkpoint(tmp_path)


def test_a_folder_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no model folder"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(tmp_path)
