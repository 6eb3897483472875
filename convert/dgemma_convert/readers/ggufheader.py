"""The header of a GGUF file. No length in it is believed unchecked, and every limit is far above what a model needs.

The release has 262,144 tokens, 515,000 merges and 700 tensors; the format itself knows four dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from dgemma.errors import CheckpointError
from dgemma.shards import Shape
from dgemma_convert.readers.ggufcursor import Cursor

_AGAIN = "Download the file again."
_MOST_FIELDS, _MOST_TENSORS, _MOST_AXES = 10_000, 100_000, 4
_LONGEST_NAME, _LARGEST, _WIDEST = 500, 1 << 48, 1 << 20
_VERSIONS = (2, 3)


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
    """Metadata and tensors. A key without a default that is missing, or that has another type, is an error."""

    path: Path
    fields: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def whole(self, key: str, default: int | None = None) -> int:
        """An integer from 0 on."""
        found = self._get(key, default)
        return cast(int, found) if _is_whole(found) else self._refuse(key, "an integer")

    def number(self, key: str, default: float | None = None) -> float:
        """A number that float32 can hold."""
        found = self._get(key, default)
        sound = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 3e38
        return cast(float, found) if sound else self._refuse(key, "a number")

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        found = self._get(key, default)
        return found if isinstance(found, str) else self._refuse(key, "a string")

    def texts(self, key: str, default: list[str] | None = None) -> list[str]:
        """A list of strings."""
        found = self._get(key, default)
        sound = isinstance(found, list) and all(isinstance(each, str) for each in found)
        return cast(list[str], found) if sound else self._refuse(key, "a list of strings")

    def wholes(self, key: str, count: int, one_for_all: bool = False) -> list[int]:
        """A list of `count` integers or truth values; with `one_for_all` a single integer may stand for them."""
        found = self._get(key)
        found = [found] * count if one_for_all and _is_whole(found) else found
        if not isinstance(found, list) or not all(_is_whole(each) or isinstance(each, bool) for each in found):
            self._refuse(key, "a list of integers")
        if len(found) != count:
            raise CheckpointError(f"{self.path.name}: {key} has {len(found)} values instead of {count}.")
        return [int(each) for each in found]

    def _get(self, key: str, default: Any = None) -> Any:
        found = self.fields.get(key, default)
        if found is None:
            raise CheckpointError(f"{self.path.name} lacks the metadata {key}.")
        return found

    def _refuse(self, key: str, wanted: str) -> Any:
        raise CheckpointError(f"{self.path.name}: the metadata {key} must be {wanted}.")


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def read_header(path: Path) -> Header:
    """Read `path`. Raises CheckpointError on anything but a whole, sound file."""
    try:
        with path.open("rb") as file:
            fields, infos, base = _read(Cursor(file))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path.name} is not a sound GGUF file: {error}.", _AGAIN) from error
    tensors = [_tensor(path, base, *info) for info in infos]
    _check_layout(path, tensors)
    return Header(path, fields, {tensor.name: tensor for tensor in tensors})


def _read(cursor: Cursor) -> tuple[dict[str, Any], list[tuple[str, Shape, int, int]], int]:
    """The metadata, the tensors' entries and where their data begin."""
    if cursor.take(4) != b"GGUF":
        raise ValueError("its magic number is another")
    version = cursor.whole(4)
    if version not in _VERSIONS:
        raise ValueError("it is in the other byte order" if version & 0xFFFF == 0 else f"it has version {version}")
    tensors, count = cursor.whole(8), cursor.whole(8)
    if tensors > _MOST_TENSORS or count > _MOST_FIELDS:
        raise ValueError(f"it claims {tensors} tensors and {count} settings")
    fields: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string(_LONGEST_NAME)
        if key in fields:
            raise ValueError(f"{key} occurs twice")
        fields[key] = cursor.value(cursor.whole(4))
    infos = [_info(cursor) for _ in range(tensors)]
    step = fields.get("general.alignment", 32)
    if not _is_whole(step) or not 0 < step <= _WIDEST or step & (step - 1):
        raise ValueError("its alignment is no power of two")
    return fields, infos, -(-cursor.tell() // step) * step


def _info(cursor: Cursor) -> tuple[str, Shape, int, int]:
    """Name, shape with the rows' length last, type and offset of a tensor."""
    name, axes = cursor.string(_LONGEST_NAME), cursor.whole(4)
    if axes > _MOST_AXES:
        raise ValueError(f"{name} has {axes} dimensions")
    shape = tuple(cursor.whole(8) for _ in range(axes))[::-1]
    return name, shape, cursor.whole(4), cursor.whole(8)


def _tensor(path: Path, base: int, name: str, shape: Shape, number: int, offset: int) -> Tensor:
    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise CheckpointError(f"{path.name}: {name} has the unknown type {number}.") from error
    if 0 in shape:
        raise CheckpointError(f"{path.name}: {name} is empty: {kind.name} {list(shape)}.", _AGAIN)
    values, size = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % values:
        raise CheckpointError(f"{path.name}: {name} is {kind.name} {list(shape)}, which is no whole block.", _AGAIN)
    row_bytes = shape[-1] // values * size
    nbytes = math.prod(shape[:-1]) * row_bytes
    return Tensor(name, cast(str, kind.name), shape, path, base + offset, nbytes, row_bytes)


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
