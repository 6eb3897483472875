"""Attention over the cache: causal for encoded rows, all-to-all for a canvas; each sequence over its own keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgemma.batch import Segment
from dgemma.config import LayerShape, Rope
from dgemma_cuda.cache import Context
from dgemma_cuda.quant import Linear

if TYPE_CHECKING:
    from dgemma_cuda.kernels import Kernels


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


def attention(
    layer: Attention,
    index: int,
    x: Tensor,
    rotation: tuple[Tensor, Tensor],
    segments: Sequence[Segment],
    kernels: Kernels,
) -> Tensor:
    """Normed rows x [N, H] -> [N, H]; writes keys and values of every row behind their sequence's cache."""
    queries, keys, values = _project(layer, x, rotation, kernels)
    out = queries.new_empty(len(x), layer.heads, layer.shape.head_dim)
    for segment in segments:
        context = segment.context
        assert isinstance(context, Context)
        context.write(index, segment.position, keys[:, segment.span], values[:, segment.span])
        seen = (context.first_visible(index, segment.position), segment.end, segment.position)
        out[segment.span] = kernels.attend(
            queries[:, segment.span],
            *context.buffers(index),
            context.slots(index, seen),
            not segment.canvas,
            context.window(index),
        )
    return layer.o_proj(out.flatten(1))


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, span: tuple[int, int, int], causal: bool, window: int | None
) -> Tensor:
    """Attention by torch operations; see `kernels.naive`."""
    first, end, place = span
    mask = None
    if causal and queries.shape[1] > 1:
        slots = torch.arange(first, end, device=keys.device)
        rows = torch.arange(place, place + queries.shape[1], device=keys.device)[:, None]
        mask = slots <= rows
        mask = mask if window is None else mask & (slots > rows - window)
    seen = (keys[None, :, first:end], values[None, :, first:end])
    out = torch.nn.functional.scaled_dot_product_attention(
        queries[None], *seen, attn_mask=mask, scale=1.0, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def _project(
    layer: Attention, x: Tensor, rotation: tuple[Tensor, Tensor], kernels: Kernels
) -> tuple[Tensor, Tensor, Tensor]:
    shape = layer.shape
    queries = layer.q_proj(x).view(-1, layer.heads, shape.head_dim)
    raw = layer.k_proj(x).view(-1, shape.kv_heads, shape.head_dim)
    raw_values = raw if layer.v_proj is None else layer.v_proj(x).view_as(raw)
    queries = kernels.norm_rotate(queries, layer.q_norm, rotation, layer.eps)
    keys = kernels.norm_rotate(raw, layer.k_norm, rotation, layer.eps)
    return queries, keys, kernels.rms_norm(raw_values, None, layer.eps).transpose(0, 1)
