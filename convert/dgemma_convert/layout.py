"""Where every tensor of the result lies: shards, their headers, and writing at places known beforehand."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from dgemma.errors import DgemmaError
from dgemma_convert.floats import Array, itemsize
from dgemma_convert.plan import Output

SHARD_BYTES = 5_000_000_000
_ALIGNED = 8


@dataclass(frozen=True, slots=True)
class Shard:
    """A safetensors file to be: its header, and where each of its tensors begins."""

    name: str
    header: bytes
    places: Mapping[str, int]
    nbytes: int


def lay_out(outputs: Sequence[Output], kind: str, limit: int = SHARD_BYTES) -> list[Shard]:
    """Shards of at most `limit` bytes (one tensor may be larger); `kind` is the format their metadata names."""
    groups: list[list[Output]] = [[]]
    filled = 0
    for output in outputs:
        if groups[-1] and filled + output.nbytes > limit:
            groups.append([])
            filled = 0
        groups[-1].append(output)
        filled += output.nbytes
    total = len(groups)
    names = (
        ["model.safetensors"]
        if total == 1
        else [f"model-{i:05}-of-{total:05}.safetensors" for i in range(1, total + 1)]
    )
    return [_shard(name, group, kind) for name, group in zip(names, groups, strict=True)]


def index(shards: Sequence[Shard], outputs: Iterable[Output]) -> str:
    """model.safetensors.index.json."""
    total = sum(output.nbytes for output in outputs)
    places = {name: shard.name for shard in shards for name in shard.places}
    return json.dumps({"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}, indent=2) + "\n"


def _shard(name: str, outputs: Sequence[Output], kind: str) -> Shard:
    """Wide numbers come first, so that every tensor is aligned."""
    ordered = sorted(outputs, key=lambda output: (-itemsize(output.dtype), output.name))
    entries: dict[str, object] = {"__metadata__": {"format": kind}}
    starts, position = {}, 0
    for output in ordered:
        stop = position + output.nbytes
        entries[output.name] = {"dtype": output.dtype, "shape": output.shape, "data_offsets": [position, stop]}
        starts[output.name], position = position, stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    header = len(text).to_bytes(8, "little") + text
    return Shard(name, header, {each: len(header) + start for each, start in starts.items()}, len(header) + position)


def whole(folder: Path, shards: Sequence[Shard]) -> bool:
    """Whether every shard is there with its size and header."""
    return all(_is_whole(folder / shard.name, shard) for shard in shards)


def _is_whole(path: Path, shard: Shard) -> bool:
    try:
        with path.open("rb") as file:
            return path.stat().st_size == shard.nbytes and file.read(len(shard.header)) == shard.header
    except FileNotFoundError:
        return False


class Files:
    """The shards of a folder, open for writing at any place; a context manager."""

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self._folder, self._shards = folder, shards
        self._places: dict[str, tuple[int, int]] = {}
        self._open: list[int] = []

    def __enter__(self) -> Self:
        for shard in self._shards:
            handle = os.open(self._folder / shard.name, os.O_RDWR | os.O_CREAT, 0o666)
            self._open.append(handle)
            os.ftruncate(handle, shard.nbytes)
            _write(handle, shard.header, 0)
            self._places |= {name: (handle, start) for name, start in shard.places.items()}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._open:
            os.close(handle)

    def write(self, name: str, offset: int, array: Array) -> None:
        """Put the bytes of `array` into the tensor `name`, `offset` bytes from its beginning."""
        handle, start = self._places[name]
        _write(handle, np.ascontiguousarray(array).data.cast("B"), start + offset)

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        for handle in self._open:
            os.fsync(handle)


def _write(handle: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        try:
            done = os.pwrite(handle, rest, offset)
        except OSError as error:
            raise full(error) from error
        rest, offset = rest[done:], offset + done


def full(error: OSError) -> DgemmaError:
    """What to tell about a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DgemmaError("The disk is full.", "Make room or choose another place; nothing is left of this attempt.")
    return DgemmaError(f"The result cannot be written: {error}.")
