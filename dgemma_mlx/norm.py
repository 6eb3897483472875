"""RMS norm: statistics and weight in float32, the result in the input's dtype."""

from __future__ import annotations

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; `weight` is float32, or None for the scale-less norm."""
    return mx.fast.rms_norm(x.astype(mx.float32), weight, eps).astype(x.dtype)
