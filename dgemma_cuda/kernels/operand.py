"""A stored weight as the kernels take it: bytes, scales, biases, and what the compiler must know."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgemma_cuda.kernels.packed import AFFINE4, AFFINE8, MXFP4, MXFP8, NVFP4, PLAIN
from dgemma_cuda.quant import (
    Embedding,
    Experts,
    Linear,
    PackedEmbedding,
    PackedExperts,
    PackedLinear,
    PlainEmbedding,
    PlainExperts,
    PlainLinear,
)

_FORMATS = {
    ("affine", 4): AFFINE4,
    ("affine", 8): AFFINE8,
    ("mxfp4", 4): MXFP4,
    ("nvfp4", 4): NVFP4,
    ("mxfp8", 8): MXFP8,
}
_BLOCK = 64


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix of `rows` rows, or `stack` of them one after the other; unused tensors repeat a used one."""

    weight: Tensor
    scales: Tensor
    biases: Tensor
    multipliers: Tensor
    rows: int
    stack: int
    format: int
    group: int
    scaled: bool

    @property
    def pointers(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The tensors a kernel takes, in its order."""
        return self.weight, self.scales, self.biases, self.multipliers

    @property
    def constants(self) -> dict[str, int | bool]:
        """The compile-time arguments of a product."""
        block = max(_BLOCK, self.group)
        return {"FORMAT": self.format, "GROUP": self.group, "SCALED": self.scaled, "BK": block}


def of(matrix: Linear | Embedding | Experts) -> Operand | None:
    """The weight of a map; None where no kernel reads its format."""
    if isinstance(matrix, PlainLinear | PlainEmbedding | PlainExperts):
        weight = matrix.weight
        rows, stack = _shape(weight)
        return Operand(weight, weight, weight, weight, rows, stack, PLAIN.value, 1, False)
    if not isinstance(matrix, PackedLinear | PackedEmbedding | PackedExperts):
        return None
    packed = matrix.packed
    code = _FORMATS.get((packed.spec.mode, packed.spec.bits))
    if code is None:
        return None
    rows, stack = _shape(packed.weight)
    return Operand(
        weight=packed.weight.contiguous().view(torch.uint8),
        scales=packed.scales.contiguous(),
        biases=_or(packed.biases, packed.scales),
        multipliers=_or(packed.multiplier, packed.scales),
        rows=rows,
        stack=stack,
        format=code.value,
        group=packed.spec.group_size,
        scaled=packed.multiplier is not None,
    )


def _or(tensor: Tensor | None, instead: Tensor) -> Tensor:
    return (instead if tensor is None else tensor).contiguous()


def _shape(weight: Tensor) -> tuple[int, int]:
    return weight.shape[-2], 1 if weight.ndim == 2 else len(weight)
