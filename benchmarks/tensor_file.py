"""Writes a safetensors file tensor by tensor, so that a model larger than the memory can be made."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SIZES = {"F32": 4, "BF16": 2, "U32": 4, "U8": 1}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written: `make` draws its elements when its turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[], NDArray[np.generic]]

    @property
    def nbytes(self) -> int:
        """Stored size."""
        return int(np.prod(self.shape)) * _SIZES[self.dtype]


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Write all entries in order."""
    header, start = {}, 0
    for entry in entries:
        stop = start + entry.nbytes
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [start, stop]}
        start = stop
    head = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for entry in entries:
            data = entry.make()
            assert data.nbytes == entry.nbytes, entry.name
            file.write(np.ascontiguousarray(data).data)


def as_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest even, as raw bits."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
