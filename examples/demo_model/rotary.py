"""Rotary position tables for both kinds of layers."""

import torch
from shape import Shape
from torch import Tensor


def tables(shape: Shape, full: bool) -> tuple[Tensor, Tensor]:
    """cos and sin for every position, over half the head."""
    head = shape.head_full if full else shape.head_sliding
    theta = 1e6 if full else 1e4
    rotated = int(shape.rotated * head / 2) if full else head // 2
    frequencies = torch.zeros(head // 2)
    frequencies[:rotated] = theta ** (-2 * torch.arange(rotated) / head)
    angles = torch.arange(shape.positions)[:, None] * frequencies
    return angles.cos(), angles.sin()
