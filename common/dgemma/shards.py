"""The header of one safetensors file, checked before any of its bytes are trusted. Reads no tensor data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from dgemma.errors import CheckpointError
from dgemma.jsonfile import MOST_BYTES, parse_json

Shape = tuple[int, ...]
_MOST_AXES, _LARGEST, _LONGEST_NAME = 8, 1 << 48, 500
_AGAIN = "Download the model again."
_NAMED_BITS = {"BOOL": 8, "BF16": 16}
_BITS = re.compile(r"[FIUC](\d{1,3})(_E\d+M\d+)?")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `start` and `stop` are byte offsets from the beginning of the file `shard`."""

    dtype: str
    shape: Shape
    shard: Path
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Stored size."""
        return self.stop - self.start


def read_shard(path: Path) -> dict[str, TensorInfo]:
    """The tensors of the safetensors file `path`. Raises CheckpointError on anything but a whole, sound file."""
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path} is not a file.", _AGAIN)
        size = path.stat().st_size
        with path.open("rb") as file:
            header, start = _header(file, path, size)
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing from {path.parent}.", _AGAIN) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    header.pop("__metadata__", None)
    tensors = {name: _tensor(name, entry, path, start) for name, entry in header.items()}
    _check_layout(tensors, path, start, size)
    return tensors


def _header(file: BinaryIO, path: Path, size: int) -> tuple[dict[str, Any], int]:
    if size == 0:
        raise CheckpointError(f"{path.name} is empty.", _AGAIN)
    head = file.read(8)
    if head == b"version ":
        raise CheckpointError(
            f"{path.name} is a git-lfs pointer, not the weights.", "Run `git lfs pull` in its folder."
        )
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > MOST_BYTES:
        raise CheckpointError(f"{path.name} is not a safetensors file.", _AGAIN)
    if 8 + length > size:
        raise CheckpointError(f"{path.name} is truncated: {size} bytes, its header alone needs {8 + length}.", _AGAIN)
    return _parse(file.read(length), path), 8 + length


def _parse(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        header = parse_json(raw, unique=True)
    except ValueError as error:
        raise CheckpointError(f"{path.name} has a damaged safetensors header: {error}.", _AGAIN) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name} has a damaged safetensors header: not an object.", _AGAIN)
    return header


def _tensor(name: str, entry: object, path: Path, base: int) -> TensorInfo:
    if len(name) > _LONGEST_NAME:
        raise CheckpointError(f"{path.name} has a tensor whose name has {len(name)} characters.", _AGAIN)
    fields: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
    dtype, shape, offsets = fields.get("dtype"), _wholes(fields.get("shape")), _wholes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        raise CheckpointError(f"{path.name}: the header entry of {name} is malformed.", _AGAIN)
    if len(shape) > _MOST_AXES or max((*shape, *offsets)) > _LARGEST:
        raise CheckpointError(f"{path.name}: the shape of {name} is absurd.", _AGAIN)
    start, stop = offsets
    bits = math.prod(shape) * _bits(dtype, name, path)
    if stop < start or bits != 8 * (stop - start):
        raise CheckpointError(f"{path.name}: {name} is {dtype} {list(shape)} but holds {stop - start} bytes.", _AGAIN)
    if start == stop:
        raise CheckpointError(f"{path.name}: {name} is empty: {dtype} {list(shape)}.", _AGAIN)
    return TensorInfo(dtype, shape, path, base + start, base + stop)


def _wholes(value: object) -> tuple[int, ...] | None:
    sound = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return tuple(cast(list[int], value)) if sound else None


def _bits(dtype: str, name: str, path: Path) -> int:
    match = _BITS.fullmatch(dtype)
    if dtype not in _NAMED_BITS and match is None:
        raise CheckpointError(f"{path.name}: {name} has the unknown dtype {dtype[:20]!r}.")
    return _NAMED_BITS.get(dtype) or int(match[1] if match else 0)


def _check_layout(tensors: Mapping[str, TensorInfo], path: Path, base: int, size: int) -> None:
    position = base
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if info.start != position:
            trouble = "overlaps another tensor" if info.start < position else "follows a hole"
            raise CheckpointError(f"{path.name}: {name} {trouble}.", _AGAIN)
        position = info.stop
    if position != size:
        trouble = "is truncated" if position > size else "has bytes that belong to no tensor"
        raise CheckpointError(f"{path.name} {trouble}: {size} bytes, the header says {position}.", _AGAIN)
