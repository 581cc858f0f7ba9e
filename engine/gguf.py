"""Reads a GGUF file: its metadata, where each tensor lies, and rows of a tensor as raw quantisation blocks.

Only positional reads, each checked against the size of the file, so a damaged file ends in a GGUFError.
"""

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from engine.errors import EngineError

MAX_METADATA_BYTES = 256 << 20  # real files need a few MB; the limit keeps a damaged count from filling memory
MAX_NESTING = 4  # arrays of arrays; the format allows any depth, real files use one
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class BlockFormat:
    """How a GGUF tensor type packs `weights` consecutive weights of a row into `nbytes`."""

    name: str
    weights: int
    nbytes: int


BLOCK_FORMATS = {
    0: BlockFormat("F32", 1, 4),
    1: BlockFormat("F16", 1, 2),
    3: BlockFormat("Q4_1", 32, 20),
    8: BlockFormat("Q8_0", 32, 34),
}


class GGUFError(EngineError):
    """A GGUF file that cannot be read: names the file and what is wrong in it."""


@dataclass(frozen=True)
class TensorExtent:
    """Where a tensor lies. `shape` is in row-major order (slowest first); `offset` counts from the file's start."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    offset: int
    nbytes: int


class GGUFFile:
    """An open GGUF file: `metadata`, `tensors` and `rows()`. Use it as a context manager."""

    def __init__(self, path: Path):
        self.path = path
        self._file = open(path, "rb")  # noqa: SIM115 - closed by close()
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self._end = min(self._size, MAX_METADATA_BYTES)
            self._at = 0
            self.metadata, self.tensors = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Twice is fine."""
        self._file.close()

    def require(self, key: str, kind: type) -> Any:
        """The metadata value of `key`, which must be of type `kind`."""
        value = self.metadata.get(key)
        if not isinstance(value, kind):
            raise self._broken(f"the metadata entry {key} is missing or is not a {kind.__name__}")
        return value

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Raw bytes of rows [start, stop) of a tensor, uint8 [rows, bytes per row]. A vector is one row."""
        extent = self.tensors.get(name)
        if extent is None:
            raise self._broken(f"the tensor {name} is missing")
        total = math.prod(extent.shape[:-1])
        stop = total if stop is None else stop
        if not 0 <= start <= stop <= total:
            raise ValueError(f"rows {start}:{stop} of {name}, which has {total}")
        width = extent.nbytes // total
        wanted, pieces = (stop - start) * width, []
        while wanted:  # a read may return less than asked
            piece = os.pread(self._file.fileno(), wanted, extent.offset + stop * width - wanted)
            if not piece:
                raise self._broken(f"it became shorter while {name} was read")
            pieces.append(piece)
            wanted -= len(piece)
        raw = np.frombuffer(b"".join(pieces), np.uint8).reshape(stop - start, width)
        return raw

    def floats(self, name: str) -> np.ndarray:
        """A whole F32 or F16 tensor as float32, in its shape."""
        raw = self.rows(name)
        extent = self.tensors[name]
        if extent.format.name not in ("F32", "F16"):
            raise self._broken(f"the tensor {name} is {extent.format.name}, expected plain floats")
        dtype = "<f4" if extent.format.name == "F32" else "<f2"
        return raw.view(dtype).astype(np.float32).reshape(extent.shape)

    # --- header ------------------------------------------------------------------------------------

    def _read_header(self) -> tuple[dict[str, Any], dict[str, TensorExtent]]:
        if self._take(4) != b"GGUF":
            raise self._broken("it does not start with GGUF")
        if (version := self._number("I")) not in (2, 3):
            raise self._broken(f"it has format version {version}, this reader knows 2 and 3")
        tensor_count, entry_count = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(entry_count):  # every entry takes bytes, so a wild count runs into the end of the file
            key = self._string()
            if key in metadata:
                raise self._broken(f"the metadata entry {key} occurs twice")
            metadata[key] = self._value(self._number("I"), depth=0)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise self._broken(f"the alignment {alignment!r} is not a multiple of 8")
        found = [self._tensor_info() for _ in range(tensor_count)]
        data_start = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorExtent] = {}
        for name, shape, kind, offset in found:
            if name in tensors:
                raise self._broken(f"the tensor {name} occurs twice")
            tensors[name] = self._extent(name, shape, kind, offset, data_start, alignment)
        return metadata, tensors

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        if not 1 <= (dims := self._number("I")) <= 4:
            raise self._broken(f"the tensor {name} has {dims} dimensions")
        shape = tuple(self._number("Q") for _ in range(dims))[::-1]  # the file lists the fastest dimension first
        if 0 in shape:
            raise self._broken(f"the tensor {name} is empty")
        return name, shape, self._number("I"), self._number("Q")

    def _extent(
        self, name: str, shape: tuple[int, ...], kind: int, offset: int, data_start: int, alignment: int
    ) -> TensorExtent:
        if (block := BLOCK_FORMATS.get(kind)) is None:
            raise self._broken(f"the tensor {name} has type {kind}, which this reader does not know")
        if shape[-1] % block.weights:
            raise self._broken(f"rows of {shape[-1]} weights in {name} do not divide into {block.name} blocks")
        nbytes = math.prod(shape) // block.weights * block.nbytes
        if offset % alignment or data_start + offset + nbytes > self._size:
            raise self._broken(f"the tensor {name} lies outside the file (is the download complete?)")
        return TensorExtent(name, shape, block, data_start + offset, nbytes)

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind != _ARRAY or depth >= MAX_NESTING:
            raise self._broken(f"a metadata value has type {kind} at depth {depth}")
        item, count = self._number("I"), self._number("Q")
        if item in _SCALARS:
            code = f"<{count}{_SCALARS[item]}"
            return list(struct.unpack(code, self._take(count * struct.calcsize("<" + _SCALARS[item]))))
        return [self._value(item, depth + 1) for _ in range(count)]

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _string(self) -> str:
        raw = self._take(self._number("Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._broken(f"the text {raw[:40]!r} is not UTF-8") from None

    def _take(self, count: int) -> bytes:
        if count > self._end - self._at:
            raise self._broken("its header runs past the end of the file (is the download complete?)")
        raw = self._file.read(count)
        if len(raw) != count:
            raise self._broken("it became shorter while its header was read")
        self._at += count
        return raw

    def _broken(self, reason: str) -> GGUFError:
        return GGUFError(f"{self.path} is not a GGUF file that can be used: {reason}.")


def dequantise_q4_1(raw: np.ndarray) -> np.ndarray:
    """Q4_1 rows uint8 [rows, blocks * 20] to float32 [rows, blocks * 32]: scale * nibble + minimum."""
    blocks = raw.reshape(len(raw), -1, 20)
    scale, minimum = blocks[..., 0:2].copy().view("<f2"), blocks[..., 2:4].copy().view("<f2")
    nibbles = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1)  # low nibbles come first
    weights = nibbles.astype(np.float32) * scale.astype(np.float32) + minimum.astype(np.float32)
    return weights.reshape(len(raw), -1)
