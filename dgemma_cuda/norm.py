"""RMS norms by torch operations: statistics and weight in float32, the result in the input's dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; `weight` is float32, or None for the scale-less norm."""
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)


def add_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual + rms_norm(x)."""
    return residual + rms_norm(x, weight, eps)


def norm_rotate(x: Tensor, weight: Tensor, rotation: tuple[Tensor, Tensor], eps: float) -> Tensor:
    """Norm each head of x [N, heads, D], then rotate its half-split pairs; [heads, N, D]."""
    return rotate(rms_norm(x, weight, eps), rotation).transpose(0, 1)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x [N, heads, D] in half-split pairs by cosines and sines [N, 1, D / 2]."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
