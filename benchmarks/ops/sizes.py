"""The released model's sizes on a GPU, a small form of them elsewhere, and random weights in every format."""

from __future__ import annotations

import torch

from benchmarks.ops import shapes
from benchmarks.ops.measure import device, dtype
from benchmarks.ops.shapes import REAL, SMALL, Sizes
from dgemma.quantization import QuantSpec
from dgemma_cuda.quant import (
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


def sizes() -> Sizes:
    """Real on a GPU."""
    return REAL if device().type == "cuda" else SMALL


def plain(*shape: int) -> torch.Tensor:
    """Random weights of unit gain."""
    return torch.randn(*shape, device=device(), dtype=dtype()).mul_(shape[-1] ** -0.5)


def packed(spec: QuantSpec, *shape: int) -> Packed:
    """Random codes; scales that keep the values near those of `plain`."""
    *rows, width = shape
    words = torch.randint(-(2**31), 2**31, (*rows, width * spec.bits // 32), device=device(), dtype=torch.int32)
    groups = (*rows, width // spec.group_size)
    biases = None
    if spec.mode == "affine":
        scales = torch.full(groups, 2.0 ** (1 - spec.bits) * width**-0.5, device=device(), dtype=dtype())
        biases = torch.full(groups, -(width**-0.5), device=device(), dtype=dtype())
    else:
        code = 0x18 if spec.mode == "nvfp4" else 120
        scales = torch.full(groups, code, device=device(), dtype=torch.uint8)
    if spec.mode == "mxfp8":
        words &= 0x3F3F3F3F
    return Packed(words, scales, biases, None, spec)


def stored_bytes(spec: QuantSpec | None, *shape: int) -> float:
    """What reading such a weight once moves."""
    return shapes.stored_bytes(spec, dtype().itemsize, *shape)


def linear(spec: QuantSpec | None, *shape: int) -> Linear:
    """A random map."""
    return PlainLinear(plain(*shape)) if spec is None else PackedLinear(packed(spec, *shape))


def experts(spec: QuantSpec | None, *shape: int) -> Experts:
    """A random stack."""
    return PlainExperts(plain(*shape)) if spec is None else PackedExperts(packed(spec, *shape))


def embedding(spec: QuantSpec | None, *shape: int) -> Embedding:
    """A random table."""
    return PlainEmbedding(plain(*shape)) if spec is None else PackedEmbedding(packed(spec, *shape), dtype())
