"""Writes once what mlx-lm makes of a checkpoint while loading, where that can't be read as it lies on disk.

Tensor by tensor: bytes that are used as they are get copied, others are computed, experts one by one where they were
apart. A run that was killed goes on after the last whole file; the folder appears under its name when it is complete.
"""

import errno
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx_lm.utils
import numpy as np
from mlx.utils import tree_flatten

from engine.checkpoint import Checkpoint, Extent, open_checkpoint, read_header
from engine.errors import CheckpointError
from engine.loader import build
from engine.provenance import SPELLED, InPlace, Origin, Provenance, Scaled
from engine.safetensors_writer import SafetensorsWriter, sync_folder, write_durably

SHARD_BYTES = 2 << 30  # a kill loses at most one shard's work
_COPY_BYTES = 8 << 20
_PLAN = "plan.json"
# What goes along: tokenizer, chat template, generation settings. Not what describes the old weights.
_ALONG = ("*.json", "*.jinja", "tokenizer.model", "*.tiktoken", "*.txt", "*.jsonl")
_NOT_ALONG = ("config.json", "hf_quant_config.json", "model.safetensors.index.json")


@dataclass
class Tensor:
    """One tensor to write: what `made` gives, or copied from `origin`, or computed from `parts` one after the other, or
    from `value`, which always has its shape and type."""

    name: str
    value: mx.array
    origin: InPlace | None = None
    parts: list[mx.array] | None = None
    made: Callable[[], Iterator[memoryview]] | None = None

    @property
    def dtype(self) -> str:
        return self.origin.dtype if self.origin else SPELLED[self.value.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)


def convert(source: Path, out: Path, progress: Callable[[int, int], None] | None = None) -> Path:
    """Write the checkpoint `source` in mlx-lm's layout into the new folder `out` and return it.

    `progress(done, total)` counts bytes. Raises CheckpointError.
    """
    checkpoint = open_checkpoint(source)
    refuse_existing(out)
    tensors, config = _tensors(checkpoint)
    return write_checkpoint(checkpoint, out, {"model": tensors}, config, progress)


def refuse_existing(out: Path) -> None:
    """Raises CheckpointError where something is already."""
    if out.exists():
        raise CheckpointError(f"{out} exists already. Choose another folder, or delete it first.")


def write_checkpoint(
    checkpoint: Checkpoint,
    out: Path,
    groups: dict[str, list[Tensor]],
    config: dict[str, Any],
    progress: Callable[[int, int], None] | None = None,
    more: dict[str, str] | None = None,
) -> Path:
    """Write tensors into files named by their group, and what else belongs to a model; `more` are texts by file name.

    `groups` is emptied on the way: nothing may hold a tensor once it is written. Raises CheckpointError.
    """
    shards = {name: _shards(tensors) for name, tensors in groups.items()}
    building = out.with_name(f".{out.name}.building")
    _begin(building, _plan(checkpoint, [shard for each in shards.values() for shard in each]))
    report = progress or (lambda *_: None)
    done, total = 0, sum(tensor.value.nbytes for tensors in groups.values() for tensor in tensors)
    files = deque(
        (f"{name}-{number + 1:05d}-of-{len(each):05d}.safetensors", shard)
        for name, each in shards.items()
        for number, shard in enumerate(each)
    )
    weight_map = {tensor.name: file for file, shard in files for tensor in shard if file.startswith("model-")}
    for tensors in groups.values():
        tensors.clear()
    shards.clear()
    try:
        _check_room(building, files)
        while files:
            # Nothing may hold a tensor once it is written: a computed one is as large as a layer's experts.
            file, shard = files.popleft()
            nbytes = sum(tensor.value.nbytes for tensor in shard)
            if not _is_whole(building / file, shard):
                _write(building / file, shard, lambda written, before=done: report(before + written, total))
            done += nbytes
            report(done, total)
        _write_rest(checkpoint.path, building, config, weight_map, total)
        for name, text in (more or {}).items():
            write_durably(building / name, text)
        (building / _PLAN).unlink()
        sync_folder(building)
        os.replace(building, out)
        sync_folder(out.parent)
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        raise CheckpointError(
            f"{out} could not be written: {reason}. Run the same command again and it goes on where it stopped."
        ) from error
    return out


def _tensors(checkpoint: Checkpoint) -> tuple[list[Tensor], dict[str, Any]]:
    """Everything the model holds, lazily, in the order of its layers. Nothing else refers to it afterwards."""
    provenance = Provenance()
    model, config = build(checkpoint, provenance)
    flat = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    return [Tensor(n, value, in_place(provenance.of(value)), provenance.parts_of(value)) for n, value in flat], config


def in_place(origin: Origin | None) -> InPlace | None:
    """Where a tensor's bytes can be copied from as they are."""
    return None if isinstance(origin, Scaled) else origin


def _shards(tensors: list[Tensor]) -> deque[list[Tensor]]:
    shards, size = deque([[]]), 0
    for tensor in tensors:
        if size and size + tensor.value.nbytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.value.nbytes
    return shards


def _plan(checkpoint: Checkpoint, shards: list[list[Tensor]]) -> str:
    """What is to be written from what: a run goes on only where a run with the same plan stopped."""
    files = sorted({extent.file for extent in checkpoint.tensors.values()})
    of = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    to = [[(tensor.name, tensor.dtype, tensor.shape) for tensor in shard] for shard in shards]
    return json.dumps({"of": of, "to": to})


def _begin(building: Path, plan: str) -> None:
    marker = building / _PLAN
    if not marker.is_file() or marker.read_text() != plan:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        write_durably(marker, plan)


def _check_room(building: Path, files: deque[tuple[str, list[Tensor]]]) -> None:
    needed = sum(
        sum(tensor.value.nbytes for tensor in shard) for file, shard in files if not (building / file).exists()
    )
    free = shutil.disk_usage(building).free
    if needed > free:
        raise CheckpointError(
            f"The new model needs {needed / 1e9:,.1f} GB more in {building.parent}, but only {free / 1e9:,.1f} "
            "GB are free there. Make room, or choose a folder on another disk."
        )


def _is_whole(file: Path, shard: list[Tensor]) -> bool:
    """Whether an earlier run wrote this shard to its end; it gets its name only then."""
    if not file.exists():
        return False
    there = {extent.name: (extent.dtype, extent.shape) for extent in read_header(file)}
    return there == {tensor.name: (tensor.dtype, tensor.shape) for tensor in shard}


def _write(file: Path, shard: list[Tensor], report: Callable[[int], None]) -> None:
    partial = file.with_suffix(".partial")
    waiting = deque(shard)
    shard.clear()
    with SafetensorsWriter(partial) as writer:
        while waiting:
            tensor = waiting.popleft()
            pieces = _pieces(tensor)
            writer.write_bytes(tensor.name, pieces, tensor.dtype, tensor.shape)
            del tensor, pieces
            mx.clear_cache()
            report(writer.nbytes)
    os.replace(partial, file)
    sync_folder(file.parent)


def _pieces(tensor: Tensor) -> Iterator[bytes | memoryview]:
    if tensor.made:
        return tensor.made()
    return _copied(tensor.origin) if tensor.origin else _computed(tensor)


def _copied(origin: InPlace) -> Iterator[bytes]:
    extents = [origin] if isinstance(origin, Extent) else (origin.rows(row) for row in range(origin.shape[0]))
    file, handle = None, None
    try:
        for extent in extents:
            if extent.file != file or handle is None:
                if handle is not None:
                    handle.close()
                file, handle = extent.file, open(extent.file, "rb")  # noqa: SIM115 - closed below
            handle.seek(extent.offset)
            for start in range(0, extent.nbytes, _COPY_BYTES):
                yield _exactly(handle.read(min(_COPY_BYTES, extent.nbytes - start)), extent, start)
    finally:
        if handle is not None:
            handle.close()


def _exactly(data: bytes, extent: Extent, start: int) -> bytes:
    if len(data) != min(_COPY_BYTES, extent.nbytes - start):
        raise CheckpointError(f"{extent.file}: tensor {extent.name} is cut off. Fetch the file again.")
    return data


def _computed(tensor: Tensor) -> Iterator[memoryview]:
    """The tensor's bytes, of one expert at a time where it is stacked from experts."""
    parts = deque(tensor.parts or [tensor.value])
    tensor.parts, tensor.value = None, mx.zeros((0,))
    while parts:
        part = parts.popleft()
        mx.eval(part)
        bits = part.view(mx.uint16) if part.dtype == mx.bfloat16 else part
        yield memoryview(np.ascontiguousarray(np.array(bits, copy=False)).reshape(-1).view(np.uint8).data)


def _write_rest(source: Path, building: Path, config: dict[str, Any], weight_map: dict[str, str], total: int) -> None:
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_durably(building / "model.safetensors.index.json", json.dumps(index, indent=1))
    if "quantization" not in config and config.get("quantization_config", {}).get("quant_method") != "bitnet":
        config.pop("quantization_config", None)  # it described weights that are plain numbers now
    mlx_lm.utils.save_config(config, building / "config.json", keep_vision_config=True)
    for pattern in _ALONG:
        for file in source.glob(pattern):
            if file.name not in _NOT_ALONG:
                shutil.copyfile(file, building / file.name)
