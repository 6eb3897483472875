"""Matrices in the formats they are published in: what they are worth, and what they are in the MLX layout.

A piece is [rows, columns]. `values` is the source's own dequantization in float32; `parts`, where the format has a
counterpart in the MLX layout (`form`), are the tensors of that counterpart with nothing requantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dgemma.errors import CheckpointError
from dgemma.quantization import QuantSpec
from dgemma_convert.floats import Array, Floats, itemsize, widen
from dgemma_convert.packing import dequantize
from dgemma_convert.stretch import Stretch

EXACT, STORAGE_EXACT, REQUANTIZED = "exact", "storage exact", "requantized"
_DAMAGED = "The file is damaged."
_LARGEST = {"F64": 0x7FF << 52, "F32": 0xFF << 23, "F16": 0x1F << 10, "BF16": 0xFF << 7, "F8_E4M3": 0x7E}


@dataclass(frozen=True, slots=True)
class Form:
    """A format of the MLX layout: `scales` is the dtype of the scales, `multiplied` whether rows have a multiplier."""

    spec: QuantSpec
    scales: str = "U8"
    multiplied: bool = False


class Piece(Protocol):
    """Some rows of a matrix."""

    @property
    def rows(self) -> int:
        """How many rows."""

    @property
    def columns(self) -> int:
        """How many columns."""

    @property
    def kind(self) -> str:
        """The stored format's usual name."""

    @property
    def form(self) -> Form | None:
        """The MLX format that holds the same codes and scales, if there is one."""

    @property
    def label(self) -> str:
        """What `parts` is: exact or storage exact."""

    def values(self, first: int, stop: int) -> Floats:
        """Rows `first` to `stop` in float32."""

    def parts(self, first: int, stop: int) -> dict[str, Array]:
        """Rows `first` to `stop` in `form`: weight, scales, biases, weight_scale_2 as far as it has them."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Unquantized numbers of `dtype`; `parts` has the stored numbers as `weight`."""

    stretch: Stretch
    dtype: str
    form: Form | None = None
    label: str = EXACT

    @property
    def rows(self) -> int:
        """See `Piece`."""
        return self.stretch.rows

    @property
    def columns(self) -> int:
        """See `Piece`."""
        return self.stretch.width // itemsize(self.dtype)

    @property
    def kind(self) -> str:
        """See `Piece`."""
        return self.dtype

    def values(self, first: int, stop: int) -> Floats:
        """See `Piece`."""
        return widen(self._stored(first, stop), self.dtype)

    def parts(self, first: int, stop: int) -> dict[str, Array]:
        """See `Piece`."""
        return {"weight": self._stored(first, stop)}

    def _stored(self, first: int, stop: int) -> Array:
        return numbers(self.stretch.array(self.dtype, first, stop), self.dtype)


@dataclass(frozen=True, slots=True)
class Packed:
    """What MLX has quantized; `stretches` holds its parts."""

    stretches: Mapping[str, Stretch]
    form: Form
    label: str = EXACT

    @property
    def rows(self) -> int:
        """See `Piece`."""
        return self.stretches["weight"].rows

    @property
    def columns(self) -> int:
        """See `Piece`."""
        return self.stretches["weight"].width * 8 // self.form.spec.bits

    @property
    def kind(self) -> str:
        """See `Piece`."""
        return spelled(self.form.spec)

    def values(self, first: int, stop: int) -> Floats:
        """See `Piece`."""
        return dequantize(self.parts(first, stop), self.form.spec, self.form.scales)

    def parts(self, first: int, stop: int) -> dict[str, Array]:
        """See `Piece`."""
        types = {"weight": "U32", "weight_scale_2": "F32"}
        found = {
            name: stretch.array(types.get(name, self.form.scales), first, stop)
            for name, stretch in self.stretches.items()
        }
        if "weight_scale_2" in found:
            found["weight_scale_2"] = found["weight_scale_2"][:, 0]
        return checked(found, self.form)


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows `first` to `stop` of another piece."""

    piece: Piece
    first: int
    stop: int

    @property
    def rows(self) -> int:
        """See `Piece`."""
        return self.stop - self.first

    @property
    def columns(self) -> int:
        """See `Piece`."""
        return self.piece.columns

    @property
    def kind(self) -> str:
        """See `Piece`."""
        return self.piece.kind

    @property
    def form(self) -> Form | None:
        """See `Piece`."""
        return self.piece.form

    @property
    def label(self) -> str:
        """See `Piece`."""
        return self.piece.label

    def values(self, first: int, stop: int) -> Floats:
        """See `Piece`."""
        return self.piece.values(self.first + first, self.first + stop)

    def parts(self, first: int, stop: int) -> dict[str, Array]:
        """See `Piece`."""
        return self.piece.parts(self.first + first, self.first + stop)


def spelled(spec: QuantSpec) -> str:
    """A format in a few characters."""
    return f"{spec.mode} {spec.bits}-bit g{spec.group_size}" if spec.mode == "affine" else spec.mode


def finite(values: Floats, what: str) -> Floats:
    """`values`, unless one is infinite or not a number."""
    if not np.isfinite(values).all():
        raise CheckpointError(f"{what} is not finite.", _DAMAGED)
    return values


def numbers(stored: Array, dtype: str) -> Array:
    """`stored`, unless one is not a number; infinities pass, as clipping bounds are. As fast as reading it twice."""
    if dtype in _LARGEST and stored.size:
        positive, negative = _LARGEST[dtype], _LARGEST[dtype] + (1 << 8 * stored.itemsize - 1)
        signed, unsigned = stored.view(f"i{stored.itemsize}"), stored.view(f"u{stored.itemsize}")
        if signed.max() > positive or unsigned.max() > negative:
            raise CheckpointError("A number is none (NaN).", _DAMAGED)
    return stored


def checked(parts: dict[str, Array], form: Form) -> dict[str, Array]:
    """`parts`, unless a scale is infinite or not a number."""
    if form.spec.mode == "affine":
        for name in ("scales", "biases"):
            finite(widen(parts[name], form.scales), f"A scale ({spelled(form.spec)})")
    else:
        broken = parts["scales"] == 255 if form.spec.mode.startswith("mx") else parts["scales"] & 127 == 127
        if broken.any():
            raise CheckpointError(f"A scale ({spelled(form.spec)}) is not a number.", _DAMAGED)
    if form.spec.mode == "mxfp8":
        numbers(parts["weight"].view(np.uint8), "F8_E4M3")
    if "weight_scale_2" in parts:
        finite(parts["weight_scale_2"], "A weight_scale_2")
    return parts
