"""Sizes of the operations, and the formats their weights are stored in."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dgemma.quantization import QuantSpec

FORMATS: dict[str, QuantSpec | None] = {
    "plain": None,
    "affine4": QuantSpec(4, 64),
    "affine8": QuantSpec(8, 64),
    "mxfp4": QuantSpec(4, 32, "mxfp4"),
    "nvfp4": QuantSpec(4, 16, "nvfp4"),
    "mxfp8": QuantSpec(8, 32, "mxfp8"),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the operations depend on."""

    rows: int
    hidden: int
    vocab: int
    experts: int
    top_k: int
    inner: int
    dense: int
    heads: int
    context: int


REAL = Sizes(256, 2816, 262144, 128, 8, 704, 2112, 16, 1024)
SMALL = Sizes(64, 256, 8192, 16, 4, 128, 512, 4, 256)


def stored_bytes(spec: QuantSpec | None, itemsize: int, *shape: int) -> float:
    """What reading such a weight once moves; unpacked values and affine scales take `itemsize` bytes."""
    count = float(math.prod(shape))
    if spec is None:
        return count * itemsize
    scale = 2 * itemsize if spec.mode == "affine" else 1
    return count * (spec.bits / 8 + scale / spec.group_size)
