"""The header of a GGUF file, read by the gguf package under guards: no length in it is believed unchecked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType

from dgemma.errors import CheckpointError
from dgemma.shards import Shape

_AGAIN = "Download the file again."
_MOST_ITEMS = 4_000_000
_MOST_TENSORS = 100_000


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file; `shape` has the rows' length last, `start` counts from the beginning of the file."""

    name: str
    kind: str
    shape: Shape
    path: Path
    start: int
    nbytes: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata and tensors."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def number(self, key: str, default: Any = None) -> Any:
        """A number, or a list of them."""
        found = self.fields.get(key, default)
        if found is None:
            raise CheckpointError(f"{self.path.name} lacks the metadata {key}.")
        return found

    def text(self, key: str) -> str:
        """A string; empty where there is none."""
        return str(self.fields.get(key, ""))


class _Guarded(GGUFReader):  # type: ignore[misc]
    """Refuses to read past the end of the file, and lists that no vocabulary is long enough to need."""

    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        stop = int(offset) + np.dtype(dtype).itemsize * int(count)
        if int(offset) < 0 or stop > len(self.data):
            raise ValueError("it ends inside its header or a tensor")
        return super()._get(int(offset), dtype, int(count), override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if GGUFValueType(raw_type) != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        inner = self._get(orig_offs, np.uint32)
        length = self._get(orig_offs + 4, np.uint64)
        if length[0] > _MOST_ITEMS or inner[0] == GGUFValueType.ARRAY:
            raise ValueError(f"it has a list of {length[0]} items")
        scalar = self.gguf_scalar_to_np.get(GGUFValueType(inner[0]))
        if scalar is None:
            return super()._get_field_parts(orig_offs, raw_type)
        data = self._get(orig_offs + 12, scalar, length[0])
        types = [GGUFValueType.ARRAY, GGUFValueType(inner[0])]
        return 12 + data.nbytes, [inner, length, data], [2], types

    def _build_tensor_info(self, offs: Any, count: Any) -> Any:
        if count > _MOST_TENSORS:
            raise ValueError(f"it claims {count} tensors")
        return super()._build_tensor_info(offs, count)

    def _build_tensors(self, start_offs: int, fields: Any) -> None:
        """Leave the tensors to this module: their sizes are checked before any is touched."""
        self.data_start = int(start_offs)
        self.infos = fields


def read_header(path: Path) -> Header:
    """Read `path`. Raises CheckpointError on anything but a whole, sound file."""
    try:
        reader = _Guarded(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OverflowError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path.name} is not a sound GGUF file: {error}.", _AGAIN) from error
    if reader.byte_order == "S":
        raise CheckpointError(f"{path.name} is in the other byte order.")
    tensors = [_tensor(path, reader.data_start, info) for info in reader.infos]
    _check_layout(path, tensors)
    return Header(path, fields, {tensor.name: tensor for tensor in tensors})


def _tensor(path: Path, base: int, info: Any) -> Tensor:
    _, raw, _, dims, kind, offset = info.parts
    name = bytes(raw).decode("utf-8", "replace")
    shape = tuple(int(size) for size in reversed(dims))
    try:
        kind = GGMLQuantizationType(int(kind[0]))
    except ValueError as error:
        raise CheckpointError(f"{path.name}: {name} has the unknown type {kind[0]}.") from error
    values, size = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % values:
        raise CheckpointError(f"{path.name}: {name} is {kind.name} {list(shape)}, which is no whole block.", _AGAIN)
    row_bytes = shape[-1] // values * size
    nbytes = math.prod(shape[:-1]) * row_bytes
    return Tensor(name, cast(str, kind.name), shape, path, base + int(offset[0]), nbytes, row_bytes)


def _check_layout(path: Path, tensors: list[Tensor]) -> None:
    size, position = path.stat().st_size, 0
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise CheckpointError(f"{path.name} has two tensors of one name.", _AGAIN)
    for tensor in sorted(tensors, key=lambda tensor: tensor.start):
        if tensor.start < position:
            raise CheckpointError(f"{path.name}: {tensor.name} overlaps another tensor.", _AGAIN)
        position = tensor.start + tensor.nbytes
        if position > size:
            raise CheckpointError(f"{path.name}: {tensor.name} ends past the end of the file.", _AGAIN)
