"""Random weights in the formats that MLX packs."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from dgemma.quantization import QuantSpec
from dgemma_mlx.quant import Packed

SPECS = {
    "affine4": QuantSpec(4, 32),
    "affine8": QuantSpec(8, 64),
    "mxfp4": QuantSpec(4, 32, "mxfp4"),
    "nvfp4": QuantSpec(4, 16, "nvfp4"),
    "mxfp8": QuantSpec(8, 32, "mxfp8"),
}


def pack(matrix: Any, spec: QuantSpec, scaled: bool) -> Packed:
    """`matrix` or a stack of them, quantized; with `scaled` a multiplier a row."""
    stored = mx.quantize(matrix, group_size=spec.group_size, bits=spec.bits, mode=spec.mode)
    weight, scales, biases = (*stored, None)[:3]
    multiplier = mx.abs(normal(matrix.shape[:-1], 17)) + 0.5 if scaled else None
    return Packed(weight, scales, biases, multiplier, spec)


def normal(shape: tuple[int, ...], seed: int) -> Any:
    """Normal numbers in float32."""
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))
