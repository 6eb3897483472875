"""The released model's sizes on a GPU, a small form of them elsewhere, and random weights in every format."""

from __future__ import annotations

import mlx.core as mx

from benchmarks.ops import shapes
from benchmarks.ops.mlx.measure import dtype, on_gpu
from benchmarks.ops.shapes import REAL, SMALL, Sizes
from dgemma.quantization import QuantSpec
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


def sizes() -> Sizes:
    """Real on a GPU."""
    return REAL if on_gpu() else SMALL


def plain(*shape: int) -> mx.array:
    """Random weights of unit gain."""
    return (mx.random.normal(shape) * shape[-1] ** -0.5).astype(dtype())


def packed(spec: QuantSpec, *shape: int) -> Packed:
    """Random weights, quantized."""
    keywords = {"group_size": spec.group_size, "bits": spec.bits, "mode": spec.mode}
    weight, scales, *biases = mx.quantize(plain(*shape), **keywords)
    return Packed(weight, scales, biases[0] if biases else None, None, spec)


def stored_bytes(spec: QuantSpec | None, *shape: int) -> float:
    """What reading such a weight once moves."""
    return shapes.stored_bytes(spec, dtype().size, *shape)


def linear(spec: QuantSpec | None, *shape: int) -> Linear:
    """A random map."""
    return PlainLinear(plain(*shape)) if spec is None else PackedLinear(packed(spec, *shape))


def experts(spec: QuantSpec | None, *shape: int) -> Experts:
    """A random stack."""
    return PlainExperts(plain(*shape), False) if spec is None else PackedExperts(packed(spec, *shape))


def embedding(spec: QuantSpec | None, *shape: int) -> Embedding:
    """A random table."""
    return PlainEmbedding(plain(*shape)) if spec is None else PackedEmbedding(packed(spec, *shape), dtype())
