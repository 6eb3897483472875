"""Pieces in the formats of other tools, and their exact counterparts in the MLX layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgemma.quantization import QuantSpec
from dgemma_convert.blocks import BLOCKS, dequantized
from dgemma_convert.floats import E4M3, Array, Floats, Octets, from_e2m1, narrow, widen
from dgemma_convert.packing import pack, unpack
from dgemma_convert.pieces import EXACT, STORAGE_EXACT, Form, checked, finite, numbers
from dgemma_convert.stretch import Stretch

NVFP4, FP8 = QuantSpec(4, 16, "nvfp4"), QuantSpec(8, 32, "mxfp8")
_ONE = 127


@dataclass(frozen=True, slots=True)
class Nvfp4:
    """E2M1 codes, two a byte, E4M3 scales a group of 16, and one float32 `factor`, by which values are divided where
    `divides`."""

    weight: Stretch
    scales: Stretch
    factor: Stretch
    divides: bool = False

    @property
    def rows(self) -> int:
        """See `Piece`."""
        return self.weight.rows

    @property
    def columns(self) -> int:
        """See `Piece`."""
        return self.weight.width * 2

    @property
    def kind(self) -> str:
        """See `Piece`."""
        return "NVFP4"

    @property
    def form(self) -> Form:
        """See `Piece`."""
        return Form(NVFP4, multiplied=True)

    @property
    def label(self) -> str:
        """See `Piece`."""
        return STORAGE_EXACT if self.divides else EXACT

    def values(self, first: int, stop: int) -> Floats:
        """See `Piece`."""
        codes = unpack(self.weight.read(first, stop), 4)
        scales = finite(E4M3[self.scales.read(first, stop)], "A scale")
        groups = from_e2m1(codes).reshape(len(codes), -1, 16) * scales[..., None]
        values = groups.reshape(len(codes), -1)
        return values / self._factor() if self.divides else values * self._factor()

    def parts(self, first: int, stop: int) -> dict[str, Array]:
        """See `Piece`."""
        factor = 1 / self._factor() if self.divides else self._factor()
        found = {"weight": self.weight.array("U32", first, stop), "scales": self.scales.read(first, stop)}
        return checked(found | {"weight_scale_2": np.full(stop - first, factor, np.float32)}, self.form)

    def _factor(self) -> np.float32:
        """By which values are multiplied or divided. Six times the largest scale must still be a number."""
        factor = np.float32(self.factor.array("F32")[0, 0])
        largest = np.float32(6 * 448)
        with np.errstate(all="ignore"):
            finite(np.stack([largest * factor, largest / factor if self.divides else factor]), "The global scale")
        return factor


@dataclass(frozen=True, slots=True)
class Fp8:
    """E4M3 codes with one scale a row, or one for all."""

    weight: Stretch
    scales: Stretch
    dtype: str
    label: str = EXACT

    @property
    def rows(self) -> int:
        """See `Piece`."""
        return self.weight.rows

    @property
    def columns(self) -> int:
        """See `Piece`."""
        return self.weight.width

    @property
    def kind(self) -> str:
        """See `Piece`."""
        return "FP8"

    @property
    def form(self) -> Form:
        """See `Piece`."""
        return Form(FP8, multiplied=True)

    def values(self, first: int, stop: int) -> Floats:
        """See `Piece`."""
        return E4M3[self._codes(first, stop)] * self._scales(first, stop)[:, None]

    def parts(self, first: int, stop: int) -> dict[str, Array]:
        """See `Piece`."""
        weight = self._codes(first, stop).view("<u4")
        ones = np.full((stop - first, self.columns // 32), _ONE, np.uint8)
        return checked({"weight": weight, "scales": ones, "weight_scale_2": self._scales(first, stop)}, self.form)

    def _codes(self, first: int, stop: int) -> Octets:
        return numbers(self.weight.read(first, stop), "F8_E4M3")

    def _scales(self, first: int, stop: int) -> Floats:
        stored = self.scales.read().reshape(-1).view(np.uint8)
        found = widen(stored.view(self.scales.array(self.dtype).dtype), self.dtype)
        with np.errstate(all="ignore"):
            finite(found * np.float32(448), "A scale")
        return np.broadcast_to(found, (self.rows,))[first:stop] if found.size == 1 else found[first:stop]


@dataclass(frozen=True, slots=True)
class Integers:
    """Unsigned codes of `bits` bits in words, low ones first, with a scale and a zero point a group of `group` columns.

    The last word of a row may have codes to spare.

    Without `zeros` the zero point is the middle code. `zeros` [rows / (32 / bits), groups] packs them along the rows.
    With bits 8 and `signed`, `weight` and `zeros` are plain int8 instead.
    """

    weight: Stretch
    scales: Stretch
    zeros: Stretch | None
    dtype: str
    bits: int
    columns: int
    group: int
    signed: bool = False
    label: str = STORAGE_EXACT

    @property
    def rows(self) -> int:
        """See `Piece`."""
        return self.weight.rows

    @property
    def kind(self) -> str:
        """See `Piece`."""
        return f"int{self.bits} g{self.group}"

    @property
    def form(self) -> Form | None:
        """See `Piece`."""
        fits = [size for size in (128, 64, 32) if self.group % size == 0]
        scales = self.dtype if self.zeros is None else "F32"
        return Form(QuantSpec(self.bits, fits[0]), scales) if fits else None

    def values(self, first: int, stop: int) -> Floats:
        """See `Piece`."""
        codes = self._codes(first, stop).astype(np.float32).reshape(stop - first, -1, self.group)
        scales, zeros = self._scales(first, stop), self._zeros(first, stop)
        return ((codes - zeros[..., None]) * scales[..., None]).reshape(stop - first, -1)

    def parts(self, first: int, stop: int) -> dict[str, Array]:
        """See `Piece`."""
        assert self.form is not None
        scales, zeros = self._scales(first, stop), self._zeros(first, stop)
        repeats = self.group // self.form.spec.group_size
        found = {name: np.repeat(narrow(part, self.form.scales), repeats, axis=-1)
                 for name, part in (("scales", scales), ("biases", -zeros * scales))}  # fmt: skip
        return checked({"weight": pack(self._codes(first, stop), self.bits)} | found, self.form)

    def _codes(self, first: int, stop: int) -> Array:
        raw = self.weight.read(first, stop)
        return raw ^ np.uint8(128) if self.signed else unpack(raw, self.bits)[:, : self.columns]

    def _scales(self, first: int, stop: int) -> Floats:
        return finite(widen(self.scales.array(self.dtype, first, stop), self.dtype), "A scale")

    def _zeros(self, first: int, stop: int) -> Floats:
        groups, middle = self.columns // self.group, np.float32(1 << (self.bits - 1))
        if self.zeros is None:
            return np.full((stop - first, groups), middle, np.float32)
        if self.signed:
            return self.zeros.array("I8", first, stop).astype(np.float32) + middle
        words = np.ascontiguousarray(self.zeros.array("I32").T)
        return unpack(words, self.bits)[:, first:stop].T.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of llama.cpp blocks of the type `kind`."""

    stretch: Stretch
    kind: str
    columns: int

    @property
    def rows(self) -> int:
        """See `Piece`."""
        return self.stretch.rows

    @property
    def label(self) -> str:
        """See `Piece`."""
        return BLOCKS[self.kind].label if self.kind in BLOCKS else STORAGE_EXACT

    @property
    def form(self) -> Form | None:
        """See `Piece`."""
        block = BLOCKS.get(self.kind)
        return Form(block.spec, block.scales) if block else None

    def values(self, first: int, stop: int) -> Floats:
        """See `Piece`."""
        return finite(dequantized(self.stretch.read(first, stop), self.kind), f"A scale ({self.kind})")

    def parts(self, first: int, stop: int) -> dict[str, Array]:
        """See `Piece`."""
        assert self.form is not None
        raw = self.stretch.read(first, stop)
        return checked(BLOCKS[self.kind].repack(raw), self.form)
