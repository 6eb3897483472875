"""A stored weight as the kernels take it: bytes, scales, biases, and what the compiler must know."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgemma.quantization import QuantSpec
from dgemma_cuda.kernels.packed import AFFINE4, AFFINE8, MXFP4, MXFP8, NVFP4, PLAIN

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
    """A matrix [rows, columns], or `stack` of them one after the other."""

    weight: Tensor
    scales: Tensor
    biases: Tensor
    rows: int
    stack: int
    format: int
    group: int

    @property
    def pointers(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors a kernel takes, in its order."""
        return self.weight, self.scales, self.biases

    @property
    def constants(self) -> dict[str, int]:
        """The compile-time arguments of a kernel."""
        return {"FORMAT": self.format, "GROUP": self.group, "BK": max(_BLOCK, self.group)}


def plain(weight: Tensor) -> Operand:
    """An unquantized [rows, columns] matrix or [stack, rows, columns]."""
    stack = 1 if weight.ndim == 2 else len(weight)
    return Operand(weight, weight, weight, weight.shape[-2], stack, PLAIN.value, 1)


def packed(weight: Tensor, scales: Tensor, biases: Tensor | None, spec: QuantSpec) -> Operand | None:
    """A matrix in MLX's packed layout; None where no kernel reads its format."""
    code = _FORMATS.get((spec.mode, spec.bits))
    if code is None:
        return None
    stack = 1 if weight.ndim == 2 else len(weight)
    bytes_ = weight.contiguous().view(torch.uint8)
    return Operand(
        bytes_, scales, scales if biases is None else biases, weight.shape[-2], stack, code.value, spec.group_size
    )
