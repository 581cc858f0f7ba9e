"""Where every tensor of a checkpoint lies on disk, read from the safetensors headers alone.

The headers are checked before anything is allocated: a file that lies is refused by name.
"""

import json
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import CheckpointError

# https://huggingface.co/docs/safetensors: 8 bytes of little-endian header length, the JSON header, then the data.
_MAX_HEADER_BYTES = 100 * 1024 * 1024  # the limit of the safetensors library itself

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


_NOT_IN_MLX = ("F64", "F8_E5M2")  # mx.load refuses a file that holds one, without naming it


@dataclass(frozen=True, slots=True)
class Extent:
    """One tensor's bytes: `nbytes` at `offset` of `file`, `dtype` as safetensors spells it."""

    name: str
    file: Path
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.file,)

    def rows(self, row: int) -> "Extent":
        """The bytes of `self[row]` along the first axis."""
        step = self.nbytes // self.shape[0]
        return Extent(self.name, self.file, self.offset + row * step, step, self.dtype, self.shape[1:])


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a file from one that was put in its place or written to."""

    device: int
    inode: int
    size: int
    modified_ns: int


def identity_of(file: Path | int) -> Identity:
    """Of a path or of an open file's descriptor. Raises OSError."""
    found = os.stat(file)
    return Identity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class Checkpoint:
    """A model folder: every tensor's extent by its name in the file, and what the files were when they were read."""

    path: Path
    tensors: dict[str, Extent]
    files: dict[Path, Identity] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(extent.nbytes for extent in self.tensors.values())


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers of all `model*.safetensors` files in `path` (the files mlx-lm would load).

    Raises CheckpointError when the folder, its config or a header cannot be used.
    """
    if not path.is_dir():
        raise CheckpointError(f"There is no model folder at {path}. Check the path, or give a hub id like org/name.")
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path} has no config.json, so it is not a model folder that mlx-lm can read.")
    _check_config(path / "config.json")
    files = sorted(path.glob("model*.safetensors"))
    if not files:
        raise CheckpointError(f"{path} holds no model*.safetensors file. Only safetensors checkpoints can be paged.")
    _check_shards(path, files)
    tensors: dict[str, Extent] = {}
    identities = {}
    for file in files:
        identities[file] = identity_of(file)
        for extent in read_header(file):
            if extent.name in tensors:
                raise CheckpointError(
                    f"Tensor {extent.name} is in {tensors[extent.name].file.name} and in {file.name}. "
                    "The folder mixes two checkpoints; keep only the files of one."
                )
            if extent.dtype in _NOT_IN_MLX:
                raise CheckpointError(
                    f"{file}: tensor {extent.name} is of type {extent.dtype}, which MLX does not know. "
                    "Look for this model in another format."
                )
            tensors[extent.name] = extent
    return Checkpoint(path, tensors, identities)


def _check_config(file: Path) -> None:
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}). Fetch it again.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} is not the description of a model. Fetch it again.")


def _check_shards(path: Path, files: list[Path]) -> None:
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        _check_numbers(path, files)
        return
    try:
        named = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is not a readable shard index. Fetch it again.") from error
    missing = sorted(named - {file.name for file in files})
    if missing:
        raise CheckpointError(f"{path} lacks {len(missing)} of its files: {', '.join(missing[:5])}. Fetch them again.")


def _check_numbers(path: Path, files: list[Path]) -> None:
    """Without an index, names like model-00002-of-00005 say how many files there are."""
    for file in files:
        if match := re.fullmatch(r"model-(\d+)-of-(\d+)\.safetensors", file.name):
            digits, total = match[1], int(match[2])
            wanted = [f"model-{i:0{len(digits)}d}-of-{match[2]}.safetensors" for i in range(1, min(total, 100_000) + 1)]
            missing = [name for name in wanted if not (path / name).is_file()]
            if missing:
                raise CheckpointError(
                    f"{path} lacks {len(missing)} of its files: {', '.join(missing[:5])}. Fetch them again."
                )
            return


def read_header(file: Path) -> list[Extent]:
    """The extents of one safetensors file, in file order.

    Raises CheckpointError for a header that is cut off, malformed, or whose extents overlap, leave the file or do
    not fit their dtype and shape.
    """
    size = file.stat().st_size
    with open(file, "rb") as f:
        head = f.read(8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise CheckpointError(f"{file} is not a whole safetensors file (its header is cut off). Fetch it again.")
        raw = f.read(length)
    try:
        header = json.loads(raw, object_pairs_hook=_no_name_twice)
        entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
        start = 8 + length
        extents = [_extent(file, start, name, entry) for name, entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} has a header that cannot be read ({error}). Fetch it again.") from error
    extents.sort(key=lambda extent: extent.offset)
    end = start
    for extent in extents:
        if extent.offset < end:
            raise CheckpointError(f"{file}: tensor {extent.name} overlaps the one before it. Fetch the file again.")
        end = max(end, extent.offset + extent.nbytes)
        if end > size:
            raise CheckpointError(
                f"{file}: tensor {extent.name} ends at byte {end:,}, but the file has {size:,}. It is cut off; "
                "fetch it again."
            )
    return extents


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers would take a different one of the two."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _extent(file: Path, start: int, name: str, entry: dict) -> Extent:
    dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError(f"tensor {name} has a size that is not a number")
    if dtype not in ITEM_BYTES:
        raise ValueError(f"tensor {name} has the unknown type {dtype}")
    if end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ValueError(f"tensor {name} has {end - begin:,} bytes, which is not what {dtype} {shape} needs")
    return Extent(name, file, start + begin, end - begin, dtype, shape)
