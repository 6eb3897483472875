"""Rows of bytes in a file, read a few at a time. They are read, not mapped: a file cut short is an error, no crash."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dgemma.errors import CheckpointError
from dgemma.shards import TensorInfo
from dgemma_convert.floats import Array, Octets, stored_type


@dataclass(frozen=True, slots=True)
class Stretch:
    """`rows` runs of `width` bytes, the first at byte `start` of the file `path`."""

    path: Path
    start: int
    rows: int
    width: int

    @classmethod
    def of(cls, info: TensorInfo) -> Stretch:
        """A safetensors tensor, all axes but the last taken as rows; a vector is one row."""
        rows = math.prod(info.shape[:-1])
        return cls(info.shard, info.start, rows, info.nbytes // rows if rows else 0)

    def read(self, first: int = 0, stop: int | None = None) -> Octets:
        """The bytes of rows `first` to `stop`, [rows, width]."""
        count = (self.rows if stop is None else stop) - first
        offset = self.start + first * self.width
        try:
            found = np.fromfile(self.path, np.uint8, count * self.width, offset=offset)
        except OSError as error:
            raise CheckpointError(f"{self.path.name} cannot be read: {error}.") from error
        if found.size < count * self.width:
            raise CheckpointError(f"{self.path.name} has become shorter while it was read.", "Download it again.")
        return found.reshape(count, self.width)

    def array(self, dtype: str, first: int = 0, stop: int | None = None) -> Array:
        """Rows `first` to `stop` as stored numbers of `dtype`."""
        return self.read(first, stop).view(stored_type(dtype))

    def cut(self, first: int, stop: int) -> Stretch:
        """Rows `first` to `stop` as a stretch of their own."""
        return replace(self, start=self.start + first * self.width, rows=stop - first)
