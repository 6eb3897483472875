"""Attention over the cache: causal for encoded rows, all-to-all for a canvas; each sequence over its own keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dgemma.batch import Segment
from dgemma.config import LayerShape, Rope
from dgemma_cuda.cache import Context
from dgemma_cuda.norm import rms_norm
from dgemma_cuda.quant import Linear


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections of one layer; `v_proj` is None on full layers, whose values are the raw keys."""

    shape: LayerShape
    heads: int
    eps: float
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear | None
    o_proj: Linear
    q_norm: Tensor
    k_norm: Tensor


def frequencies(rope: Rope, head_dim: int) -> list[float]:
    """Angle per position of each rotated pair (j, j + head_dim / 2), [head_dim / 2]; 0 leaves a pair unrotated."""
    half = head_dim // 2
    rotated = int(rope.partial_rotary_factor * half)
    return [rope.theta ** (-2 * j / head_dim) / rope.factor if j < rotated else 0.0 for j in range(half)]


def rotations(shape: LayerShape, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, 1, head_dim / 2] at `positions` [N]: angles in float32, then `dtype`."""
    angles = torch.tensor(frequencies(shape.rope, shape.head_dim), device=positions.device)
    turns = positions[:, None].float() * angles
    return turns.cos().to(dtype)[:, None], turns.sin().to(dtype)[:, None]


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x [N, heads, head_dim] in half-split pairs."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def causal_mask(segment: Segment, first: int, window: int | None, device: torch.device) -> Tensor | None:
    """Which keys at first..end each row sees, [T, S]; None where all are seen. A sliding row sees `window` tokens."""
    if segment.canvas or segment.rows == 1:
        return None
    keys = torch.arange(first, segment.end, device=device)
    queries = torch.arange(segment.position, segment.end, device=device)[:, None]
    mask = keys <= queries
    return mask if window is None else mask & (keys > queries - window)


def attention(
    layer: Attention,
    index: int,
    x: Tensor,
    rotation: tuple[Tensor, Tensor],
    segments: Sequence[Segment],
    masks: Sequence[Tensor | None],
) -> Tensor:
    """Normed rows x [N, H] -> [N, H]; writes keys and values of every row behind their sequence's cache."""
    queries, keys, values = _project(layer, x, rotation)
    out = torch.empty_like(queries)
    for segment, mask in zip(segments, masks, strict=True):
        context = segment.context
        assert isinstance(context, Context)
        context.write(index, segment.position, keys[:, segment.span], values[:, segment.span])
        seen = context.view(index, context.first_visible(index, segment.position), segment.end)
        out[:, segment.span] = _attend(queries[:, segment.span], *seen, mask)
    return layer.o_proj(out.transpose(0, 1).flatten(1))


def _project(layer: Attention, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    shape = layer.shape
    queries = layer.q_proj(x).view(-1, layer.heads, shape.head_dim)
    raw = layer.k_proj(x).view(-1, shape.kv_heads, shape.head_dim)
    raw_values = raw if layer.v_proj is None else layer.v_proj(x).view_as(raw)
    queries = rotate(rms_norm(queries, layer.q_norm, layer.eps), rotation)
    keys = rotate(rms_norm(raw, layer.k_norm, layer.eps), rotation)
    values = rms_norm(raw_values, None, layer.eps)
    return queries.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        queries[None], keys[None], values[None], attn_mask=mask, scale=1.0, enable_gqa=True
    )[0]
