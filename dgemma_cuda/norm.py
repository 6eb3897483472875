"""RMS norm: statistics and weight in float32, the result in the input's dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; `weight` is float32, or None for the scale-less norm."""
    return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)
