"""A stored weight as the kernels take it: words, scales, biases, and what the compiler must know."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from dgemma_mlx.half import HalfEmbedding, HalfExperts, HalfLinear
from dgemma_mlx.kernels.packed import FORMATS, PLAIN
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

_WORD = 32


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of `rows` rows, or `stack` of them one after the other; unused tensors repeat a used one."""

    weight: mx.array
    scales: mx.array
    biases: mx.array
    multipliers: mx.array
    rows: int
    stack: int
    format: int
    group: int
    bits: int
    scaled: bool

    @property
    def tensors(self) -> list[mx.array]:
        """The inputs of a kernel, in its order."""
        return [self.weight, self.scales, self.biases, self.multipliers]

    @property
    def constants(self) -> list[tuple[str, int | bool]]:
        """The compile-time arguments of a product; PER codes share a word."""
        per = 1 if self.format == PLAIN else _WORD // self.bits
        shared = [("FORMAT", self.format), ("GROUP", self.group), ("BITS", self.bits), ("PER", per)]
        return [*shared, ("SCALED", self.scaled)]

    @property
    def packed(self) -> bool:
        """Whether it holds codes."""
        return self.format != PLAIN

    @property
    def name(self) -> str:
        """Shape and format in words."""
        mode = next((mode for mode, code in FORMATS.items() if code == self.format), "plain")
        return f"{self.stack}x{self.rows} {mode} {self.bits} bits, groups of {self.group}"


def of(matrix: Linear | Embedding | Experts) -> Operand | None:
    """The weight of a map; None where no kernel reads its format. A kernel's sums are float32 in any case."""
    if isinstance(matrix, HalfLinear | HalfEmbedding | HalfExperts):
        matrix = matrix.inner
    if isinstance(matrix, PlainLinear | PlainEmbedding | PlainExperts):
        weight = matrix.weight
        rows, stack = _shape(weight)
        return Operand(weight, weight, weight, weight, rows, stack, PLAIN, 1, 8 * weight.dtype.size, False)
    if isinstance(matrix, PackedLinear | PackedEmbedding | PackedExperts):
        return _packed(matrix.packed)
    return None


def _packed(packed: Packed) -> Operand | None:
    spec = packed.spec
    if _WORD % spec.bits:
        return None
    rows, stack = _shape(packed.weight)
    biases = packed.scales if packed.biases is None else packed.biases
    multipliers = packed.scales if packed.multiplier is None else packed.multiplier
    scaled = packed.multiplier is not None
    code = FORMATS[spec.mode]
    return Operand(
        packed.weight, packed.scales, biases, multipliers, rows, stack, code, spec.group_size, spec.bits, scaled
    )


def _shape(weight: mx.array) -> tuple[int, int]:
    return weight.shape[-2], 1 if weight.ndim == 2 else len(weight)
