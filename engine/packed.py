"""A packed checkpoint: where each expert's pieces lie in its `experts-*.safetensors`, as its pack.json says.

Each tensor in those files is one module of experts, bytes of shape [experts, bytes of one]. They are not named
`model*`, so mlx-lm leaves them alone; its model gets stand-ins for the experts' tensors, which are never evaluated.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from engine.checkpoint import ITEM_BYTES, Checkpoint, Extent, identity_of, read_header
from engine.errors import CheckpointError
from engine.provenance import MLX_DTYPE, Origin, Rows, Scaled

FILE = "pack.json"
_VERSION = 1


@dataclass(frozen=True)
class PackedPiece:
    """One tensor of a module: its name in it, type and shape of an expert's row, and where that begins in a record."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: int
    factor: float


def description(modules: dict[str, list[PackedPiece]]) -> str:
    """The text of pack.json."""
    pieces = {path: [asdict(piece) for piece in each] for path, each in modules.items()}
    return json.dumps({"version": _VERSION, "modules": pieces}, indent=1)


def packed_tensors(checkpoint: Checkpoint) -> dict[str, tuple[mx.array, Origin]]:
    """A stand-in and the origin of every tensor that a checkpoint has packed; none where it is not packed.

    Raises CheckpointError when what pack.json says does not fit the files.
    """
    described = checkpoint.path / FILE
    if not described.exists():
        return {}
    modules = _described(described)
    records: dict[str, Extent] = {}
    for file in sorted(checkpoint.path.glob("experts-*.safetensors")):
        checkpoint.files[file] = identity_of(file)
        records |= {extent.name: extent for extent in read_header(file)}
    found: dict[str, tuple[mx.array, Origin]] = {}
    for path, pieces in modules.items():
        record = records.get(path)
        if record is None or record.dtype != "U8" or len(record.shape) != 2:
            raise CheckpointError(f"{checkpoint.path} lacks the experts of {path}. Pack the model again.")
        for piece in pieces:
            found[f"{path}.{piece.name}"] = _stand_in(record, piece)
    return found


def _stand_in(record: Extent, piece: PackedPiece) -> tuple[mx.array, Origin]:
    count, size = record.shape
    if not 0 <= piece.at <= size - math.prod(piece.shape) * ITEM_BYTES[piece.dtype]:
        raise CheckpointError(f"{record.file}: {record.name} has no room for {piece.name}. Pack the model again.")
    name = f"{record.name}.{piece.name}"
    offsets = record.offset + piece.at + size * np.arange(count, dtype=np.int64)
    rows = Rows(lambda _: name, (record.file,), np.zeros(count, np.uint16), offsets, piece.dtype, piece.shape)
    origin = rows if piece.factor == 1.0 else Scaled(rows, piece.factor)
    return mx.zeros((count, *piece.shape), MLX_DTYPE[piece.dtype]), origin


def _described(file: Path) -> dict[str, list[PackedPiece]]:
    try:
        read = json.loads(file.read_text())
        if read["version"] != _VERSION:
            raise ValueError(f"version {read['version']} is not known")
        modules = {
            path: [
                PackedPiece(
                    str(p["name"]), str(p["dtype"]), tuple(map(int, p["shape"])), int(p["at"]), float(p["factor"])
                )
                for p in pieces
            ]
            for path, pieces in read["modules"].items()
        }
        if any(p.dtype not in MLX_DTYPE or min(p.shape, default=0) < 0 for each in modules.values() for p in each):
            raise ValueError("a piece has no known type or shape")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}). Pack the model again.") from error
    return modules
