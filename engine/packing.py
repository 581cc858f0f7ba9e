"""Writes an expert-contiguous copy of a checkpoint: each expert's pieces side by side, whole pages of them.

Then a missing expert is one read of the disk, where a stacked checkpoint has it in nine places. The copy holds the
same bytes and is loaded like any model (engine/packed.py).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import mlx.core as mx
from mlx.utils import tree_flatten

from engine import machine, slot_memory
from engine.checkpoint import Extent, open_checkpoint
from engine.convert import Tensor, in_place, refuse_existing, write_checkpoint
from engine.disk import Disk
from engine.errors import CheckpointError
from engine.experts import Experts, find_experts
from engine.loader import OpenModel, build
from engine.packed import FILE, PackedPiece, description
from engine.provenance import Origin, Provenance, Scaled
from engine.runs import Read
from engine.slot_memory import PAGE
from engine.slots import places

_BATCH_BYTES = 32 << 20
_PATIENCE_S = 120.0


def gain(opened: OpenModel) -> tuple[float, float]:
    """Bytes per second at which experts are read here now, and if each lay in one piece. Takes a few seconds."""
    at_once = max(opened.top_k // 2, 1)
    now = machine.disk_speed([e.origins for e in opened.experts], at_once)
    record = max(_record_bytes(e.origins) for e in opened.experts)
    # The same files, in pieces of that size: what they hold makes no difference.
    together = []
    for file, identity in opened.files.items():
        rows = identity.size // record
        if rows:
            together.append([Extent("probe", file, 0, rows * record, "U8", (rows, record))])
    return now, machine.disk_speed(together, at_once) if together else now


def pack(source: Path, out: Path, progress: Callable[[int, int], None] | None = None) -> Path:
    """Write the copy of `source` into the new folder `out` and return it; `progress(done, total)` counts bytes.

    A run that was stopped goes on where it was. Raises CheckpointError.
    """
    checkpoint = open_checkpoint(source)
    if (source / FILE).exists():
        raise CheckpointError(f"{source} is packed already.")
    refuse_existing(out)
    provenance = Provenance()
    model, config = build(checkpoint, provenance)
    found = find_experts(model, provenance)
    if not found:
        raise CheckpointError(f"{source} has no experts, so there is nothing to pack.")
    for experts in found:
        experts.take_out()
    trunk = [
        Tensor(name, value, in_place(provenance.of(value)), provenance.parts_of(value))
        for name, value in cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    ]
    disk = Disk()
    disk.open({file: checkpoint.files[file] for e in found for origin in e.origins for file in origin.files})
    packed = [_record(experts, disk) for experts in found]
    layout = {experts.path: _layout(experts) for experts in found}
    del model, provenance
    try:
        groups = {"model": trunk, "experts": packed}
        return write_checkpoint(checkpoint, out, groups, config, progress, {FILE: description(layout)})
    finally:
        disk.close()


def _layout(experts: Experts) -> list[PackedPiece]:
    pieces, at = [], 0
    for piece, origin in zip(experts.pieces, experts.origins, strict=True):
        factor = origin.factor if isinstance(origin, Scaled) else 1.0
        pieces.append(PackedPiece(piece.name, origin.dtype, tuple(origin.shape[1:]), at, factor))
        at += _row_bytes(origin)
    return pieces


def _record(experts: Experts, disk: Disk) -> Tensor:
    size = _record_bytes(experts.origins)
    shape = mx.zeros((experts.count, size), mx.uint8)  # never evaluated
    return Tensor(experts.path, shape, made=lambda: _records(experts.origins, experts.count, size, disk))


def _records(origins: list[Origin], count: int, size: int, disk: Disk) -> Iterator[memoryview]:
    """All experts' records, some at a time."""
    lying = [(*places(origin, disk), _row_bytes(origin), origin) for origin in origins]
    batch = max(min(_BATCH_BYTES // size, count), 1)
    room = slot_memory.allocate((batch, size), mx.uint8)
    numbers = slot_memory.view(room)
    for start in range(0, count, batch):
        rows = range(start, min(start + batch, count))
        reads = []
        for slot, row in enumerate(rows):
            address = numbers.ctypes.data + slot * size
            for files, offsets, nbytes, origin in lying:
                reads.append(Read(int(files[row]), int(offsets[row]), nbytes, address, origin, row))
                address += nbytes
            numbers[slot, address - numbers.ctypes.data - slot * size :] = 0
        if not disk.read(reads, room).wait(_PATIENCE_S):
            raise CheckpointError(f"The disk gave nothing for {_PATIENCE_S:.0f} s. Check that it is connected.")
        yield memoryview(numbers[: len(rows)].reshape(-1).data)


def _row_bytes(origin: Origin) -> int:
    return origin.nbytes // max(origin.shape[0], 1)


def _record_bytes(origins: list[Origin]) -> int:
    """One expert's pieces, up to a whole number of pages."""
    return -(-sum(_row_bytes(origin) for origin in origins) // PAGE) * PAGE
