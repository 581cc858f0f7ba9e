"""The GGUF reader: what it reads is what was written, and damage ends in a GGUFError, never in anything else."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.gguf import GGUFError, GGUFFile, dequantise_q4_1

Q4_1, F32, F16 = 3, 0, 1


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def a_file(tensors: list[bytes], data: bytes, entries: list[bytes] | None = None) -> bytes:
    entries = entries or []
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


Q4_BLOCK = struct.pack("<ee", 0.5, -2.0) + bytes(range(16))
GOOD = a_file(
    [tensor("matrix", (32, 2), Q4_1, 0), tensor("vector", (3,), F32, 64), tensor("half", (2,), F16, 96)],
    (Q4_BLOCK * 2).ljust(64, b"\0") + struct.pack("<3f", 1, 2, 3).ljust(32, b"\0") + struct.pack("<2e", 4, 5),
    [
        entry("number", 4, struct.pack("<I", 7)),
        entry("word", 8, text("wörd")),
        entry("words", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
        entry("numbers", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
    ],
)


def opened(tmp_path: Path, content: bytes) -> GGUFFile:
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    return GGUFFile(path)


def test_metadata_and_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    with opened(tmp_path, GOOD) as file:
        assert file.metadata == {"number": 7, "word": "wörd", "words": ["a", "b"], "numbers": [1, -2, 3]}
        assert file.tensors["matrix"].shape == (2, 32)
        assert file.floats("vector").tolist() == [1, 2, 3]
        assert file.floats("half").tolist() == [4, 5]
        nibbles = [i & 15 for i in range(16)] + [i >> 4 for i in range(16)]
        expected = np.array(nibbles, np.float32) * 0.5 - 2
        assert np.array_equal(dequantise_q4_1(file.rows("matrix", 1, 2)), expected[None])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "past the end"),
        (b"GGML" + GOOD[4:], "does not start with GGUF"),
        (b"GGUF" + struct.pack("<I", 9) + GOOD[8:], "version 9"),
        (GOOD[:60], "past the end"),
        (GOOD[:-1], "half lies outside the file"),
        (a_file([tensor("t", (2**63, 4), F32, 0)], b""), "outside the file"),
        (a_file([tensor("t", (0,), F32, 0)], b""), "empty"),
        (a_file([tensor("t", (33,), Q4_1, 0)], b"\0" * 99), "do not divide"),
        (a_file([tensor("t", (4,), 31, 0)], b"\0" * 99), "type 31"),
        (a_file([tensor("t", (4,), F32, 4)], b"\0" * 99), "outside the file"),
        (a_file([tensor("t", (1,), F32, 0)] * 2, b"\0" * 99), "occurs twice"),
        (a_file([], b"", [entry("k", 9, struct.pack("<IQ", 4, 2**62))]), "past the end"),
        (a_file([], b"", [entry("k", 99, b"")]), "type 99"),
        (a_file([], b"", [entry("k", 8, struct.pack("<Q", 1) + b"\xff")]), "not UTF-8"),
        (a_file([], b"", [entry("k", 4, b"\0\0\0\0")] * 2), "occurs twice"),
        (a_file([], b"", [entry("general.alignment", 4, struct.pack("<I", 0))]), "alignment"),
        (a_file([], b"", [entry("k", 9, struct.pack("<IQ", 9, 1) * 50)]), "depth"),
    ],
)
def test_a_damaged_file_is_named_with_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(GGUFError, match=reason) as failure:
        opened(tmp_path, content)
    assert "file.gguf" in str(failure.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with opened(tmp_path, GOOD) as file:
        with pytest.raises(GGUFError, match="tensor nowhere is missing"):
            file.rows("nowhere")
        with pytest.raises(GGUFError, match="absent is missing"):
            file.require("absent", str)
        with pytest.raises(GGUFError, match="number is missing or is not a str"):
            file.require("number", str)
        with pytest.raises(GGUFError, match="expected plain floats"):
            file.floats("matrix")
        with pytest.raises(ValueError, match="rows 1:3 of matrix"):
            file.rows("matrix", 1, 3)


def test_a_file_that_shrinks_while_open_is_an_error(tmp_path: Path) -> None:
    with opened(tmp_path, GOOD) as file:
        (tmp_path / "file.gguf").write_bytes(GOOD[:-100])
        with pytest.raises(GGUFError, match="became shorter"):
            file.rows("vector")


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_random_damage_never_ends_in_another_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
        content = content or bytearray(b"G")
    path = tmp_path_factory.getbasetemp() / "fuzzed.gguf"
    path.write_bytes(content)
    try:
        with GGUFFile(path) as file:
            for name in file.tensors:
                file.rows(name)
    except GGUFError:
        pass
