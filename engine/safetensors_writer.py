"""Writes a safetensors file tensor by tensor, so that memory holds one piece at a time.

The format wants its header first: room for it is reserved, and it is filled in, padded with spaces, at the end.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

# Some 120 bytes a tensor. A multiple of the page size, so that the first tensor starts on a page boundary.
HEADER_ROOM = 512 << 10
_DTYPES = {
    "float32": "F32", "float16": "F16", "uint32": "U32", "uint16": "U16", "uint8": "U8", "int8": "I8", "int16": "I16",
    "int32": "I32", "int64": "I64", "uint64": "U64", "bool": "BOOL",
}  # fmt: skip


class SafetensorsWriter:
    """`write()` tensors in any order; leaving the `with` block writes the header and waits for the disk."""

    def __init__(self, path: Path):
        self._entries: dict[str, dict[str, object]] = {}
        self._at = 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by __exit__
        self._file.seek(HEADER_ROOM)

    @property
    def nbytes(self) -> int:
        """Bytes of tensors written so far."""
        return self._at

    @property
    def has_room(self) -> bool:
        """Whether the header can surely take another hundred tensors."""
        return len(self._entries) + 100 < HEADER_ROOM // 200

    def write_bytes(self, name: str, pieces: Iterable[bytes | memoryview], dtype: str, shape: tuple[int, ...]) -> None:
        """Write a tensor from its bytes as they lie in another safetensors file."""
        if name in self._entries:
            raise ValueError(f"{name} is written twice")
        start = self._at
        for piece in pieces:
            self._file.write(piece)
            self._at += len(piece)
        self._entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, self._at]}

    def write(self, name: str, pieces: np.ndarray | Iterable[np.ndarray], dtype: str | None = None) -> None:
        """Write a tensor; pieces are stacked along the first axis. `dtype` names a type NumPy lacks (BF16)."""
        if name in self._entries:
            raise ValueError(f"{name} is written twice")
        start, rows, row_shape, kind = self._at, 0, (), ""
        for piece in [pieces] if isinstance(pieces, np.ndarray) else pieces:
            data = np.ascontiguousarray(piece)
            self._file.write(data.reshape(-1).view(np.uint8).data)
            self._at += data.nbytes
            rows, row_shape, kind = rows + len(data), data.shape[1:], data.dtype.name
        offsets = [start, self._at]
        self._entries[name] = {"dtype": dtype or _DTYPES[kind], "shape": [rows, *row_shape], "data_offsets": offsets}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                text = json.dumps({"__metadata__": {"format": "mlx"}, **self._entries}, separators=(",", ":")).encode()
                if len(text) > HEADER_ROOM - 8:
                    raise ValueError(f"{len(self._entries)} tensors are too many for one file")
                self._file.seek(0)
                self._file.write((HEADER_ROOM - 8).to_bytes(8, "little") + text.ljust(HEADER_ROOM - 8))
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()


def write_durably(path: Path, text: str) -> None:
    """Write a small text file and wait until its bytes are on disk."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names inside `folder` durable: a rename is on disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
