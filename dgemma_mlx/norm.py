"""RMS norms by MLX operations: statistics and weight in float32, the result in the input's dtype."""

from __future__ import annotations

import mlx.core as mx


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; `weight` is float32, or None for the scale-less norm."""
    return mx.fast.rms_norm(x.astype(mx.float32), weight, eps).astype(x.dtype)


def add_norm(residual: mx.array, x: mx.array, weight: mx.array, eps: float, scale: mx.array | None = None) -> mx.array:
    """residual + rms_norm(x), each row times its `scale` [N]."""
    out = residual + rms_norm(x, weight, eps)
    return out if scale is None else out * scale[:, None]


def norm_rotate(x: mx.array, weight: mx.array, rotation: tuple[mx.array, mx.array], eps: float) -> mx.array:
    """Norm each head of x [N, heads, D], then rotate its half-split pairs; [heads, N, D]."""
    return rotate(rms_norm(x, weight, eps), rotation).swapaxes(0, 1)


def rotate(x: mx.array, rotation: tuple[mx.array, mx.array]) -> mx.array:
    """Rotate x [N, heads, D] in half-split pairs by cosines and sines [N, 1, D / 2]."""
    cos, sin = rotation
    first, second = mx.split(x, 2, axis=-1)
    return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
