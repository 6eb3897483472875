"""Products of float16 inputs, for chips that only emulate bfloat16; what stands between products stays bfloat16.

A row whose product could leave the range of float16 is divided by a power of two before and multiplied by it behind:
by Cauchy and Schwarz no component exceeds the length of the row times that of the longest matrix row. MLX may sum a
packed group before it scales, so that the bare codes must be in range, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import cast

import mlx.core as mx

from dgemma_mlx.quant import (
    Embedding,
    Experts,
    Linear,
    Packed,
    PackedEmbedding,
    PackedExperts,
    PackedLinear,
    PlainEmbedding,
    PlainExperts,
    PlainLinear,
)

_LIMIT = 2.0**15
_LAST_EMULATING = 14
_LARGEST = {"mxfp4": 6.0, "nvfp4": 6.0, "mxfp8": 448.0}


def emulates_bfloat16(architecture: str) -> bool:
    """Whether an Apple GPU (`applegpu_g13s`: M1) has no bfloat16 arithmetic of its own; M1 and M2 have none."""
    found = re.match(r"applegpu_g(\d+)", architecture)
    return found is not None and int(found[1]) <= _LAST_EMULATING


def guarded(x: mx.array, reach: float) -> tuple[mx.array, mx.array]:
    """float16 rows, and float32 powers of two [..., 1] by which their products with rows of length `reach` shrank."""
    wide = x.astype(mx.float32)
    length = mx.sqrt((wide * wide).sum(axis=-1, keepdims=True))
    over = mx.maximum(length * (max(reach, 1.0) / _LIMIT), 1)
    scale = mx.power(2.0, mx.ceil(mx.log2(over)))
    return (wide / scale).astype(mx.float16), scale


@dataclass(frozen=True, slots=True)
class HalfLinear:
    """`inner` holds float16 weights, the longest of whose rows is `reach` long."""

    inner: Linear
    reach: float

    def __call__(self, x: mx.array) -> mx.array:
        """See `Linear`."""
        rows, scale = guarded(x, self.reach)
        return (self.inner(rows).astype(mx.float32) * scale).astype(x.dtype)


@dataclass(frozen=True, slots=True)
class HalfExperts:
    """A `HalfLinear` an expert."""

    inner: Experts
    reach: float

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        """See `Experts`."""
        rows, scale = guarded(x, self.reach)
        return (self.inner(rows, experts).astype(mx.float32) * scale).astype(x.dtype)


@dataclass(frozen=True, slots=True)
class HalfEmbedding:
    """The tied embedding in float16, its rows in `dtype`; `reach` and `largest` bound its rows and its entries."""

    inner: Embedding
    reach: float
    largest: float
    dtype: mx.Dtype

    def __len__(self) -> int:
        """See `Embedding`."""
        return len(self.inner)

    def part(self, start: int, stop: int) -> HalfEmbedding:
        """See `Embedding`."""
        return replace(self, inner=self.inner.part(start, stop))

    def rows(self, ids: mx.array) -> mx.array:
        """See `Embedding`."""
        return self.inner.rows(ids).astype(self.dtype)

    def logits(self, x: mx.array) -> mx.array:
        """See `Embedding`."""
        return HalfLinear(_Head(self.inner), self.reach)(x)

    def mix(self, probabilities: mx.array) -> mx.array:
        """See `Embedding`. Small shares are lifted to where float16 has all its bits; sums to one cannot overflow."""
        lift = _LIMIT / max(self.largest, 1.0)
        mixed = self.inner.mix((probabilities.astype(mx.float32) * lift).astype(mx.float16))
        return (mixed.astype(mx.float32) / lift).astype(probabilities.dtype)


@dataclass(frozen=True, slots=True)
class _Head:
    embedding: Embedding

    def __call__(self, x: mx.array) -> mx.array:
        return self.embedding.logits(x)


def halved(matrix: Linear | Embedding | Experts, dtype: mx.Dtype) -> Linear | Embedding | Experts:
    """`matrix` with float16 products; unchanged where float16 does not hold its values."""
    if isinstance(matrix, PlainLinear | PlainEmbedding | PlainExperts):
        weight = matrix.weight.astype(mx.float16)
        if not _holds(weight, matrix.weight):
            return matrix
        inner: Linear | Embedding | Experts = replace(matrix, weight=weight)
        ends = mx.abs(matrix.weight.astype(mx.float32))
        reach, largest = mx.sqrt((ends * ends).sum(axis=-1).max()), ends.max()
    elif isinstance(matrix, PackedLinear | PackedEmbedding | PackedExperts):
        packed = _narrowed(matrix.packed)
        if packed is None:
            return matrix
        inner = replace(matrix, packed=packed)
        ends, spec = _ends(matrix.packed), matrix.packed.spec
        longest = mx.sqrt((ends * ends).sum(axis=-1).max() * spec.group_size)
        reach = mx.maximum(longest, _LARGEST.get(spec.mode, 2.0**spec.bits - 1) * spec.group_size**0.5)
        largest = ends.max()
    else:
        return matrix
    bounds = (cast(float, reach.item()), cast(float, largest.item()))
    if isinstance(inner, PlainEmbedding | PackedEmbedding):
        return HalfEmbedding(inner, *bounds, dtype)
    half = HalfExperts if isinstance(inner, PlainExperts | PackedExperts) else HalfLinear
    return half(inner, bounds[0])  # type: ignore[arg-type]


def _narrowed(packed: Packed) -> Packed | None:
    if packed.biases is None:
        return packed
    scales, biases = packed.scales.astype(mx.float16), packed.biases.astype(mx.float16)
    fits = _holds(scales, packed.scales) and _holds(biases, packed.biases)
    return replace(packed, scales=scales, biases=biases) if fits else None


def _holds(narrow: mx.array, stored: mx.array) -> bool:
    """Whether what float16 changes is below what it resolves next to the largest value; no infinity."""
    narrow, stored = narrow.astype(mx.float32), stored.astype(mx.float32)
    return bool((mx.abs(narrow - stored).max() <= mx.abs(stored).max() * 2.0**-11).item())


def _ends(packed: Packed) -> mx.array:
    """The largest magnitude that each group of a packed matrix can hold."""
    if packed.biases is not None:
        low, scales = packed.biases.astype(mx.float32), packed.scales.astype(mx.float32)
        ends = mx.maximum(mx.abs(low), mx.abs(low + scales * (2**packed.spec.bits - 1)))
    else:
        size = packed.scales.astype(mx.float32)
        size = mx.power(2.0, size - 127) if packed.spec.mode != "nvfp4" else mx.from_fp8(packed.scales, mx.float32)
        ends = size * _LARGEST[packed.spec.mode]
    if packed.multiplier is not None:
        # The product is taken before the multiplier is: both must stay in range.
        ends = ends * mx.maximum(mx.abs(packed.multiplier), 1)[..., None]
    return ends
